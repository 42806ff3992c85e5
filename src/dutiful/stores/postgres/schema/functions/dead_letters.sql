-- Dead letters: writes them, and applies what people decide about them, one by one or in bulk.

-- Writes the dead letters of jobs that have just failed for good.
create or replace function {schema}.write_dead_letters(p_jobs uuid[], p_now timestamptz) returns void
language plpgsql volatile {look_up_ids} as $$
begin
    insert into {schema}.dead_letter
        (job_id, died_at, created_at, attempt, max_attempts, kind, queue, tenant, correlation_id, unique_key,
         error_class, error_type, message, fingerprint, job, errors, history)
    select j.id, p_now, j.created_at, f.attempt, j.max_attempts, j.kind, j.queue, j.tenant,
           coalesce(j.correlation_id, j.id::text), j.options ->> 'unique',
           f.errors #>> '{0,class}', f.errors #>> '{0,type}', f.errors #>> '{0,message}',
           f.errors #>> '{0,fingerprint}', to_jsonb(j), f.errors,
           -- By a sum, which no index has: along the primary key every attempt of every job might be read.
           (select jsonb_agg(to_jsonb(t) - '{id,next_at}'::text[] order by t.id + 0)
            from {schema}.attempt t where t.job_id = j.id)
    from {schema}.job j join {schema}.finished f on f.job_id = any (array[j.id])
    where j.id = any (p_jobs);
end $$;

-- Applies reviews, in one transaction. p_reviews: [{id, act, by, notes, job, event, refusal}], with `job` as
-- insert_jobs takes it, `event` and `refusal` as append_audit does: the first is appended if the act is applied, the
-- second if not. p_moves: {act: {from: to}}, all that is legal; p_resolution: of those that a person resolves. p_step:
-- {run_id, after, to, skipped, last, event, events}; a step that is no longer current changes nothing and returns no
-- row. Of several reviews of one dead letter only the first counts.
create or replace function {schema}.review(
    p_reviews json, p_moves jsonb, p_resolution text, p_step json, p_now timestamptz
) returns table (ord bigint, id uuid, status text, applied boolean, new_job_id uuid, holder uuid)
language plpgsql volatile set lock_timeout = '5s' {look_up_ids} as $$ #variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_ids    uuid[];  -- those that may be acted on, in the order of the reviews, which are in v_asked
    v_asked  json[];
    v_jobs   jsonb;
    v_new    uuid[];
    v_taken  uuid[] := '{}';  -- of the new jobs, those that were not made: their key is held, or rules reject them
    v_held   uuid[] := '{}';  -- the holders of those keys, null for one that rules reject
    v_one    record;
    v_done   uuid[];
    v_events json;
