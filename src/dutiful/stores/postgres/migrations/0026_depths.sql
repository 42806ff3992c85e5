-- How many jobs wait and run, and have ended, at a cost that does not grow with them.

-- To count the jobs of one tenant, as blocked_tenant does; a job that has none pays nothing for it.
create index scheduled_tenant on {schema}.scheduled (tenant) where tenant is not null;

-- What was seen of a queue's jobs of one kind: for how many those stand that were seen, the sum of the squares of what
-- each window stands for, how many were seen, and through how many windows one looked (0: all were counted).
create type {schema}.share as (
    queue text, kind text, jobs double precision, squares double precision, seen bigint, windows int
);

-- What stands in a place, judged by some of its pages: p_pages or, if few rows are on those, up to four times as many.
-- Each is taken at random from a stretch of its own, lest their distance be that of what comes in batches.
create function {schema}.sample_place(p_place text, p_tenant text, p_pages int) returns {schema}.share[]
language plpgsql stable
set enable_seqscan = off set jit = off
as $$
declare
    v_pages bigint := pg_relation_size(format('{schema}.%I', p_place)) / current_setting('block_size')::bigint;
    v_read  int := p_pages;
    v_step  double precision;
    v_found double precision;
    v_rows  {schema}.share[];
begin
    loop
        v_step := greatest(v_pages::float8 / v_read, 1);
        -- Its offset keeps the sub-select to itself, so that each page is read as a range of row addresses.
        execute format(
            $sql$
            select array_agg(row(s.*)::{schema}.share), sum(s.jobs)
            from (
                select f.queue, f.kind, sum(f.jobs) * $2 as jobs, sum(f.jobs * f.jobs) * $2 * $2, sum(f.jobs),
                       case when $2 > 1 then $3 else 0 end
                from (
                    select p.n, x.queue, x.kind, count(*) as jobs
                    from (select n, format('(%%s,0)', n)::tid as low, format('(%%s,0)', n + 1)::tid as high
                          from (select floor((i + case when $2 > 1 then random() else 0 end) * $2)::bigint as n
                                from generate_series(0, $3 - 1) i) n
                          where n < $4) p
                    cross join lateral (
                        select t.queue, t.kind from {schema}.%I t
                        where t.ctid >= p.low and t.ctid < p.high and ($1 is null or t.tenant = $1)
                        offset 0
                    ) x
                    group by p.n, x.queue, x.kind
                ) f
                group by f.queue, f.kind
            ) s
            $sql$, p_place)
        using p_tenant, v_step, v_read, v_pages into v_rows, v_found;
        exit when v_found / v_step >= 3000 or v_step = 1 or v_read >= 4 * p_pages;
        v_read := 4 * v_read;
    end loop;
    return coalesce(v_rows, array[]::{schema}.share[]);
end $$;

-- How many jobs of each queue and kind stand in a place, exactly if there are up to p_exact.
create function {schema}.place_depths(p_place text, p_tenant text, p_exact int, p_pages int) returns setof {schema}.share
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
    v_sample {schema}.share[];
    v_looked bigint;
    v_guess  double precision;
begin
    if p_tenant is null
       and pg_relation_size(format('{schema}.%I', p_place)) > p_pages * current_setting('block_size')::bigint then
        v_sample := {schema}.sample_place(p_place, null, p_pages);
        v_guess := (select coalesce(sum(s.jobs), 0) from unnest(v_sample) s);
    end if;
    -- A sample may err: what might be few is counted, along an index, for a table may have few rows on many pages.
    if v_guess is null or v_guess <= 1.5 * p_exact then
        v_sample := null;
        execute format('select count(*) from (select 1 from {schema}.%I t where %s limit $2) s', p_place,
                       case when p_tenant is null then 'true' else 't.tenant = $1' end)
        using p_tenant, p_exact + 1 into v_looked;
        if v_looked > p_exact then
            v_sample := {schema}.sample_place(p_place, p_tenant, p_pages);
        end if;
    end if;
    if v_sample is null then
        return query execute format(
            'select t.queue::text, t.kind::text, count(*)::float8, 0::float8, count(*), 0 '
            'from {schema}.%I t where %s group by 1, 2',
            p_place, case when p_tenant is null then 'true' else 't.tenant = $1' end)
        using p_tenant;
    else
        return query select s.* from unnest(v_sample) s;
    end if;
