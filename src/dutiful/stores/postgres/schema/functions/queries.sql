-- needs: views
-- Lists of jobs, newest first: ids from the index that has them in that order, then the jobs of a page.
--
-- The plans do not depend on statistics. A walk compares whole keys of its index and asks for their order, which no
-- other index has, and may not sort; a look-up is by bitmap, which is made from a condition only, and other conditions
-- are tested on its rows. All run with the rights of the caller.

-- Returns the jobs with these ids that exist, newest first.
create or replace function {schema}.job_records(p_ids uuid[]) returns setof {schema}.jobs
language plpgsql stable {look_up_ids} as $$
begin
    return query select v.* from {schema}.jobs v where v.id = any (p_ids) order by v.id desc;
end $$;

-- Returns those of these jobs that are final.
create or replace function {schema}.finished_among(p_ids uuid[]) returns uuid[]
language plpgsql stable {look_up_ids} as $$
begin
    return array(select f.job_id from {schema}.finished f where f.job_id = any (p_ids));
end $$;

-- Returns the jobs that one depends on.
create or replace function {schema}.dependency_ids(p_job uuid) returns uuid[]
language plpgsql stable {look_up_ids} as $$
begin
    return array(select d.needs_id from {schema}.dependency d where d.job_id = p_job);
end $$;

-- Returns the attempts of a job, except the final one.
create or replace function {schema}.attempts(p_job uuid) returns setof {schema}.attempt
language plpgsql stable {look_up_ids} as $$
begin
    return query select a.* from {schema}.attempt a where a.job_id = p_job order by a.id;
end $$;

-- Returns every pair of kind and queue that has jobs, of these kinds and this queue if they are given; with a queue,
-- its pair with any kind. Steps from pair to pair by their newest jobs, because the oldest may be dead rows.
create or replace function {schema}.kind_queue_pairs(p_kinds text[], p_queue text) returns table (kind text, queue text)
language plpgsql stable {walk_in_order} as $$
declare
    v_kinds text[] := p_kinds;
    v_kind  text;
    v_queue text;
begin
    if v_kinds is null then
        v_kinds := '{}';
        select j.kind into v_kind from {schema}.job j where j.kind <> ''
        order by j.kind collate "C" desc, j.queue collate "C" desc, j.id desc limit 1;
        while v_kind is not null loop
            v_kinds := v_kinds || v_kind;
            select (select j.kind from {schema}.job j where j.kind collate "C" < v_kind and j.kind <> ''
                    order by j.kind collate "C" desc, j.queue collate "C" desc, j.id desc limit 1) into v_kind;
        end loop;
    end if;
    if p_queue is not null then
        return query select k, p_queue from unnest(v_kinds) k;
        return;
    end if;
    foreach v_kind in array v_kinds loop
        select (select j.queue from {schema}.job j where j.kind collate "C" = v_kind and j.kind <> ''
                order by j.kind collate "C" desc, j.queue collate "C" desc, j.id desc limit 1) into v_queue;
        while v_queue is not null loop
            return query select v_kind, v_queue;
            select (select j.queue from {schema}.job j
                    where j.kind collate "C" = v_kind and j.queue collate "C" < v_queue and j.kind <> ''
                    order by j.kind collate "C" desc, j.queue collate "C" desc, j.id desc limit 1) into v_queue;
        end loop;
    end loop;
end $$;

-- Returns from each of these branches of an index its p_each newest ids below p_high, down to p_low; in no order.
create or replace function {schema}.walk_ids(
    p_sources text[], p_names text[], p_queues text[], p_low uuid, p_high uuid, p_each int
) returns table (branch int, ids uuid[])
language plpgsql stable {walk_in_order} as $$
declare
    v_name text;
    v_last uuid;
