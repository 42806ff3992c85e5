-- Jobs that wait for other jobs: each watches the newest that has not ended, whose id is the key of its gate, so that the
-- end of one of 10,000 does not make the others be read.

-- Decides those of p_jobs whose watched job has ended, and that are not locked: the next job to wait for, ready, or its end by
-- a policy. The last row, without a queue, has the jobs whose dependents are to be decided next.
create or replace function {schema}.decide_dependents(p_jobs uuid[], p_now timestamptz)
returns table (queue text, priority int, moved bigint, next_ids uuid[])
language plpgsql volatile {walk_indexes} as $$ #variable_conflict use_column
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_paused  text[] := {blocked_kinds};
    v_job     record;
    v_free    uuid[] := '{}';
    v_doomed  uuid[] := '{}';
    v_watched uuid[] := '{}';
    v_gated   int := 0;
begin
    for v_job in
        -- The limits and offsets make these look-ups for each, whatever the statistics say.
        select b.job_id, b.kind, b.key, b.run_at, w.needs_id as next_id, n.needs_id as dead_id
        from unnest(p_jobs) g (id)
        cross join lateral (
            select x.job_id, x.kind, x.key, x.run_at from {schema}.blocked x
            where x.job_id = g.id and x.gate = 'dependency'
            limit 1
            for update skip locked
        ) b
        left join lateral (
            -- Those above have ended, unless they were added since.
            select coalesce(
                (select d.needs_id from {schema}.dependency d
                 where d.job_id = b.job_id and d.needs_id <= b.key::uuid
                   and not exists (select 1 from {schema}.finished f where f.job_id = d.needs_id offset 0)
                 order by d.needs_id desc limit 1),
                (select d.needs_id from {schema}.dependency d
                 where d.job_id = b.job_id
                   and not exists (select 1 from {schema}.finished f where f.job_id = d.needs_id offset 0)
                 order by d.needs_id desc limit 1)) as needs_id
        ) w on true
        left join lateral (
            select d.needs_id
            from {schema}.dependency d
            cross join lateral (select x.state from {schema}.finished x where x.job_id = d.needs_id limit 1) f
            where w.needs_id is null and d.job_id = b.job_id and d.policy <> 'run' and f.state in ('failed', 'cancelled')
            limit 1
        ) n on true
    loop
        if v_job.dead_id is not null then
            v_doomed := v_doomed || v_job.job_id;
        elsif v_job.next_id is null then
            if v_job.kind = any (v_paused) then
                update {schema}.blocked b
                set gate = 'paused', key = b.kind,
                    seq = case when b.run_at > v_now then null else {schema}.seq_at(v_now) end
                where b.job_id = v_job.job_id;
            end if;
            if v_job.kind <> all (v_paused) or v_job.run_at > v_now and v_job.kind <> all ({stopped_kinds}) then
                v_free := v_free || v_job.job_id;
            else
                v_gated := v_gated + 1;
            end if;
        elsif v_job.next_id::text <> v_job.key then
            update {schema}.blocked b set key = v_job.next_id::text where b.job_id = v_job.job_id;
            v_watched := v_watched || v_job.next_id;
        end if;
    end loop;
    perform {schema}.end_dependents(v_doomed, v_now);
    if v_free <> '{}' then
        return query select u.queue, u.priority, u.moved, null::uuid[] from {schema}.unblock(v_free, v_now) u;
    end if;
    -- What is watched from now on may have ended meanwhile.
    return query
    select null::text, null::int, (cardinality(v_doomed) + cardinality(v_watched) + v_gated)::bigint, v_doomed || v_watched;
end $$;

-- Locks and returns up to p_limit jobs that end because they depend on p_dead, or on others of them, unless an edge allows it.
create or replace function {schema}.doomed_by(p_dead uuid[], p_limit int) returns uuid[]
language plpgsql volatile {walk_indexes} as $$
declare
    v_found  uuid[];
    v_locked uuid[];
