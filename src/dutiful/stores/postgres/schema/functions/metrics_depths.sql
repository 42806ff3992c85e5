-- How many jobs wait and run, and have ended, at a cost that does not grow with them.

-- Estimates the jobs of a place from some of its pages: p_pages or, if few rows are on those, up to four times as many.
-- Each page is taken at random from a stretch of its own, because batches of jobs may lie at regular distances.
create or replace function {schema}.sample_place(p_place text, p_tenant text, p_pages int)
returns {schema}.depth_sample[]
language plpgsql stable
set enable_seqscan = off set enable_indexscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_pages bigint := pg_relation_size(format('{schema}.%I', p_place)) / current_setting('block_size')::bigint;
    v_read  int := p_pages;
    v_step  double precision;
    v_found double precision;
    v_rows  {schema}.depth_sample[];
begin
    loop
        v_step := greatest(v_pages::float8 / v_read, 1);
        -- The offset keeps the sub-select separate, so that each page is read as a range of row addresses.
        execute format(
            $sql$
            select array_agg(row(s.*)::{schema}.depth_sample), sum(s.jobs)
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
    return coalesce(v_rows, array[]::{schema}.depth_sample[]);
end $$;

-- Counts the jobs of a place by queue and kind, exactly if there are up to p_exact.
create or replace function {schema}.place_depths(p_place text, p_tenant text, p_exact int, p_pages int)
returns setof {schema}.depth_sample
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$ #variable_conflict use_column
declare
    v_sample {schema}.depth_sample[];
    v_looked bigint;
    v_guess  double precision;
begin
    if p_tenant is null
       and pg_relation_size(format('{schema}.%I', p_place)) > p_pages * current_setting('block_size')::bigint then
        v_sample := {schema}.sample_place(p_place, null, p_pages);
        v_guess := (select coalesce(sum(s.jobs), 0) from unnest(v_sample) s);
    end if;
    -- A sample may err, so what might be few is counted, along an index, because few rows may lie on many pages.
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

-- Counts the ready jobs by queue and kind: exactly if there are up to p_exact, or where a queue level has up to p_short
-- or, of many levels, its share of p_exact. Up to 24 longer levels are sampled each by itself; of more, the pages of
-- all are, because each level costs several look-ups. Otherwise along the indexes, because a table from which many were
-- taken may have few jobs on many pages. Of more than p_most levels, those of p_named are looked at, and the others are
-- sampled by their pages. What was sampled together has one number, `view`: -1 if queues may have been overlooked.
create or replace function {schema}.ready_depths(
    p_tenant text, p_named text[], p_most int, p_exact int, p_short int, p_windows int, p_pages int
) returns table (view int, queue text, kind text, jobs double precision, squares double precision, seen bigint,
               windows int)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$ #variable_conflict use_column
declare
    v_own        text := case when p_tenant is null then 'r.kind <> ''''' else 'r.tenant = $1' end;
    v_queues     text[];
    v_priorities int[];
    v_few        int;
    v_long       bigint[];
    v_is_long    boolean[];
    v_crowded    boolean;
    v_looked     {schema}.depth_sample[];
    v_seen       bigint;
begin
    select l.queues, l.priorities, l.crowded into v_queues, v_priorities, v_crowded
    from {schema}.queue_levels(p_tenant, p_named, p_most) l;
    -- The limit ends the walk at any queue level.
    execute format(
        $sql$
        select array_agg(row(s.queue, s.kind, s.jobs, 0, s.jobs, 0)::{schema}.depth_sample), sum(s.jobs)
        from (
            select x.queue, x.kind, count(*) as jobs
            from (
                select l.queue, k.kind
                from unnest($2, $3) l (queue, priority)
                cross join lateral (
                    select r.kind from {schema}.ready r
                    where %s and r.queue = l.queue and r.priority = l.priority
                    order by r.queue, r.priority, r.seq limit $4
                ) k
                limit $4
            ) x
            group by x.queue, x.kind
        ) s
        $sql$, v_own)
    using p_tenant, v_queues, v_priorities, p_exact + 1 into v_looked, v_seen;
    if not v_crowded and (v_seen is null or v_seen <= p_exact) then
        return query select 0, f.* from unnest(v_looked) f;
        return;
    end if;
    v_few := greatest(least(p_short, p_exact / greatest(cardinality(v_queues), 1)), 1);
    execute format(
        $sql$
        select array_agg(row(s.queue, s.kind, s.jobs, 0, s.jobs, 0)::{schema}.depth_sample), array_agg(s.is_long),
               array_agg(distinct s.level) filter (where s.is_long)
        from (
            select l.level, l.queue, k.kind, count(*) as jobs, sum(count(*)) over (partition by l.level) > $4 as is_long
            from unnest($2, $3) with ordinality l (queue, priority, level)
            cross join lateral (
                select r.kind from {schema}.ready r
                where %s and r.queue = l.queue and r.priority = l.priority
                order by r.queue, r.priority, r.seq limit $4 + 1
            ) k
            group by l.level, l.queue, k.kind
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
        select l.level::int, v_queues[l.level], s.kind, s.jobs, s.squares, s.seen, s.windows
        from unnest(v_long) l (level)
        cross join lateral {schema}.sample_queue_level(
            v_queues[l.level], v_priorities[l.level], p_tenant, p_windows / cardinality(v_long)) s;
        if v_crowded then
            v_queues := array(select distinct q from unnest(v_queues) q);
            return query
            select -1, s.* from unnest({schema}.sample_place('ready', p_tenant, p_pages)) s
            where s.queue <> all (v_queues);
        end if;
    else
        return query
        with share as (
            select f.is_long, false as is_page, f.queue, f.kind, f.jobs, f.squares, f.seen, f.windows
            from unnest(v_looked, v_is_long) f (queue, kind, jobs, squares, seen, windows, is_long)
            union all
            select false, true, s.queue, s.kind, s.jobs, s.squares, s.seen, s.windows
            from unnest({schema}.sample_place('ready', p_tenant, p_pages)) s
        ), marked as (
            -- By a window function, because the planner cannot know how many rows a join would have.
            select bool_or(s.is_long) over own or bool_and(s.is_page) over own as is_long, s.is_page, s.queue, s.kind,
                   s.jobs, s.squares, s.seen, s.windows
            from share s
            window own as (partition by s.queue)
        )
        -- Jobs at the head of a queue level were seen, though no page may have shown them.
        select case when not m.is_long then 0 when v_crowded then -1 else 1 end, m.queue, m.kind,
               coalesce(sum(m.jobs) filter (where m.is_page = m.is_long), 0), sum(m.squares), max(m.seen),
               max(max(m.windows)) over (partition by m.is_long)
        from marked m
        where m.is_long or not m.is_page
        group by m.is_long, m.queue, m.kind;
    end if;
end $$;

-- Counts running jobs: all up to p_exact, of more each with the same chance. Along an index, because the table's pages
-- may hold the dead rows of a million jobs that ran before.
create or replace function {schema}.running_depths(p_tenant text, p_exact int) returns setof {schema}.depth_sample
language plpgsql stable {walk_in_order} set max_parallel_workers_per_gather = 0 as $$
declare
    v_leases bigint := (select count(*) from {schema}.lease);
    v_weight double precision := greatest(v_leases::float8 / p_exact, 1);
    v_looked int := case when v_weight > 1 then v_leases else 0 end;
begin
    return query
    select j.queue::text, j.kind::text, count(*) * v_weight, count(*) * v_weight * v_weight, count(*), v_looked
    from (select l.job_id from {schema}.lease l where v_weight = 1 or random() * v_weight < 1 order by l.job_id) l
    cross join lateral (select x.queue, x.kind, x.tenant from {schema}.job x where x.id = l.job_id limit 1) j
    where p_tenant is null or j.tenant = p_tenant
    group by j.queue, j.kind;
end $$;

-- Counts the jobs that wait and run, by queue, kind and place; of one tenant, or of all. A tenant's jobs may each be on
-- a page of their own, so fewer of them are counted exactly.
create or replace function {schema}.depths(p_tenant text, p_named text[], p_most int)
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
    cross join lateral {schema}.ready_depths(p_tenant, p_named, p_most, a.exact, 500, 384, 250) d
    union all
    select 'running', 0, d.queue, d.kind, d.jobs, d.squares, d.seen, d.windows
    from {schema}.running_depths(p_tenant, 20000) d
$$;

-- Counts jobs that have been running for longer than p_after.
create or replace function {schema}.count_stuck(p_after interval, p_now timestamptz) returns bigint
language plpgsql stable {walk_in_order} set max_parallel_workers_per_gather = 0 as $$
begin
    return (select count(*)
            from (select l.claimed_at from {schema}.lease l order by l.job_id) l  -- its order makes it walk the index
            where l.claimed_at < coalesce(p_now, clock_timestamp()) - p_after);
end $$;

-- Counts by state up to p_limit jobs that have ended since then; of a tenant, its newest, null: they have not ended.
create or replace function {schema}.count_finished(p_since timestamptz, p_tenant text, p_limit int)
returns table (state text, jobs bigint)
language plpgsql stable {walk_indexes} set jit = off as $$
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
