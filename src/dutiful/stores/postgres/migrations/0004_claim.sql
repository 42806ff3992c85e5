-- How workers find jobs and take them.

-- Every line that has a job of p_kinds, and its first one's seq: one walk over the heads of the lines.
create function {schema}.peek(p_kinds text[])
returns table (queue text, priority int, seq bigint)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    with recursive head as (
        (select r.queue, r.priority, r.seq from {schema}.ready r order by r.queue, r.priority, r.seq limit 1)
        union all
        select n.queue, n.priority, n.seq
        from head h, lateral (
            select r.queue, r.priority, r.seq from {schema}.ready r
            where (r.queue, r.priority) > (h.queue, h.priority)
            order by r.queue, r.priority, r.seq limit 1
        ) n
    )
    select h.queue::text, h.priority, f.seq
    from head h, lateral (
        select r.seq from {schema}.ready r
        where r.queue = h.queue and r.priority = h.priority and r.seq >= h.seq and r.kind = any (p_kinds)
        order by r.seq limit 1
    ) f;
end $$;

-- Lock up to p_limit jobs of these tenants, in order of the lines. What several tenants have too many of stays locked
-- until the end of the claim, and nobody waits for it.
create function {schema}.lock_of_tenants(
    p_tenants text[], p_queues text[], p_priorities int[], p_floors bigint[], p_kinds text[], p_limit int
) returns tid[]
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
    return array(
        select r.tid
        from unnest(p_queues, p_priorities, p_floors) with ordinality as l (queue, priority, floor, ord)
        cross join lateral (
            select h.tid
            from unnest(p_tenants) t (tenant)
            cross join lateral (
                select x.ctid as tid, x.seq from {schema}.ready x
                where x.tenant = t.tenant and x.queue = l.queue and x.priority = l.priority and x.seq > l.floor
                  and x.crashes = 0 and x.kind = any (p_kinds)
                order by x.seq
                limit p_limit
                for update skip locked
            ) h
            order by h.seq
            limit p_limit
        ) r
        limit p_limit);
end $$;

-- Take jobs from lines, in their order, each beyond its floor: dead index entries below it are never scanned.
-- p_tenants: only jobs of these; null: anybody's, even nobody's.
create function {schema}.claim(
    p_worker uuid, p_lane text, p_queues text[], p_priorities int[], p_floors bigint[], p_kinds text[],
    p_limit int, p_suspects int, p_lease interval, p_tenants text[], p_now timestamptz
) returns table (
    job_id uuid, claim_id bigint, attempt int, crashes int, seq bigint, kind text, queue text, payload jsonb,
    priority int, max_attempts int, tenant text, correlation_id text, parent_id uuid, subject jsonb, options jsonb,
    waited double precision
)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_kinds  text[] := p_kinds;
    v_queues text[] := p_queues;
    v_tids   tid[];
    v_more   tid[];
begin
    if exists (select 1 from {schema}.pause) then
        if exists (select 1 from {schema}.pause where scope = 'lane' and name in (p_lane, '*')) then
            return;
        end if;
        v_kinds := array(select k from unnest(p_kinds) k
                         where not exists (select 1 from {schema}.pause where scope in ('kind', 'breaker') and name = k));
        v_queues := array(select case when exists (select 1 from {schema}.pause where scope = 'queue' and name = q)
                                      then null else q end
                          from unnest(p_queues) with ordinality u (q, o) order by o);
    end if;

    if p_tenants is not null then
        v_tids := {schema}.lock_of_tenants(p_tenants, v_queues, p_priorities, p_floors, v_kinds, p_limit);
    elsif p_limit > 0 then
        v_tids := array(
            select r.tid
            from unnest(v_queues, p_priorities, p_floors) with ordinality as l (queue, priority, floor, ord)
            cross join lateral (
                select x.ctid as tid from {schema}.ready x
                where x.queue = l.queue and x.priority = l.priority and x.seq > l.floor
                  and x.crashes = 0 and x.kind = any (v_kinds)
                order by x.seq
                limit p_limit
                for update skip locked
            ) r
            limit p_limit);
    end if;
    if p_suspects > 0 and exists (select 1 from {schema}.ready x where x.crashes > 0) then
        -- A job that was there when a worker died is taken one at a time, so that it condemns no neighbour.
        v_more := array(
            select r.tid
            from unnest(v_queues, p_priorities) with ordinality as l (queue, priority, ord)
            cross join lateral (
                select x.ctid as tid from {schema}.ready x
                where x.queue = l.queue and x.priority = l.priority and x.crashes > 0 and x.kind = any (v_kinds)
                  and (p_tenants is null or x.tenant = any (p_tenants))
                order by x.seq
                limit p_suspects
                for update skip locked
            ) r
            limit p_suspects);
        v_tids := v_tids || v_more;
    end if;
    if v_tids is null or cardinality(v_tids) = 0 then
        return;
    end if;

    return query
    with taken as (
        delete from {schema}.ready x where x.ctid = any (v_tids)
        returning x.job_id, x.seq, x.attempt, x.crashes
    ), leased as (
        insert into {schema}.lease (job_id, claim_id, worker_id, seq, claimed_at, expires_at, attempt, crashes)
        select t.job_id, nextval('{schema}.claim_seq'), p_worker, t.seq, v_now, v_now + p_lease, t.attempt + 1, t.crashes
        from taken t
        returning job_id, claim_id, attempt, crashes, seq
    ), freed as (
        -- Never waited for: somebody's open transaction may hold one. What is skipped counts as free from now on.
        delete from {schema}.unique_key u
        where u.ctid = any (array(
            select k.ctid from {schema}.unique_key k
            where k.scope = 'queued' and k.job_id = any (array(select t.job_id from taken t))
            for update skip locked))
    )
    select l.job_id, l.claim_id, l.attempt, l.crashes, l.seq, j.kind, j.queue, j.payload,
           j.priority, j.max_attempts, j.tenant, j.correlation_id, j.parent_id, j.subject, j.options,
           greatest(extract(epoch from v_now - greatest(j.created_at, j.run_at))::float8, 0)
    from leased l
    -- With its limit this is a look-up by id, whatever the planner believes of the table.
    cross join lateral (select x.* from {schema}.job x where x.id = l.job_id limit 1) j;
end $$;
