-- Queue levels: the order of their jobs, their heads, and estimates at a cost that does not grow with their jobs.

-- Returns the seq of a job that became due at p_at; see stores/order.py. Neither strict, nor immutable beyond what
-- `extract` is: then it could not be inlined.
create or replace function {schema}.seq_at(p_at timestamptz) returns bigint
language sql stable parallel safe as $$
    select case when p_at is not null then greatest((extract(epoch from p_at) * 1000000)::bigint, 1) end
$$;

-- Returns the queue levels that have jobs, of a tenant or of all: up to p_most. If there are more, `crowded`, those of
-- p_named and of the queues that kinds declare, up to a tenth of p_most of each: who may enqueue may invent any number.
create or replace function {schema}.queue_levels(
    p_tenant text, p_named text[], p_most int, out queues text[], out priorities int[], out crowded boolean
)
language plpgsql stable {walk_in_order} as $$
declare v_own text := case when p_tenant is null then 'r.kind <> ''''' else 'r.tenant = $1' end;
begin
    execute format(
        $sql$
        with recursive level as (
            (select r.queue, r.priority from {schema}.ready r where %1$s
             order by r.queue, r.priority, r.seq limit 1)
            union all
            select n.queue, n.priority
            from level l
            cross join lateral (
                select r.queue, r.priority from {schema}.ready r
                where %1$s and (r.queue, r.priority) > (l.queue, l.priority)
                order by r.queue, r.priority, r.seq limit 1
            ) n
        )
        select array_agg(l.queue), array_agg(l.priority) from (select * from level limit $2 + 1) l
        $sql$, v_own)
    using p_tenant, p_most into queues, priorities;
    crowded := coalesce(cardinality(queues), 0) > p_most;
    if crowded then
        execute format(
            $sql$
            select array_agg(n.queue), array_agg(l.priority)
            from (select unnest($3) collate "C" union select d.queue collate "C" from {schema}.kind_default d) n (queue)
            cross join lateral (
                with recursive level as (
                    (select r.priority from {schema}.ready r where %1$s and r.queue = n.queue
                     order by r.queue, r.priority, r.seq limit 1)
                    union all
                    select x.priority
                    from level l
                    cross join lateral (
                        select r.priority from {schema}.ready r
                        where %1$s and r.queue = n.queue and r.priority > l.priority
                        order by r.queue, r.priority, r.seq limit 1
                    ) x
                )
                select l.priority from level l limit $2 / 10
            ) l
            $sql$, v_own)
        using p_tenant, p_most, p_named into queues, priorities;
    end if;
end $$;

-- Returns since when a ready job has been due: a retried one since its last attempt, or the time that this set; claims
-- that were released or lost have set none. Attempts are found by claim, because the planner would walk all attempts by
-- their ids.
create or replace function {schema}.due_since(p_job uuid) returns timestamptz
language plpgsql stable {walk_in_order} as $$
begin
    return (select greatest(j.created_at, j.run_at,
                            (select max(coalesce(a.next_at, a.ended_at)) from {schema}.attempt a
                             where a.job_id = p_job
                               and a.outcome not in ('refused', 'released', 'lost')
                               and a.claim_id = (select max(b.claim_id) from {schema}.attempt b
                                                 where b.job_id = p_job
                                                   and b.outcome not in ('refused', 'released', 'lost'))))
            from {schema}.job j where j.id >= p_job and j.id <= p_job order by j.id limit 1);
end $$;

-- Returns since when the first job of each queue level has been due. If there are more than p_most levels, of those of
-- p_named; and, without a name, of the one that has been due the longest among others that were made first.
create or replace function {schema}.queue_level_heads(p_tenant text, p_named text[], p_most int)
returns table (queue text, priority int, due_at timestamptz)
language plpgsql stable {walk_in_order} as $$
declare
    v_levels record;
    v_job    uuid;
begin
    select * into v_levels from {schema}.queue_levels(p_tenant, p_named, p_most);
    for n in 1 .. coalesce(cardinality(v_levels.queues), 0) loop
        queue := v_levels.queues[n];
        priority := v_levels.priorities[n];
        if p_tenant is null then
            select r.job_id into v_job from {schema}.ready r
            where r.kind <> '' and r.queue = v_levels.queues[n] and r.priority = v_levels.priorities[n]
            order by r.queue, r.priority, r.seq limit 1;
        else
            select r.job_id into v_job from {schema}.ready r
            where r.tenant = p_tenant and r.queue = v_levels.queues[n] and r.priority = v_levels.priorities[n]
            order by r.tenant, r.queue, r.priority, r.seq limit 1;
        end if;
        due_at := {schema}.due_since(v_job);
        return next;
    end loop;
    if v_levels.crowded then
        if p_tenant is null then
            v_job := (select f.job_id
                      from (select r.job_id, r.seq, r.queue from {schema}.ready r order by r.job_id limit p_most) f
                      where f.queue <> all (coalesce(v_levels.queues, '{}')) order by f.seq limit 1);
        else
            v_job := (select f.job_id
                      from (select r.job_id, r.seq, r.queue from {schema}.ready r where r.tenant = p_tenant
                            order by r.tenant, r.queue, r.priority, r.seq limit p_most) f
                      where f.queue <> all (coalesce(v_levels.queues, '{}')) order by f.seq limit 1);
        end if;
        queue := '';
        priority := 0;
        due_at := {schema}.due_since(v_job);
        return next;
    end if;
end $$;

-- Returns the first seq of a queue level from p_at on, or the last one below it.
create or replace function {schema}.queue_level_seq(
    p_queue text, p_priority int, p_tenant text, p_at bigint, p_up boolean
) returns bigint
language plpgsql stable as $$
begin
    if p_tenant is null and p_up then
        return (select r.seq from {schema}.ready r
                where r.kind <> '' and r.queue = p_queue and r.priority = p_priority and r.seq >= p_at
                order by r.queue, r.priority, r.seq limit 1);
    elsif p_tenant is null then
        return (select r.seq from {schema}.ready r
                where r.kind <> '' and r.queue = p_queue and r.priority = p_priority and r.seq < p_at
                order by r.queue desc, r.priority desc, r.seq desc limit 1);
    elsif p_up then
        return (select r.seq from {schema}.ready r
                where r.tenant = p_tenant and r.queue = p_queue and r.priority = p_priority and r.seq >= p_at
                order by r.tenant, r.queue, r.priority, r.seq limit 1);
    else
        return (select r.seq from {schema}.ready r
                where r.tenant = p_tenant and r.queue = p_queue and r.priority = p_priority and r.seq < p_at
                order by r.tenant desc, r.queue desc, r.priority desc, r.seq desc limit 1);
    end if;
end $$;

-- Counts the jobs of a queue level by kind whose seqs are in one of some ranges, each weighted by its range, with the
-- sum of the squares of what each range comes to.
create or replace function {schema}.count_in_windows(
    p_queue text, p_priority int, p_tenant text, p_lows bigint[], p_highs bigint[], p_weights double precision[])
returns table (kind text, jobs double precision, squares double precision, seen bigint)
language plpgsql stable as $$
begin
    return query
    select f.kind::text, sum(f.jobs * f.weight), sum((f.jobs * f.weight)^2), sum(f.jobs)::bigint
    from (
        select w.n, w.weight, x.kind, count(*) as jobs
        from unnest(p_lows, p_highs, p_weights) with ordinality w (low, high, weight, n)
        cross join lateral (
            select r.kind from {schema}.ready r
            where p_tenant is null and r.kind <> '' and r.queue = p_queue and r.priority = p_priority
              and r.seq >= w.low and r.seq <= w.high
            order by r.queue, r.priority, r.seq offset 0) x
        group by w.n, w.weight, x.kind
        union all
        select w.n, w.weight, x.kind, count(*)
        from unnest(p_lows, p_highs, p_weights) with ordinality w (low, high, weight, n)
        cross join lateral (
            select r.kind from {schema}.ready r
            where r.tenant = p_tenant and r.queue = p_queue and r.priority = p_priority
              and r.seq >= w.low and r.seq <= w.high
            order by r.tenant, r.queue, r.priority, r.seq offset 0) x
        group by w.n, w.weight, x.kind
    ) f
    group by f.kind;
end $$;

-- Estimates the jobs of a queue level by kind from windows. Wide gaps are cut out first: the level is split at the
-- middle of its seqs again and again, and each part begins and ends with a job. In a part, each window opens at a
-- random point of its own stretch, the first one perhaps before the part begins, so that every job is equally likely to
-- be seen. Windows are widened until they show enough; if they show all, `windows` is 0.
create or replace function {schema}.sample_queue_level(p_queue text, p_priority int, p_tenant text, p_windows int)
returns table (kind text, jobs double precision, squares double precision, seen bigint, windows int)
language plpgsql stable {walk_in_order} as $$
declare
    v_cuts   int := greatest(floor(log(2, p_windows / 16.0)), 2);
    v_width  bigint := 4;
    v_lows   bigint[];
    v_highs  bigint[];
    v_length bigint;
    v_found  jsonb;
    v_seen   bigint;
    v_opened int;
begin
    with recursive part as (
        select 0 as depth, {schema}.queue_level_seq(p_queue, p_priority, p_tenant, -(2^62)::bigint, true) as low,
               {schema}.queue_level_seq(p_queue, p_priority, p_tenant, (2^62)::bigint, false) as high
        union all
        select p.depth + 1, h.low, h.high
        from part p
        cross join lateral (
            values (p.low, {schema}.queue_level_seq(p_queue, p_priority, p_tenant, (p.low + p.high + 1) / 2, false)),
                   ({schema}.queue_level_seq(p_queue, p_priority, p_tenant, (p.low + p.high + 1) / 2, true), p.high)
        ) h (low, high)
        where p.depth < v_cuts and p.high - p.low >= 100
    )
    select array_agg(p.low), array_agg(p.high), sum(p.high - p.low + 1) into v_lows, v_highs, v_length
    from part p
    where p.low is not null and (p.depth = v_cuts or p.high - p.low < 100);
    while v_length > 0 loop
        select jsonb_agg(x), coalesce(sum(x.seen), 0), max(cardinality(w.lows)) into v_found, v_seen, v_opened
        from (
            select array_agg(greatest(a.at, p.low)) as lows,
                   array_agg(case when c.whole then p.high else least(a.at + v_width - 1, p.high) end) as highs,
                   array_agg(case when c.whole then 1 else c.starts::float8 / (c.windows * v_width) end) as weights
            from unnest(v_lows, v_highs) p (low, high)
            cross join lateral (
                select p.high - p.low + v_width as starts,
                       ceil(p_windows * (p.high - p.low + 1)::float8 / v_length)::bigint as windows,
                       v_width * p_windows >= v_length as whole
            ) c
            cross join lateral (
                select case when c.whole then p.low
                            else p.low - v_width + 1 + floor((n + random()) * c.starts / c.windows)::bigint end as at
                from generate_series(0, case when c.whole then 0 else c.windows - 1 end) n
            ) a
        ) w
        cross join lateral {schema}.count_in_windows(p_queue, p_priority, p_tenant, w.lows, w.highs, w.weights) x;
        exit when v_seen >= p_windows or v_width * p_windows >= v_length;
        v_width := v_width * least(greatest(p_windows / greatest(v_seen, 1) + 1, 2), 16);
    end loop;
    return query
    select f.kind, f.jobs, f.squares, f.seen, case when v_width * p_windows >= v_length then 0 else v_opened end
    from jsonb_to_recordset(v_found) f (kind text, jobs double precision, squares double precision, seen bigint);
end $$;
