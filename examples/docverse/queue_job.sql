-- The jobs in the host's own terms, for operators: docverse.queue_job, a view over Dutiful's tables.

-- An id as people and URLs write it: Crockford's Base32 with two check digits, in four groups of seven.
create function docverse.public_id(p_id uuid) returns text language plpgsql immutable strict as $$
declare
    number numeric := 0;
    rest   numeric;
    digits text := '';
begin
    for byte in 0..15 loop
        number := number * 256 + get_byte(uuid_send(p_id), byte);
    end loop;
    rest := number;
    while rest > 0 loop
        digits := substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', (rest % 32)::int + 1, 1) || digits;
        rest := div(rest, 32);
    end loop;
    digits := lpad(digits, 26, '0') || lpad((97 - (number * 100) % 97 + 1)::text, 2, '0');
    return regexp_replace(digits, '(.{7})(.{7})(.{7})(.{7})', '\1-\2-\3-\4');
end $$;

-- Progress over items has their lists by outcome, named for what they are; that of other phases is a message.
create function docverse.queue_job_progress(p_kind text, p_progress jsonb) returns jsonb language sql immutable as $$
    select case
        when p_progress -> 'items' is null or jsonb_typeof(p_progress -> 'items') = 'null'
            then nullif(jsonb_strip_nulls(jsonb_build_object('message', p_progress -> 'message')), '{}')
        else jsonb_build_object(
            noun || '_total', p_progress #> '{items,total}',
            noun || '_completed', p_progress #> '{items,completed}',
            noun || '_skipped', (
                select coalesce(jsonb_agg(jsonb_build_object('slug', e -> 'item', 'reason', e -> 'reason')), '[]')
                from jsonb_array_elements(p_progress #> '{items,skipped}') e),
            noun || '_failed', (
                select coalesce(jsonb_agg(jsonb_build_object('slug', e -> 'item', 'error', e -> 'error')), '[]')
                from jsonb_array_elements(p_progress #> '{items,failed}') e),
            noun || '_in_progress', p_progress #> '{items,in_progress}')
    end
    from (select case when p_kind in ('dashboard_sync', 'git_ref_audit') then 'projects'
                      when p_kind in ('lifecycle_eval', 'purgatory_cleanup', 'credential_reencrypt') then 'orgs'
                      else 'editions' end as noun) named
$$;

create view docverse.queue_job as
select j.id, docverse.public_id(j.id) as public_id, j.backend_job_id, j.kind,
       case j.state when 'running' then 'in_progress' when 'ready' then 'queued' when 'scheduled' then 'queued'
                    when 'blocked' then 'queued' else j.state end as status,
       j.progress ->> 'phase' as phase,
       (j.subject ->> 'org_id')::bigint as org_id, (j.subject ->> 'project_id')::bigint as project_id,
       (j.subject ->> 'build_id')::bigint as build_id,
       -- What became of the editions stays to be seen when the job has gone on to its dashboard.
       coalesce((select p.result from dutiful.phase p
                 where p.job_id = j.id and p.name = 'editions' and j.finished_at is not null),
                docverse.queue_job_progress(j.kind, j.progress)) as progress,
       (select jsonb_agg(e - 'traceback') from jsonb_array_elements(j.errors) e) as errors,
       j.created_at as date_created, j.started_at as date_started, j.finished_at as date_completed
from dutiful.jobs j;

-- A build's status follows its job's, even if that ended without a chance to write it: its worker was killed too often,
-- or it was cancelled.
create function docverse.build_status(p_status text, p_job uuid) returns text language sql stable as $$
    select case
        when p_status in ('uploaded', 'processing') and not exists (
            select from dutiful.job j where j.id = p_job and not exists (
                select from dutiful.finished f where f.job_id = j.id and f.state in ('failed', 'cancelled')))
        then 'failed' else p_status
    end
$$;