end $$;

-- How many jobs of each queue and kind are ready: exactly if there are up to p_exact, or where a line has up to p_short
-- or, of many lines, its share of p_exact. Up to 24 longer lines are sampled each by itself; of more, the pages of all
-- are, for to look at each line costs more the more of them there are. Otherwise along the indexes of their lines, for
-- a table from which many were taken may have few on many pages. What was sampled together has one number, `view`.
create function {schema}.ready_depths(p_tenant text, p_exact int, p_short int, p_windows int, p_pages int)
returns table (view int, queue text, kind text, jobs double precision, squares double precision, seen bigint,
               windows int)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
#variable_conflict use_column
declare
    v_own        text := case when p_tenant is null then '' else 'r.tenant = $1 and' end;
    v_queues     text[];
    v_priorities int[];
    v_few        int;
    v_long       bigint[];
    v_is_long    boolean[];
    v_looked     {schema}.share[];
    v_seen       bigint;
begin
    execute format(
        $sql$
        with recursive line as (
            (select r.queue, r.priority from {schema}.ready r where %1$s true
             order by r.queue, r.priority, r.seq limit 1)
            union all
            select n.queue, n.priority
            from line l
            cross join lateral (
                select r.queue, r.priority from {schema}.ready r
                where %1$s (r.queue, r.priority) > (l.queue, l.priority)
                order by r.queue, r.priority, r.seq limit 1
            ) n
        )
        select array_agg(l.queue), array_agg(l.priority) from line l
        $sql$, v_own)
    using p_tenant into v_queues, v_priorities;
    -- Its limit ends the walk, in whichever line that is.
    execute format(
        $sql$
        select array_agg(row(s.queue, s.kind, s.jobs, 0, s.jobs, 0)::{schema}.share), sum(s.jobs)
        from (
            select x.queue, x.kind, count(*) as jobs
            from (
                select l.queue, k.kind
                from unnest($2, $3) l (queue, priority)
                cross join lateral (
                    select r.kind from {schema}.ready r
                    where %s r.queue = l.queue and r.priority = l.priority
                    order by r.queue, r.priority, r.seq limit $4
                ) k
                limit $4
            ) x
            group by x.queue, x.kind
        ) s
        $sql$, v_own)
    using p_tenant, v_queues, v_priorities, p_exact + 1 into v_looked, v_seen;
    if v_seen is null or v_seen <= p_exact then
        return query select 0, f.* from unnest(v_looked) f;
        return;
    end if;
    v_few := greatest(least(p_short, p_exact / cardinality(v_queues)), 1);
    execute format(
        $sql$
        select array_agg(row(s.queue, s.kind, s.jobs, 0, s.jobs, 0)::{schema}.share), array_agg(s.is_long),
               array_agg(distinct s.line) filter (where s.is_long)
        from (
            select l.line, l.queue, k.kind, count(*) as jobs, sum(count(*)) over (partition by l.line) > $4 as is_long
            from unnest($2, $3) with ordinality l (queue, priority, line)
            cross join lateral (
                select r.kind from {schema}.ready r
                where %s r.queue = l.queue and r.priority = l.priority
                order by r.queue, r.priority, r.seq limit $4 + 1
            ) k
            group by l.line, l.queue, k.kind
        ) s
        $sql$, v_own)
    using p_tenant, v_queues, v_priorities, v_few into v_looked, v_is_long, v_long;
    if cardinality(v_long) <= 24 then
        return query
        select 0, f.queue, f.kind, sum(f.jobs), 0::float8, sum(f.seen)::bigint, 0
        from unnest(v_looked, v_is_long) f (queue, kind, jobs, squares, seen, windows, is_long)
        where not f.is_long
        group by f.queue, f.kind
        union all
        select l.line::int, v_queues[l.line], s.kind, s.jobs, s.squares, s.seen, s.windows
        from unnest(v_long) l (line)
        cross join lateral {schema}.sample_line(
            v_queues[l.line], v_priorities[l.line], p_tenant, p_windows / cardinality(v_long)) s;
    else
        return query
        with share as (
            select f.is_long, false as is_page, f.queue, f.kind, f.jobs, f.squares, f.seen, f.windows
            from unnest(v_looked, v_is_long) f (queue, kind, jobs, squares, seen, windows, is_long)
            union all
            select false, true, s.queue, s.kind, s.jobs, s.squares, s.seen, s.windows
            from unnest({schema}.sample_place('ready', p_tenant, p_pages)) s
        ), marked as (
            -- By a window, for a join would have to know how many there are.
            select bool_or(s.is_long) over (partition by s.queue) as is_long, s.is_page, s.queue, s.kind, s.jobs,
                   s.squares, s.seen, s.windows
            from share s
        )
        -- What was seen first in a line is there, though no page may have shown it.
        select m.is_long::int, m.queue, m.kind, coalesce(sum(m.jobs) filter (where m.is_page = m.is_long), 0),
               sum(m.squares), max(m.seen), max(max(m.windows)) over (partition by m.is_long)
        from marked m
        where m.is_long or not m.is_page
        group by m.is_long, m.queue, m.kind;
    end if;