begin
    loop
        v_found := array(
            with recursive doomed (id) as (
                select unnest(p_dead)
                union
                select n.job_id
                from doomed d
                cross join lateral (
                    select x.job_id from {schema}.dependency x
                    where x.needs_id = d.id and x.policy <> 'run'
                      and (v_locked is null or x.job_id in (select unnest(v_locked)))
                      and exists (select 1 from {schema}.blocked b
                                  where b.job_id = x.job_id and b.gate = 'dependency' offset 0)
                    limit p_limit
                ) n
            )
            select d.id from doomed d offset cardinality(p_dead) limit p_limit);
        exit when cardinality(v_found) = cardinality(v_locked) or v_found = '{}';
        v_locked := array(
            select b.job_id
            from unnest(v_found) g (id)
            cross join lateral (
                select x.job_id from {schema}.blocked x where x.job_id = g.id and x.gate = 'dependency'
                limit 1
                for update skip locked
            ) b);
        -- What depends only on one that another transaction has locked is left to that.
        exit when cardinality(v_found) = cardinality(v_locked);
    end loop;
    return v_found;
end $$;

-- Ends jobs that wait for others by the policies of their edges to jobs that have failed, were cancelled, or end with them. To
-- fail is more than to be cancelled.
create or replace function {schema}.end_dependents(p_jobs uuid[], p_now timestamptz) returns void
language plpgsql volatile {walk_indexes} as $$
declare v_failed uuid[];
begin
    if p_jobs = '{}' then return; end if;
    with judged as materialized (
        select b.job_id, b.attempt, b.crashes, n.needs_id, n.policy, n.state
        from unnest(p_jobs) g (id)
        cross join lateral (
            select x.job_id, x.attempt, x.crashes from {schema}.blocked x where x.job_id = g.id limit 1
        ) b
        cross join lateral (
            select d.needs_id, d.policy, f.state
            from {schema}.dependency d
            left join lateral (select x.state from {schema}.finished x where x.job_id = d.needs_id limit 1) f on true
            where d.job_id = b.job_id and d.policy <> 'run'
              and (f.state in ('failed', 'cancelled') or f.state is null and d.needs_id in (select unnest(p_jobs)))
            order by d.policy desc, d.needs_id limit 1
        ) n
    ), ended as (
        insert into {schema}.finished (job_id, finished_at, attempt, crashes, state, errors)
        select j.job_id, p_now, j.attempt, j.crashes, case j.policy when 'fail' then 'failed' else 'cancelled' end,
               jsonb_build_array(case j.policy
                   when 'fail' then jsonb_build_object(
                       'type', 'DependencyFailed', 'class', 'non_retryable', 'fingerprint', '{dependency_fingerprint}',
                       'message', w.why)
                   else jsonb_build_object('type', 'Cancelled', 'message', w.why) end)
        from judged j
        cross join lateral (
            select 'job ' || {schema}.public_id(j.needs_id) || ', which it depends on, '
                   || case when j.state = 'failed'
                                or j.state is null and j.needs_id in (select x.job_id from judged x where x.policy = 'fail')
                      then 'failed' else 'was cancelled' end as why
        ) w
        returning job_id, state
    )
    select array_agg(e.job_id) filter (where e.state = 'failed') into v_failed from ended e;
    delete from {schema}.blocked b where b.job_id = any (p_jobs);
    perform {schema}.free_ended(p_jobs, v_failed, p_now);
end $$;

-- Decides jobs that wait for those of p_ended that have ended, and for those that this ends; about p_limit at most.
create or replace function {schema}.release_dependents(p_ended uuid[], p_limit int, p_now timestamptz)
returns table (queue text, priority int, moved bigint, next_ids uuid[])
language plpgsql volatile {walk_indexes} as $$ #variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_ended  uuid[];
    v_dead   uuid[];
    v_doomed uuid[] := '{}';
    v_step   record;
    v_moved  bigint := 0;
    v_next   uuid[] := '{}';