begin
    for i in 1 .. cardinality(p_sources) loop
        branch := i;
        v_name := p_names[i];
        case p_sources[i]
        when 'job' then
            ids := array(
                select j.id from {schema}.job j
                where j.id < p_high and j.id >= p_low
                order by j.id desc limit p_each);
        when 'correlation_root' then
            -- A job without a correlation id has its own id as one. A range, because an equal id would need no order.
            ids := array(
                select j.id from {schema}.job j
                where j.id <= v_name::uuid and j.id >= v_name::uuid and j.id < p_high and j.id >= p_low
                  and j.correlation_id is null
                order by j.id desc limit 1);
        when 'kind_queue' then
            ids := array(
                select j.id from {schema}.job j
                where (j.kind collate "C", j.queue collate "C", j.id) < (v_name, p_queues[i], p_high)
                  and (j.kind collate "C", j.queue collate "C", j.id) >= (v_name, p_queues[i], p_low)
                  and j.kind <> ''
                order by j.kind collate "C" desc, j.queue collate "C" desc, j.id desc limit p_each);
        when 'tenant' then
            ids := array(
                select j.id from {schema}.job j
                where (j.tenant collate "C", j.id) < (v_name, p_high) and (j.tenant collate "C", j.id) >= (v_name, p_low)
                  and j.tenant is not null
                order by j.tenant collate "C" desc, j.id desc limit p_each);
        when 'correlation' then
            ids := array(
                select j.id from {schema}.job j
                where (j.correlation_id collate "C", j.id) < (v_name, p_high)
                  and (j.correlation_id collate "C", j.id) >= (v_name, p_low)
                  and j.correlation_id is not null
                order by j.correlation_id collate "C" desc, j.id desc limit p_each);
        when 'not_completed' then
            ids := array(
                select f.job_id from {schema}.finished f
                where (f.state collate "C", f.job_id) < (v_name, p_high)
                  and (f.state collate "C", f.job_id) >= (v_name, p_low)
                  and f.state <> 'completed'
                order by f.state collate "C" desc, f.job_id desc limit p_each);
        when 'finished' then ids := array(select p.job_id from {schema}.finished p where {newest_ids});
        when 'scheduled' then ids := array(select p.job_id from {schema}.scheduled p where {newest_ids});
        when 'ready' then ids := array(select p.job_id from {schema}.ready p where {newest_ids});
        when 'blocked' then ids := array(select p.job_id from {schema}.blocked p where {newest_ids});
        when 'running' then ids := array(select p.job_id from {schema}.lease p where {newest_ids});
        when 'tried' then
            -- Steps from each job to the one before it, because a job may have any number of attempts.
            ids := '{}';
            v_last := p_high;
            while cardinality(ids) < p_each loop
                select (select a.job_id from {schema}.attempt a
                        where a.job_id < v_last and a.job_id >= p_low
                        order by a.job_id desc limit 1) into v_last;
                exit when v_last is null;
                ids := ids || v_last;
            end loop;
        end case;
        return next;
    end loop;
end $$;

-- Returns the error of the last failed attempt of a job that has not ended.
create or replace function {schema}.last_error(p_job_id uuid) returns jsonb
language plpgsql stable {look_up_ids} as $$
begin
    return (
        select a.error
        from {schema}.attempt a
        where a.job_id = p_job_id and a.error is not null
          and not exists (select 1 from {schema}.finished f where f.job_id = p_job_id)
        order by a.id desc limit 1
    );
end $$;

-- Returns those of these jobs, newest first, that match; null matches all. An error's class is that of the end, or of
-- the last attempt while the job has not ended. p_text is in lower case and spelt as within JSON.
create or replace function {schema}.filter_ids(
    p_ids uuid[], p_state text, p_kinds text[], p_queue text, p_tenant text, p_subject jsonb, p_error_class text,
    p_text text, p_phase text
) returns setof uuid
language plpgsql stable {look_up_ids} as $$
begin
    return query
    with candidate as materialized (
        select j.id, j.kind, j.queue, j.tenant, j.payload, j.subject from {schema}.job j where j.id = any (p_ids)
    )
    select c.id
    from candidate c
    where (p_kinds is null or c.kind = any (p_kinds))
      and (p_queue is null or c.queue = p_queue)
      and (p_tenant is null or c.tenant = p_tenant)
      and (p_state is null or p_state = case p_state
               when 'scheduled' then (select 'scheduled' from {schema}.scheduled s where s.job_id = c.id)
               when 'ready' then (select 'ready' from {schema}.ready r where r.job_id = c.id)
               when 'blocked' then (select 'blocked' from {schema}.blocked b where b.job_id = c.id)
               when 'running' then (select 'running' from {schema}.lease l where l.job_id = c.id)
               else (select f.state from {schema}.finished f where f.job_id = c.id) end)
      and (p_subject is null
           or (select bool_and(coalesce(c.subject -> w.key = w.value, false)) from jsonb_each(p_subject) w))
      and (p_phase is null or p_phase = (select g.phase from {schema}.progress g where g.job_id = c.id))
      and (p_error_class is null
           or p_error_class = (select f.errors -> 0 ->> 'class' from {schema}.finished f where f.job_id = c.id)
           or p_error_class = {schema}.last_error(c.id) ->> 'class')
      and (p_text is null
           or strpos(lower(c.payload::text), p_text) > 0
           or strpos(lower(c.subject::text), p_text) > 0
           or strpos(lower((select f.errors::text from {schema}.finished f where f.job_id = c.id)), p_text) > 0
           or strpos(lower({schema}.last_error(c.id)::text), p_text) > 0)
    order by c.id desc;
end $$;

-- Returns whether a job of this kind and correlation id has not ended. It has its owner's rights, so that the owners of
-- processes in SQL can ask it about theirs where tenants are separated, too.
create or replace function {schema}.has_live_job(p_correlation_id text, p_kind text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp {walk_in_order} as $$
declare
    v_before text := coalesce(current_setting('dutiful.tenant', true), '');
    v_all    text := set_config('dutiful.tenant', '*', true);
    v_job    uuid;
    v_live   boolean := false;
begin
    -- The newest first, because one that lives is mostly the last.
    for v_job in
        select j.id from {schema}.job j
        where j.correlation_id collate "C" = p_correlation_id and j.correlation_id is not null and j.kind = p_kind
        order by j.correlation_id collate "C" desc, j.id desc
    loop
        v_live := not exists (select 1 from {schema}.finished f where f.job_id = v_job);
        exit when v_live;
    end loop;
    v_all := set_config('dutiful.tenant', v_before, true);
    return v_live;
end $$;

revoke execute on function {schema}.has_live_job(text, text) from public;
