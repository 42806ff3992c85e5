-- Jobs that wait for other jobs: each watches the newest that has not ended, whose id is the key of its gate, so that the
-- end of one of 10,000 does not make the others be read.

-- Decides those of p_jobs that wait for others, and are not locked: the next job to wait for, ready, or its end by a policy. p_dead: an
-- edge may have failed although others have not ended. The last row, without a queue, has what ended, and what is watched.
create or replace function {schema}.decide_dependents(p_jobs uuid[], p_dead boolean, p_now timestamptz)
returns table (queue text, priority int, moved bigint, ended uuid[], watched uuid[])
language plpgsql volatile {walk_indexes} as $$ #variable_conflict use_column
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_paused  text[] := {blocked_kinds};
    v_job     record;
    v_why     text;
    v_free    uuid[] := '{}';
    v_ended   uuid[] := '{}';
    v_watched uuid[] := '{}';
begin
    for v_job in
        -- The limits and offsets make these look-ups for each, whatever the statistics say.
        select b.job_id, b.kind, b.key, b.run_at, w.needs_id as next_id, n.needs_id as dead_id, n.policy, n.state
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
            select d.needs_id, d.policy, f.state
            from {schema}.dependency d
            cross join lateral (select x.state from {schema}.finished x where x.job_id = d.needs_id limit 1) f
            where (p_dead or w.needs_id is null)
              and d.job_id = b.job_id and d.policy <> 'run' and f.state in ('failed', 'cancelled')
            order by d.policy desc, d.needs_id limit 1  -- to fail is more than to be cancelled
        ) n on true
    loop
        if v_job.dead_id is not null then
            v_why := 'job ' || {schema}.public_id(v_job.dead_id) || ', which it depends on, '
                     || case v_job.state when 'failed' then 'failed' else 'was cancelled' end;
            if v_job.policy = 'cancel' then
                perform {schema}.cancel_waiting(v_job.job_id, v_why, v_now);
            else
                perform {schema}.end_waiting(v_job.job_id, 'failed', jsonb_build_object(
                    'type', 'DependencyFailed', 'class', 'non_retryable', 'fingerprint', '{dependency_fingerprint}',
                    'message', v_why), v_now);
            end if;
            v_ended := v_ended || v_job.job_id;
        elsif v_job.next_id is null then
            if v_job.kind = any (v_paused) then
                update {schema}.blocked b
                set gate = 'paused', key = b.kind,
                    seq = case when b.run_at > v_now then null else {schema}.seq_at(v_now) end
                where b.job_id = v_job.job_id;
            end if;
            if v_job.kind <> all (v_paused) or v_job.run_at > v_now and v_job.kind <> all ({stopped_kinds}) then
                v_free := v_free || v_job.job_id;
            end if;
        elsif v_job.next_id::text <> v_job.key then
            update {schema}.blocked b set key = v_job.next_id::text where b.job_id = v_job.job_id;
            v_watched := v_watched || v_job.next_id;
        end if;
    end loop;
    if v_free <> '{}' then
        return query select u.queue, u.priority, u.moved, null::uuid[], null::uuid[] from {schema}.unblock(v_free, v_now) u;
    end if;
    return query
    select null::text, null::int, (cardinality(v_ended) + cardinality(v_watched))::bigint, v_ended, v_watched;
end $$;

-- Decides jobs that wait for those of p_ended that have ended; about p_limit at most.
create or replace function {schema}.release_dependents(p_ended uuid[], p_limit int, p_now timestamptz)
returns table (queue text, priority int, moved bigint, ended uuid[], watched uuid[])
language plpgsql volatile {walk_indexes} as $$ #variable_conflict use_column
declare
    v_ended uuid[];
    v_dead  uuid[];
begin
    select array_agg(f.job_id), array_agg(f.job_id) filter (where f.state in ('failed', 'cancelled'))
    into v_ended, v_dead
    from unnest(p_ended) e (id)
    cross join lateral (select x.job_id, x.state from {schema}.finished x where x.job_id = e.id limit 1) f;
    if v_ended is null then return; end if;
    if v_dead is not null then
        return query
        select d.* from {schema}.decide_dependents(array(
            select distinct n.job_id
            from unnest(v_dead) e (id)
            cross join lateral (
                select x.job_id from {schema}.dependency x
                where x.needs_id = e.id and x.policy <> 'run'
                  and exists (select 1 from {schema}.blocked b
                              where b.job_id = x.job_id and b.gate = 'dependency' offset 0)
                order by x.job_id limit p_limit
            ) n
            order by n.job_id limit p_limit), true, p_now) d;
    end if;
    return query
    select d.* from {schema}.decide_dependents(array(
        select w.job_id
        from unnest(v_ended) e (id)
        cross join lateral (
            select b.job_id from {schema}.blocked b where b.gate = 'dependency' and b.key = e.id::text
            order by b.job_id limit p_limit
        ) w
        limit p_limit), false, p_now) d;
end $$;

-- Decides all jobs that wait for others, p_limit at most: what a release could not do, because its worker died, or did
-- not know of them. Reads all of them.
create or replace function {schema}.unblock_dependents(p_limit int, p_now timestamptz)
returns table (queue text, priority int, moved bigint, ended uuid[], watched uuid[])
language plpgsql volatile {walk_indexes} as $$ #variable_conflict use_column
begin
    return query
    select d.* from {schema}.decide_dependents(array(
        select b.job_id from {schema}.blocked b
        where b.gate = 'dependency'
          and (exists (select 1 from {schema}.finished f where f.job_id = b.key::uuid offset 0)
               or exists (
                   select 1 from {schema}.dependency d
                   cross join lateral (select x.state from {schema}.finished x where x.job_id = d.needs_id limit 1) f
                   where d.job_id = b.job_id and d.policy <> 'run' and f.state in ('failed', 'cancelled')
                   offset 0))
        order by b.since, b.job_id
        limit p_limit), true, p_now) d;
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