begin
    select array_agg(distinct f.job_id), array_agg(distinct f.job_id) filter (where f.state in ('failed', 'cancelled'))
    into v_ended, v_dead
    from unnest(p_ended) e (id)
    cross join lateral (select x.job_id, x.state from {schema}.finished x where x.job_id = e.id limit 1) f;
    if v_ended is null then return; end if;
    if v_dead is not null then
        v_doomed := {schema}.doomed_by(v_dead, p_limit);
        perform {schema}.end_dependents(v_doomed, v_now);
        v_ended := v_ended || v_doomed;
        v_dead := v_dead || v_doomed;
    end if;
    for v_step in
        select d.* from {schema}.decide_dependents(array(
            select w.job_id
            from unnest(v_ended) e (id)
            cross join lateral (
                select b.job_id from {schema}.blocked b where b.gate = 'dependency' and b.key = e.id::text
                order by b.job_id limit p_limit
            ) w
            limit p_limit), v_now) d
    loop
        return query select v_step.queue::text, v_step.priority::int, v_step.moved::bigint, v_step.next_ids::uuid[];
        v_moved := v_moved + v_step.moved;
    end loop;
    if greatest(cardinality(v_doomed), v_moved) >= p_limit then  -- there may be more
        v_next := array(
            select e.id from unnest(v_ended) e (id)
            where exists (select 1 from {schema}.blocked b where b.gate = 'dependency' and b.key = e.id::text offset 0)
            union
            select e.id from unnest(v_dead) e (id)
            where exists (
                select 1 from {schema}.dependency x
                where x.needs_id = e.id and x.policy <> 'run'
                  and exists (select 1 from {schema}.blocked b
                              where b.job_id = x.job_id and b.gate = 'dependency' offset 0)
                offset 0));
    end if;
    return query select null::text, null::int, cardinality(v_doomed)::bigint, v_next;
end $$;

-- Decides all jobs that wait for others, about p_limit at most: what a release could not do, because its worker died, or did
-- not know of them. Reads all of them.
create or replace function {schema}.unblock_dependents(p_limit int, p_now timestamptz)
returns table (queue text, priority int, moved bigint, next_ids uuid[])
language plpgsql volatile {walk_indexes} as $$ #variable_conflict use_column
begin
    return query
    select r.* from {schema}.release_dependents(array(
        select coalesce(n.needs_id, w.job_id)
        from {schema}.blocked b
        left join lateral (
            select d.needs_id
            from {schema}.dependency d
            cross join lateral (select x.state from {schema}.finished x where x.job_id = d.needs_id limit 1) f
            where d.job_id = b.job_id and d.policy <> 'run' and f.state in ('failed', 'cancelled')
            limit 1
        ) n on true
        left join lateral (
            select f.job_id from {schema}.finished f where n.needs_id is null and f.job_id = b.key::uuid limit 1
        ) w on true
        where b.gate = 'dependency' and coalesce(n.needs_id, w.job_id) is not null
        order by b.since, b.job_id
        limit p_limit), p_limit, p_now) r;
end $$;

-- Returns the edges from these jobs to those that they depend on, the newest first; of each job, p_newest (null: all).
create or replace function {schema}.edges_of(p_jobs uuid[], p_newest int) returns table (job_id uuid, needs_id uuid, policy text)
language plpgsql stable {walk_indexes} as $$ #variable_conflict use_column
begin
    return query
    select d.job_id, d.needs_id, d.policy
    from unnest(p_jobs) j (id)
    cross join lateral (
        select x.job_id, x.needs_id, x.policy from {schema}.dependency x
        where x.job_id = j.id
        order by x.needs_id desc limit p_newest
    ) d;
end $$;

-- Returns how many jobs each of these depends on.
create or replace function {schema}.count_edges(p_jobs uuid[]) returns table (job_id uuid, edges bigint)
language plpgsql stable {walk_indexes} as $$ #variable_conflict use_column
begin
    return query
    select j.id, d.edges
    from unnest(p_jobs) j (id)
    cross join lateral (select count(*) as edges from {schema}.dependency x where x.job_id = j.id) d
    where d.edges > 0;
end $$;
