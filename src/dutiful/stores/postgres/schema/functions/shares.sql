-- Fair shares: which tenants have jobs in which queue levels, and claims of so many of each.

-- Returns queue levels of tenants after a place, in the order of tenants, with the first job's seq in each; null: none of
-- these kinds and queues. It steps from one level of a tenant to the next, so that the number of jobs does not matter, and
-- to the next tenant after p_each levels: those after the one that p_within names for a tenant, or the first ones.
-- Then the levels with jobs that have none; they have no index of their own, which all other jobs would pay for, and are
-- searched for among the p_window after p_floors and p_ids. If all these are others, the last has the weight 0: the next
-- search begins there. A last row without a queue says that there are suspects.
create or replace function {schema}.look_at_tenants(
    p_lane text, p_queues text[], p_kinds text[], p_tenants text[], p_tenant text, p_queue text, p_priority int,
    p_steps int, p_each int, p_within jsonb, p_level_queues text[], p_level_priorities int[], p_floors bigint[], p_ids uuid[], p_window int
) returns table (tenant text, queue text, priority int, seq bigint, weight int, job_id uuid)
language plpgsql stable {walk_in_order} as $$ #variable_conflict use_column
declare
    v_paused text[] := array(select p.name from {schema}.pause p where p.scope = 'queue');
    v_kinds  text[];
begin
    if exists (select 1 from {schema}.pause where scope = 'lane' and name in (p_lane, '*')) then
        return;
    end if;
    return query
    with recursive level as (
        -- The place before the first, which is left out below.
        select coalesce(p_tenant, '') as tenant, coalesce(p_queue, '') collate "C" as queue,
               coalesce(p_priority, 0) as priority, case when p_tenant is null then p_each else 0 end as seen
        union all
        select n.tenant, n.queue, n.priority, n.seen
        from level l, lateral (
            (select r.tenant, r.queue, r.priority, l.seen + 1 as seen from {schema}.ready r
             where l.seen < p_each and r.tenant = l.tenant and (r.queue, r.priority) > (l.queue, l.priority)
             order by r.tenant, r.queue, r.priority limit 1)
            union all
            (select t.tenant, f.queue, f.priority, 1
             from (select r.tenant from {schema}.ready r where r.tenant > l.tenant
                   order by r.tenant, r.queue, r.priority limit 1) t
             cross join lateral (
                 (select r.queue, r.priority from {schema}.ready r
                  where r.tenant = t.tenant
                    and (r.queue, r.priority) > (p_within -> t.tenant ->> 0, (p_within -> t.tenant ->> 1)::int)
                  order by r.tenant, r.queue, r.priority limit 1)
                 union all
                 (select r.queue, r.priority from {schema}.ready r where r.tenant = t.tenant
                  order by r.tenant, r.queue, r.priority limit 1)
                 limit 1
             ) f)
            limit 1
        ) n
    )
    select l.tenant, l.queue::text, l.priority, f.seq,
           coalesce((select s.weight from {schema}.share s where s.tenant = l.tenant), 1),
           '00000000-0000-0000-0000-000000000000'::uuid
    from (select * from level offset 1 limit p_steps) l
    left join lateral (
        select x.seq from {schema}.ready x
        where x.tenant = l.tenant and x.queue = l.queue and x.priority = l.priority
          and x.crashes = 0 and x.kind = any (p_kinds)
          and (p_queues is null or l.queue = any (p_queues)) and l.queue <> all (v_paused)
          and (p_tenants is null or l.tenant = any (p_tenants))
        order by x.seq limit 1
    ) f on true;
    if p_tenants is null then
        -- Not those that are paused, which would hide others behind them.
        v_kinds := array(select k from unnest(p_kinds) k
                         where not exists (select 1 from {schema}.pause where scope in ('kind', 'breaker') and name = k));
        return query
        select null::text, l.queue, l.priority, f.seq, f.wanted::int, f.job_id
        from unnest(p_level_queues, p_level_priorities, p_floors, p_ids) as l (queue, priority, floor, id)
        cross join lateral (
            select w.seq, w.job_id, w.wanted
            from (
                select x.seq, x.job_id, x.tenant is null and x.kind = any (v_kinds) as wanted,
                       row_number() over (order by x.seq, x.job_id) as place
                from {schema}.ready x
                where x.queue = l.queue and x.priority = l.priority and (x.seq, x.job_id) > (l.floor, l.id)
                  and x.crashes = 0 and x.kind <> ''
                order by x.seq, x.job_id limit p_window
            ) w
            where w.wanted or w.place = p_window
            order by w.seq, w.job_id limit 1
        ) f
        where l.queue <> all (v_paused);
    end if;
    if exists (select 1 from {schema}.ready x where x.crashes > 0) then
        return query select null::text, null::text, null::int, null::bigint, null::int, null::uuid;
    end if;
end $$;

-- Claims so many jobs of each tenant in a queue level, from a seq on; of a null tenant, those among the next p_window from
-- this seq and id on.
create or replace function {schema}.claim_shares(
    p_worker uuid, p_lane text, p_tenants text[], p_queues text[], p_priorities int[], p_floors bigint[],
    p_counts int[], p_ids uuid[], p_kinds text[], p_lease interval, p_window int, p_now timestamptz
) returns table (
    {claim_types}
)
language plpgsql volatile {walk_in_order} as $$ #variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_kinds  text[];
    v_paused text[];
    v_tids   tid[];
begin
    if exists (select 1 from {schema}.pause where scope = 'lane' and name in (p_lane, '*')) then
        return;
    end if;
    v_paused := array(select p.name from {schema}.pause p where p.scope = 'queue');
    v_kinds := array(select k from unnest(p_kinds) k
                     where not exists (select 1 from {schema}.pause where scope in ('kind', 'breaker') and name = k));
    v_tids := array(
        select r.tid
        from unnest(p_tenants, p_queues, p_priorities, p_floors, p_counts) t (tenant, queue, priority, floor, count)
        cross join lateral (
            select x.ctid as tid from {schema}.ready x
            where x.tenant = t.tenant and x.queue = t.queue and x.priority = t.priority and x.seq >= t.floor
              and x.crashes = 0 and x.kind = any (v_kinds)
            order by x.seq, x.job_id
            limit t.count
            for update skip locked
        ) r
        where t.queue <> all (v_paused));
    if array_position(p_tenants, null) is not null then
        v_tids := v_tids || array(
            select r.tid
            from unnest(p_tenants, p_queues, p_priorities, p_floors, p_counts, p_ids)
                     t (tenant, queue, priority, floor, count, id)
            cross join lateral (
                select w.tid from (
                    select x.ctid as tid, x.tenant, x.kind from {schema}.ready x
                    where x.queue = t.queue and x.priority = t.priority and (x.seq, x.job_id) >= (t.floor, t.id)
                      and x.crashes = 0 and x.kind <> ''
                    order by x.seq, x.job_id
                    limit p_window
                    for update skip locked
                ) w
                where w.tenant is null and w.kind = any (v_kinds)
                limit t.count
            ) r
            where t.tenant is null and t.queue <> all (v_paused));
    end if;
    if cardinality(v_tids) = 0 then return; end if;

    -- Now, because a limit counts as a start what was claimed after it was admitted, which may have been meanwhile.
    v_now := coalesce(p_now, clock_timestamp());

    return query
    {take_ready}
end $$;
