-- The gates before which jobs are blocked: pauses and other jobs.

-- Take jobs out of `blocked`, to their line or their time. What has a place in line goes back to it; the others become
-- ready only now.
create function {schema}.admit(p_jobs uuid[], p_now timestamptz)
returns table (queue text, priority int, moved bigint)
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query
    with free as (
        delete from {schema}.blocked b where b.job_id = any (p_jobs) returning b.*
    ), in_order as (
        select f.*, coalesce(f.seq, nextval('{schema}.ready_seq')) as place
        from (select * from free order by seq, since, job_id) f
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, priority, attempt, crashes, queue, kind, tenant)
        select o.place, o.job_id, o.priority, o.attempt, o.crashes, o.queue, o.kind, o.tenant
        from in_order o where o.run_at is null or o.run_at <= v_now
    ), to_scheduled as (
        insert into {schema}.scheduled (run_at, job_id, priority, attempt, crashes, queue, kind, tenant)
        select o.run_at, o.job_id, o.priority, o.attempt, o.crashes, o.queue, o.kind, o.tenant
        from in_order o where o.run_at > v_now
    )
    select o.queue::text, o.priority, count(*) from in_order o group by o.queue, o.priority;
end $$;

-- The jobs of kinds that are paused, or whose breaker is open, leave the lines, so that nobody scans past them; each
-- remembers its place. That is a walk along all lines; says how many jobs there were.
create function {schema}.shut(p_kinds text[], p_limit int, p_now timestamptz) returns bigint
language plpgsql volatile
as $$
declare
    v_moved bigint;
begin
    with stopped as (
        delete from {schema}.ready r
        where r.ctid = any (array(
            select x.ctid from {schema}.ready x where x.kind = any (p_kinds) limit p_limit for update skip locked))
        returning r.*
    )
    insert into {schema}.blocked
        (job_id, since, run_at, seq, priority, attempt, crashes, gate, key, queue, kind, tenant)
    select s.job_id, coalesce(p_now, clock_timestamp()), null, s.seq, s.priority, s.attempt, s.crashes, 'paused', s.kind,
           s.queue, s.kind, s.tenant
    from stopped s;
    get diagnostics v_moved = row_count;
    return v_moved;
end $$;

-- What has become due while its kind is paused gets its place in line, as if it stood there; says how many jobs.
create function {schema}.place_due(p_limit int, p_now timestamptz) returns bigint
language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_jobs   uuid[];
    v_placed bigint := 0;
begin
    v_jobs := array(
        select b.job_id from {schema}.blocked b
        where b.gate = 'paused' and b.seq is null and b.run_at <= v_now
        order by b.run_at, b.job_id
        limit p_limit
        for update skip locked);
    if cardinality(v_jobs) > 0 then
        update {schema}.blocked b set seq = d.seq
        from (select j.id, nextval('{schema}.ready_seq') as seq from unnest(v_jobs) j (id)) d
        where b.job_id = d.id;
        get diagnostics v_placed = row_count;
    end if;
    return v_placed;
end $$;

-- The jobs of kinds that are paused no more, and whose breaker is closed, leave `blocked`, the first in line first.
create function {schema}.reopen(p_limit int, p_now timestamptz)
returns table (queue text, priority int, moved bigint)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_jobs  uuid[];
    v_kinds text[];
begin
    -- Kind by kind, so that nobody walks past all the jobs whose gate stays shut.
    v_kinds := array(
        with recursive waits as (
            (select b.key from {schema}.blocked b where b.gate = 'paused' order by b.key limit 1)
            union all
            select n.key
            from waits w, lateral (
                select b.key from {schema}.blocked b where b.gate = 'paused' and b.key > w.key order by b.key limit 1
            ) n
        )
        select w.key from waits w
        -- Its offset makes this a look-up for each, however many are paused.
        where not exists (select 1 from {schema}.pause p
                          where p.scope in ('kind', 'breaker', 'probing') and p.name = w.key offset 0));
    v_jobs := array(
        select b.job_id
        from unnest(v_kinds) k
        cross join lateral (
            select x.job_id, x.seq from {schema}.blocked x
            where x.gate = 'paused' and x.key = k
            order by x.seq
            limit p_limit
            for update skip locked
        ) b
        order by b.seq
        limit p_limit);
    if cardinality(v_jobs) > 0 then
        return query select * from {schema}.admit(v_jobs, v_now);
    end if;
end $$;

-- Of the jobs that wait for others, those that may run leave `blocked`, and those that never can are cancelled. That is
-- a walk along all of them.
create function {schema}.sweep_needs(p_limit int, p_now timestamptz)
returns table (queue text, priority int, moved bigint)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_jobs uuid[];
    v_dead record;
begin
    for v_dead in
        select b.job_id, f.job_id as needs_id, f.state
        from {schema}.blocked b
        join {schema}.dependency d on d.job_id = b.job_id
        join {schema}.finished f on f.job_id = d.needs_id and f.state in ('failed', 'cancelled')
        where b.gate = 'dependency'
        limit p_limit
        for update of b skip locked
    loop
        perform {schema}.cancel_waiting(
            v_dead.job_id,
            'job ' || v_dead.needs_id || ', which it depends on, '
                   || case v_dead.state when 'failed' then 'failed' else 'was cancelled' end, v_now);
    end loop;

    v_jobs := array(
        select b.job_id from {schema}.blocked b
        where b.gate = 'dependency'
          and not exists (
              select 1 from {schema}.dependency d
              where d.job_id = b.job_id
                and not exists (select 1 from {schema}.finished f
                                where f.job_id = d.needs_id and f.state in ('completed', 'completed_with_errors')))
        order by b.since, b.job_id
        limit p_limit
        for update skip locked);
    if cardinality(v_jobs) > 0 then
        -- Its kind may have been paused while it waited.
        update {schema}.blocked b
        set gate = 'paused', key = b.kind, seq = case when b.run_at > v_now then null else d.seq end
        from (select j.id, nextval('{schema}.ready_seq') as seq from unnest(v_jobs) j (id)) d
        where b.job_id = d.id
          and exists (select 1 from {schema}.pause p
                      where p.scope in ('kind', 'breaker', 'probing') and p.name = b.kind);
        return query select * from {schema}.admit(
            array(select b.job_id from {schema}.blocked b where b.job_id = any (v_jobs) and b.gate = 'dependency'), v_now);
    end if;
end $$;