begin
    if p_step is not null then
        perform 1 from {schema}.bulk_run b
        where b.id = (p_step ->> 'run_id')::uuid and b.state = 'running'
          and b.cursor_died_at is not distinct from (p_step #>> '{after,died_at}')::timestamptz
          and b.cursor_id is not distinct from (p_step #>> '{after,id}')::uuid
        for update;
        if not found then return; end if;
    end if;

    -- In order of their ids, so that two reviews cannot deadlock.
    perform 1 from {schema}.dead_letter d
    where d.job_id = any (array(select (r.value ->> 'id')::uuid from json_array_elements(p_reviews) r))
    order by d.job_id
    for update;

    select array_agg(d.job_id order by r.ord), array_agg(r.v order by r.ord),
           jsonb_agg((r.v -> 'job')::jsonb order by r.ord) filter (where json_typeof(r.v -> 'job') = 'object'),
           array_agg((r.v #>> '{job,id}')::uuid order by r.ord) filter (where json_typeof(r.v -> 'job') = 'object')
    into v_ids, v_asked, v_jobs, v_new
    from (
        select distinct on ((e.v ->> 'id')::uuid) (e.v ->> 'id')::uuid as id, e.v, e.ord
        from json_array_elements(p_reviews) with ordinality e (v, ord)
        order by (e.v ->> 'id')::uuid, e.ord
    ) r
    join {schema}.dead_letter d on d.job_id = r.id
    where p_moves -> (r.v ->> 'act') ? d.status;

    if v_jobs is not null then
        begin
            select coalesce(array_agg(v_new[i.ord]), '{}'), coalesce(array_agg(i.job_id), '{}') into v_taken, v_held
            from {schema}.insert_jobs(v_jobs, v_now, true) i
            where i.insertion not in ('made', 'replaced');
        exception when check_violation then
            if p_step is null then
                raise;
            end if;
            -- Payloads that break today's rules must not stop a run for good: insert one by one, and skip them.
            for n in 1..cardinality(v_new) loop
                begin
                    select i.job_id, i.insertion into v_one
                    from {schema}.insert_jobs(jsonb_build_array(v_jobs -> (n - 1)), v_now, true) i;
                    if v_one.insertion not in ('made', 'replaced') then
                        v_taken := v_taken || v_new[n];
                        v_held := v_held || v_one.job_id;
                    end if;
                exception when check_violation then
                    v_taken := v_taken || v_new[n];
                    v_held := v_held || null::uuid;
                end;
            end loop;
        end;
    end if;

    with asked as (
        select a.id, a.v, a.v ->> 'act' as act, (a.v #>> '{job,id}')::uuid as new_job_id
        from unnest(v_ids, v_asked) a (id, v)
        where (a.v #>> '{job,id}')::uuid is null or (a.v #>> '{job,id}')::uuid <> all (v_taken)
    ), moved as (
        update {schema}.dead_letter d
        set status = p_moves -> a.act ->> d.status,
            reviewed_by = a.v ->> 'by', reviewed_at = v_now, notes = coalesce(a.v ->> 'notes', d.notes),
            acknowledged_by = case a.act when 'acknowledge' then a.v ->> 'by' else d.acknowledged_by end,
            acknowledged_at = case a.act when 'acknowledge' then v_now else d.acknowledged_at end,
            new_job_id = coalesce(a.new_job_id, d.new_job_id),
            closed_at = case when p_moves -> a.act ->> d.status in ('resolved', 'discarded') then v_now end,
            resolution = case when p_moves -> a.act ->> d.status = 'resolved' then p_resolution end
        from asked a where d.job_id = a.id
        returning d.job_id, a.v -> 'event' as event
    )
    select array_agg(m.job_id), json_agg(m.event) filter (where json_typeof(m.event) = 'object')
    into v_done, v_events from moved m;
    if v_events is not null then perform {schema}.append_audit(v_events); end if;
    select json_agg((r.v -> 'refusal')::jsonb
                    || jsonb_build_object('after', (r.v #> '{refusal,after}')::jsonb
                                                   || jsonb_build_object('status', d.status)
                                                   || case when h.id is null then '{}'
                                                           else jsonb_build_object('held_by', {schema}.public_id(h.id))
                                                           end))
    into v_events
    from json_array_elements(p_reviews) r (v)
    left join {schema}.dead_letter d on d.job_id = (r.v ->> 'id')::uuid
    cross join lateral (select v_held[array_position(v_taken, (r.v #>> '{job,id}')::uuid)] as id) h
    where json_typeof(r.v -> 'refusal') = 'object' and (r.v ->> 'id')::uuid <> all (coalesce(v_done, '{}'));
    if v_events is not null then perform {schema}.append_audit(v_events); end if;

    if p_step is not null then
        update {schema}.bulk_run b
        set cursor_died_at = coalesce((p_step #>> '{to,died_at}')::timestamptz, b.cursor_died_at),
            cursor_id = coalesce((p_step #>> '{to,id}')::uuid, b.cursor_id),
            done = b.done + coalesce(cardinality(v_done), 0),
            skipped = b.skipped + (p_step ->> 'skipped')::bigint
                      + json_array_length(p_reviews) - coalesce(cardinality(v_done), 0),
            state = case when (p_step ->> 'last')::boolean then 'done' else b.state end,
            ended_at = case when (p_step ->> 'last')::boolean then v_now end
        where b.id = (p_step ->> 'run_id')::uuid;
        if json_typeof(p_step -> 'event') = 'object' then
            perform {schema}.append_audit(json_build_array(p_step -> 'event'));
        end if;
        if json_array_length(p_step -> 'events') > 0 then
            perform {schema}.append_audit(p_step -> 'events');
        end if;
    end if;

    return query
    select r.ord, r.id, d.status,
           -- If its event exists, it was applied by an earlier call, whose reply was lost.
           r.nth = 1 and coalesce(r.id = any (v_done), false)
               or exists (select 1 from {schema}.audit_event e where e.id = (r.v #>> '{event,id}')::uuid),
           d.new_job_id, v_held[array_position(v_taken, (r.v #>> '{job,id}')::uuid)]
    from (
        select (e.v ->> 'id')::uuid as id, e.v, e.ord,
               row_number() over (partition by e.v ->> 'id' order by e.ord) as nth
        from json_array_elements(p_reviews) with ordinality e (v, ord)
    ) r
    left join {schema}.dead_letter d on d.job_id = r.id
    order by r.ord;
end $$;

-- Reads up to p_look dead letters that are reprocessing, by their new jobs beyond p_after; returns those whose new job
-- has ended, and how (null: deleted). The last row has only the new job from which to continue; null: at the start.
create or replace function {schema}.reprocessed(p_after uuid, p_look int)
returns table (job_id uuid, new_job_id uuid, state text)
language plpgsql stable {walk_in_order} as $$ #variable_conflict use_column
declare
    v_ids uuid[];
    v_new uuid[];
begin
    select array_agg(s.job_id), array_agg(s.new_job_id) into v_ids, v_new
    from (
        select d.job_id, d.new_job_id from {schema}.dead_letter d
        where d.status = 'reprocessing' and d.new_job_id > p_after
        order by d.new_job_id
        limit p_look
    ) s;
    return query
    select s.job_id, s.new_job_id, f.state
    from unnest(v_ids, v_new) s (job_id, new_job_id)
    left join lateral (select x.state from {schema}.finished x where x.job_id = s.new_job_id limit 1) f on true
    left join lateral (select x.id from {schema}.job x where x.id = s.new_job_id limit 1) j on true
    where f.state is not null or j.id is null;
    return query
    select null::uuid, case when cardinality(v_new) >= p_look then v_new[cardinality(v_new)] end, null::text;
end $$;