end $$;

-- How many jobs run, of each that is looked up to know its queue: all up to p_exact, of more each with the same chance.
-- Along an index, there are as many leases as jobs that run; on the table's pages there may be those of a million that
-- ran before.
create function {schema}.running_depths(p_tenant text, p_exact int) returns setof {schema}.share
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan
as $$
declare
    v_leases bigint := (select count(*) from {schema}.lease);
    v_weight double precision := greatest(v_leases::float8 / p_exact, 1);
    v_looked int := case when v_weight > 1 then v_leases else 0 end;
begin
    return query
    select j.queue, j.kind, count(*) * v_weight, count(*) * v_weight * v_weight, count(*), v_looked
    from (select l.job_id from {schema}.lease l where v_weight = 1 or random() * v_weight < 1 order by l.job_id) l
    cross join lateral (select x.queue, x.kind, x.tenant from {schema}.job x where x.id = l.job_id limit 1) j
    where p_tenant is null or j.tenant = p_tenant
    group by j.queue, j.kind;
end $$;

-- How many jobs wait and run, by queue, kind and place; of one tenant, or of all. Those of a tenant may each be on a
-- page of its own, so fewer of them are counted one by one.
create function {schema}.depths(p_tenant text)
returns table (state text, view int, queue text, kind text, jobs double precision, squares double precision,
               seen bigint, windows int)
language sql stable as $$
    with asked as (select case when p_tenant is null then 10000 else 5000 end as exact)
    select p.place, 0, d.queue, d.kind, d.jobs, d.squares, d.seen, d.windows
    from asked a
    cross join unnest(array['scheduled', 'blocked']) p (place)
    cross join lateral {schema}.place_depths(p.place, p_tenant, a.exact, 250) d
    union all
    select 'ready', d.view, d.queue, d.kind, d.jobs, d.squares, d.seen, d.windows
    from asked a
    cross join lateral {schema}.ready_depths(p_tenant, a.exact, 500, 384, 250) d
    union all
    select 'running', 0, d.queue, d.kind, d.jobs, d.squares, d.seen, d.windows
    from {schema}.running_depths(p_tenant, 20000) d
$$;

-- How many jobs have been running for longer.
create function {schema}.count_stuck(p_after interval, p_now timestamptz) returns bigint
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set max_parallel_workers_per_gather = 0
set plan_cache_mode = force_generic_plan
as $$
begin
    return (select count(*)
            from (select l.claimed_at from {schema}.lease l order by l.job_id) l  -- its order makes it walk the index
            where l.claimed_at < coalesce(p_now, clock_timestamp()) - p_after);
end $$;

-- By state, up to p_limit of the jobs that have ended since then. Of a tenant: its p_limit newest jobs, those that have
-- not under null.
create function {schema}.count_finished(p_since timestamptz, p_tenant text, p_limit int)
returns table (state text, jobs bigint)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan
as $$
begin
    if p_tenant is null then
        return query
        select s.state, count(*)
        from (select f.state from {schema}.finished f where f.finished_at >= p_since limit p_limit) s
        group by s.state;
    else
        return query
        select f.state, count(*)
        from (select j.id from {schema}.job j where j.tenant collate "C" = p_tenant and j.tenant is not null
              order by j.tenant collate "C" desc, j.id desc limit p_limit) j
        left join lateral (
            select x.state, x.finished_at from {schema}.finished x where x.job_id = j.id limit 1
        ) f on f.finished_at >= p_since
        group by f.state;
    end if;
end $$;
