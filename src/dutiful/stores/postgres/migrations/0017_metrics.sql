-- What workers have counted, and how many jobs wait where, at a cost that does not grow with them.
--
-- A sketch is JSON: how many by the number of their bucket. None of the tables belongs to a tenant.

-- As workers hand it over; folded into minutes and totals soon after.
create table {schema}.tally (
    worker_id     uuid   not null,
    turn          bigint not null,
    at            timestamptz not null,
    count         bigint not null,
    payload_bytes bigint not null,
    payload_most  bigint not null,
    run_seconds   double precision not null,
    wait_seconds  double precision not null,
    kind          text   not null,
    outcome       text   not null,
    run           jsonb  not null,
    wait          jsonb  not null,
    primary key (worker_id, turn, kind, outcome)
);

-- The last turn of each worker, so that one which is repeated after its rows were folded counts nothing twice.
create table {schema}.tally_turn (
    worker_id uuid primary key,
    turn      bigint not null,
    at        timestamptz not null
) with (fillfactor = 50);

create table {schema}.tally_minute (
    minute        timestamptz not null,       -- when it began
    count         bigint not null,
    payload_bytes bigint not null,
    payload_most  bigint not null,
    run_seconds   double precision not null,
    wait_seconds  double precision not null,
    kind          text   not null,
    outcome       text   not null,
    run           jsonb  not null,
    wait          jsonb  not null,
    primary key (minute, kind, outcome)
) with (fillfactor = 70);

-- All that was ever counted.
create table {schema}.tally_total (
    count         bigint not null,
    payload_bytes bigint not null,
    payload_most  bigint not null,
    run_seconds   double precision not null,
    wait_seconds  double precision not null,
    kind          text   not null,
    outcome       text   not null,
    run           jsonb  not null,
    wait          jsonb  not null,
    primary key (kind, outcome)
) with (fillfactor = 50);

-- To count the jobs of one tenant; a job that has none pays nothing for them.
create index scheduled_tenant on {schema}.scheduled (tenant) where tenant is not null;
create index blocked_tenant on {schema}.blocked (tenant) where tenant is not null;

create function {schema}.sum_sketches(p_sketches jsonb[]) returns jsonb
language sql immutable as $$
    select coalesce(jsonb_object_agg(b.bucket, b.times), '{}')
    from (select e.key as bucket, sum(e.value::bigint) as times
          from unnest(p_sketches) s, jsonb_each_text(s) e
          group by e.key) b
$$;

-- Add what a worker has counted, unless it has come this far before.
create function {schema}.add_tallies(p_worker uuid, p_turn bigint, p_tallies jsonb, p_now timestamptz) returns void
language plpgsql volatile
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    insert into {schema}.tally_turn as t (worker_id, turn, at) values (p_worker, p_turn, v_now)
    on conflict (worker_id) do update set turn = excluded.turn, at = excluded.at where t.turn < excluded.turn;
    if not found then
        return;
    end if;
    insert into {schema}.tally
        (worker_id, turn, at, count, payload_bytes, payload_most, run_seconds, wait_seconds, kind, outcome, run, wait)
    select p_worker, p_turn, v_now, t.count, t.payload_bytes, t.payload_most, t.run_seconds, t.wait_seconds,
           t.kind, t.outcome, t.run, t.wait
    from jsonb_to_recordset(p_tallies) as t (
        kind text, outcome text, count bigint, payload_bytes bigint, payload_most bigint,
        run_seconds double precision, wait_seconds double precision, run jsonb, wait jsonb);
end $$;

-- Fold up to p_limit rows, and forget as many of the minutes that are over; returns whether there may be more. Two at
-- once take different rows, and add to minutes and totals in one order.
create function {schema}.fold_tallies(p_limit int, p_keep interval, p_now timestamptz) returns boolean
language plpgsql volatile
set lock_timeout = '2s' set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_folded  bigint;
    v_dropped bigint;
begin
    with taken as (
        delete from {schema}.tally t
        where t.ctid = any (array(select x.ctid from {schema}.tally x limit p_limit for update skip locked))
        returning t.at, t.count, t.payload_bytes, t.payload_most, t.run_seconds, t.wait_seconds, t.kind, t.outcome,
                  t.run, t.wait
    ), minutes as (
        insert into {schema}.tally_minute as m
            (minute, count, payload_bytes, payload_most, run_seconds, wait_seconds, kind, outcome, run, wait)
        select date_trunc('minute', t.at, 'UTC'), sum(t.count), sum(t.payload_bytes), max(t.payload_most),
               sum(t.run_seconds), sum(t.wait_seconds), t.kind, t.outcome,
               {schema}.sum_sketches(array_agg(t.run)), {schema}.sum_sketches(array_agg(t.wait))
        from taken t
        group by date_trunc('minute', t.at, 'UTC'), t.kind, t.outcome
        order by date_trunc('minute', t.at, 'UTC'), t.kind, t.outcome
        on conflict (minute, kind, outcome) do update
        set count = m.count + excluded.count, payload_bytes = m.payload_bytes + excluded.payload_bytes,
            payload_most = greatest(m.payload_most, excluded.payload_most),
            run_seconds = m.run_seconds + excluded.run_seconds, wait_seconds = m.wait_seconds + excluded.wait_seconds,
            run = {schema}.sum_sketches(array[m.run, excluded.run]),
            wait = {schema}.sum_sketches(array[m.wait, excluded.wait])
    ), totals as (
        insert into {schema}.tally_total as a
            (count, payload_bytes, payload_most, run_seconds, wait_seconds, kind, outcome, run, wait)
        select sum(t.count), sum(t.payload_bytes), max(t.payload_most), sum(t.run_seconds), sum(t.wait_seconds),
               t.kind, t.outcome, {schema}.sum_sketches(array_agg(t.run)), {schema}.sum_sketches(array_agg(t.wait))
        from taken t
        group by t.kind, t.outcome
        order by t.kind, t.outcome
        on conflict (kind, outcome) do update
        set count = a.count + excluded.count, payload_bytes = a.payload_bytes + excluded.payload_bytes,
            payload_most = greatest(a.payload_most, excluded.payload_most),
            run_seconds = a.run_seconds + excluded.run_seconds, wait_seconds = a.wait_seconds + excluded.wait_seconds,
            run = {schema}.sum_sketches(array[a.run, excluded.run]),
            wait = {schema}.sum_sketches(array[a.wait, excluded.wait])
    )
    select count(*) into v_folded from taken;
    delete from {schema}.tally_minute m
    where m.ctid = any (array(
        select x.ctid from {schema}.tally_minute x
        where x.minute < date_trunc('minute', v_now - p_keep, 'UTC')
        limit p_limit
        for update skip locked));
    get diagnostics v_dropped = row_count;
    -- There is one for each worker of late.
    delete from {schema}.tally_turn t where t.at < v_now - greatest(p_keep, interval '1 day');
    return v_folded = p_limit or v_dropped = p_limit;
end $$;

-- The first job of each line, and since when it has been due: one that is tried again, since its last attempt or the
-- time that this set. By claim, for the planner would look for the last of all attempts by their ids.
create function {schema}.line_heads(p_tenant text)
returns table (queue text, priority int, due_at timestamptz)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_head record;
begin
    if p_tenant is null then
        select r.queue, r.priority, r.job_id into v_head from {schema}.ready r
        order by r.queue, r.priority, r.seq limit 1;
    else
        select r.queue, r.priority, r.job_id into v_head from {schema}.ready r where r.tenant = p_tenant
        order by r.tenant, r.queue, r.priority, r.seq limit 1;
    end if;
    while v_head.queue is not null loop
        queue := v_head.queue;
        priority := v_head.priority;
        due_at := (select greatest(j.created_at, j.run_at,
                                   (select max(coalesce(a.next_at, a.ended_at)) from {schema}.attempt a
                                    where a.job_id = v_head.job_id and a.outcome <> 'refused'
                                      and a.claim_id = (select max(b.claim_id) from {schema}.attempt b
                                                        where b.job_id = v_head.job_id)))
                   from {schema}.job j where j.id >= v_head.job_id and j.id <= v_head.job_id order by j.id limit 1);
        return next;
        if p_tenant is null then
            select r.queue, r.priority, r.job_id into v_head from {schema}.ready r
            where (r.queue, r.priority) > (v_head.queue, v_head.priority)
            order by r.queue, r.priority, r.seq limit 1;
        else
            select r.queue, r.priority, r.job_id into v_head from {schema}.ready r
            where r.tenant = p_tenant and (r.queue, r.priority) > (v_head.queue, v_head.priority)
            order by r.tenant, r.queue, r.priority, r.seq limit 1;
        end if;
    end loop;
end $$;

-- The kinds of the first p_limit jobs of a line.
create function {schema}.look_along(p_queue text, p_priority int, p_tenant text, p_limit int)
returns table (kind text, jobs bigint)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
    if p_tenant is null then
        return query
        select s.kind::text, count(*)
        from (select r.kind from {schema}.ready r where r.queue = p_queue and r.priority = p_priority
              order by r.queue, r.priority, r.seq limit p_limit) s
        group by s.kind;
    else
        return query
        select s.kind::text, count(*)
        from (select r.kind from {schema}.ready r
              where r.tenant = p_tenant and r.queue = p_queue and r.priority = p_priority
              order by r.tenant, r.queue, r.priority, r.seq limit p_limit) s
        group by s.kind;
    end if;
end $$;

-- The first seq of a line from p_at on, or the last one below it.
create function {schema}.line_seq(p_queue text, p_priority int, p_tenant text, p_at bigint, p_up boolean) returns bigint
language plpgsql stable as $$
begin
    if p_tenant is null and p_up then
        return (select r.seq from {schema}.ready r
                where r.queue = p_queue and r.priority = p_priority and r.seq >= p_at
                order by r.queue, r.priority, r.seq limit 1);
    elsif p_tenant is null then
        return (select r.seq from {schema}.ready r
                where r.queue = p_queue and r.priority = p_priority and r.seq < p_at
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

-- The kinds of those jobs of a line whose seqs are in one of some ranges; each stands for as many as its range says.
create function {schema}.look_through(
    p_queue text, p_priority int, p_tenant text, p_lows bigint[], p_highs bigint[], p_weights double precision[])
returns table (kind text, jobs double precision, seen bigint)
language plpgsql stable as $$
begin
    if p_tenant is null then
        return query
        select x.kind::text, sum(w.weight), count(*)
        from unnest(p_lows, p_highs, p_weights) w (low, high, weight)
        cross join lateral (
            select r.kind from {schema}.ready r
            where r.queue = p_queue and r.priority = p_priority and r.seq >= w.low and r.seq <= w.high
            order by r.queue, r.priority, r.seq offset 0) x
        group by x.kind;
    else
        return query
        select x.kind::text, sum(w.weight), count(*)
        from unnest(p_lows, p_highs, p_weights) w (low, high, weight)
        cross join lateral (
            select r.kind from {schema}.ready r
            where r.tenant = p_tenant and r.queue = p_queue and r.priority = p_priority
              and r.seq >= w.low and r.seq <= w.high
            order by r.tenant, r.queue, r.priority, r.seq offset 0) x
        group by x.kind;
    end if;
end $$;

-- What stands in a line, judged by what is seen through some windows. Wide gaps are cut out first: the line is parted
-- at the middle of its seqs again and again, and each part begins and ends with a job. In a part, each window opens at
-- a random point of its own stretch, the first one perhaps before the part begins, so that a job is as likely to be
-- seen whatever stands around it. Windows are widened until they show enough.
create function {schema}.sample_line(p_queue text, p_priority int, p_tenant text, p_windows int)
returns table (kind text, jobs double precision)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_cuts   int := greatest(floor(log(2, p_windows / 16.0)), 2);
    v_width  bigint := 4;
    v_lows   bigint[];
    v_highs  bigint[];
    v_length bigint;
    v_kinds  text[];
    v_jobs   double precision[];
    v_seen   bigint;
begin
    with recursive part as (
        select 0 as depth, {schema}.line_seq(p_queue, p_priority, p_tenant, -(2^62)::bigint, true) as low,
               {schema}.line_seq(p_queue, p_priority, p_tenant, (2^62)::bigint, false) as high
        union all
        select p.depth + 1, h.low, h.high
        from part p
        cross join lateral (
            values (p.low, {schema}.line_seq(p_queue, p_priority, p_tenant, (p.low + p.high + 1) / 2, false)),
                   ({schema}.line_seq(p_queue, p_priority, p_tenant, (p.low + p.high + 1) / 2, true), p.high)
        ) h (low, high)
        where p.depth < v_cuts and p.high - p.low >= 100
    )
    select array_agg(p.low), array_agg(p.high), sum(p.high - p.low + 1) into v_lows, v_highs, v_length
    from part p
    where p.low is not null and (p.depth = v_cuts or p.high - p.low < 100);
    while v_length > 0 loop
        select array_agg(x.kind), array_agg(x.jobs), coalesce(sum(x.seen), 0) into v_kinds, v_jobs, v_seen
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
        cross join lateral {schema}.look_through(p_queue, p_priority, p_tenant, w.lows, w.highs, w.weights) x;
        exit when v_seen >= p_windows or v_width * p_windows >= v_length;
        v_width := v_width * least(greatest(p_windows / greatest(v_seen, 1) + 1, 2), 16);
    end loop;
    return query select * from unnest(v_kinds, v_jobs);
end $$;

-- How many jobs of each queue and kind are ready: exactly if there are up to p_exact, or where a line has up to
-- p_short. Along the indexes of their lines, for a table from which many were taken may have few on many pages.
create function {schema}.ready_depths(p_tenant text, p_exact int, p_short int, p_windows int)
returns table (queue text, kind text, jobs bigint, estimated boolean)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_queues     text[];
    v_priorities int[];
    v_left       bigint := p_exact;
    v_few        bigint;
    v_looked     jsonb;
    v_found      jsonb := '[]';
begin
    select array_agg(l.queue), array_agg(l.priority) into v_queues, v_priorities from {schema}.line_heads(p_tenant) l;
    for n in 1 .. coalesce(cardinality(v_queues), 0) loop
        exit when v_left < 0;
        select jsonb_agg(jsonb_build_object('queue', v_queues[n], 'kind', k.kind, 'jobs', k.jobs)), v_left - sum(k.jobs)
        into v_looked, v_left
        from {schema}.look_along(v_queues[n], v_priorities[n], p_tenant, v_left::int + 1) k;
        v_found := v_found || coalesce(v_looked, '[]');
    end loop;
    if v_left >= 0 then
        return query
        select f.queue, f.kind, sum(f.jobs)::bigint, false
        from jsonb_to_recordset(v_found) f (queue text, kind text, jobs bigint)
        group by f.queue, f.kind;
        return;
    end if;
    return query
    with looked as materialized (
        select l.queue, l.priority, k.kind, k.jobs,
               sum(k.jobs) over (partition by l.queue, l.priority) > p_short as is_long
        from unnest(v_queues, v_priorities) l (queue, priority)
        cross join lateral {schema}.look_along(l.queue, l.priority, p_tenant, p_short + 1) k
    ), chosen as (
        select k.queue, k.kind, k.jobs::float8 as jobs, false as estimated from looked k where not k.is_long
        union all
        select l.queue, s.kind, s.jobs, true
        from (select distinct k.queue, k.priority from looked k where k.is_long) l
        cross join lateral {schema}.sample_line(
            l.queue, l.priority, p_tenant, greatest(p_windows / cardinality(v_queues), 32)) s
    )
    select c.queue, c.kind, round(sum(c.jobs))::bigint, bool_or(c.estimated)
    from chosen c
    group by c.queue, c.kind;
end $$;

-- What stands in a place, judged by some of its pages: p_pages or, if few rows are on those, up to four times as many.
-- Each is taken at random from a stretch of its own, lest their distance be that of what comes in batches. As JSON:
-- queue, kind, jobs.
create function {schema}.sample_place(p_place text, p_tenant text, p_pages int) returns jsonb
language plpgsql stable
set enable_seqscan = off set jit = off
as $$
declare
    v_pages bigint := pg_relation_size(format('{schema}.%I', p_place)) / current_setting('block_size')::bigint;
    v_read  int := p_pages;
    v_step  double precision;
    v_found double precision;
    v_rows  jsonb;
begin
    loop
        v_step := greatest(v_pages::float8 / v_read, 1);
        -- Its offset keeps the sub-select to itself, so that each page is read as a range of row addresses.
        execute format(
            $sql$
            select jsonb_agg(s), sum(s.jobs)
            from (
                select x.queue, x.kind, count(*) * $2 as jobs
                from (select format('(%%s,0)', n)::tid as low, format('(%%s,0)', n + 1)::tid as high
                      from (select floor((i + case when $2 > 1 then random() else 0 end) * $2)::bigint as n
                            from generate_series(0, $3 - 1) i) n
                      where n < $4) p
                cross join lateral (
                    select t.queue, t.kind from {schema}.%I t
                    where t.ctid >= p.low and t.ctid < p.high and ($1 is null or t.tenant = $1)
                    offset 0
                ) x
                group by x.queue, x.kind
            ) s
            $sql$, p_place)
        using p_tenant, v_step, v_read, v_pages into v_rows, v_found;
        exit when v_found / v_step >= 3000 or v_step = 1 or v_read >= 4 * p_pages;
        v_read := 4 * v_read;
    end loop;
    return coalesce(v_rows, '[]');
end $$;

-- How many jobs of each queue and kind stand in a place, exactly if there are up to p_exact.
create function {schema}.place_depths(p_place text, p_tenant text, p_exact int, p_pages int)
returns table (queue text, kind text, jobs bigint, estimated boolean)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
#variable_conflict use_column
declare
    v_sample jsonb;
    v_looked bigint;
    v_guess  double precision;
begin
    if p_tenant is null
       and pg_relation_size(format('{schema}.%I', p_place)) > p_pages * current_setting('block_size')::bigint then
        v_sample := {schema}.sample_place(p_place, null, p_pages);
        select sum(s.jobs) into v_guess from jsonb_to_recordset(v_sample) s (jobs double precision);
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
            'select t.queue::text, t.kind::text, count(*), false from {schema}.%I t where %s group by 1, 2',
            p_place, case when p_tenant is null then 'true' else 't.tenant = $1' end)
        using p_tenant;
    else
        return query
        select s.queue, s.kind, round(sum(s.jobs))::bigint, true
        from jsonb_to_recordset(v_sample) s (queue text, kind text, jobs double precision)
        group by s.queue, s.kind;
    end if;
end $$;

-- How many jobs run; each is looked up to know its queue, and so are p_exact at most. Along an index, there are as many
-- leases as jobs that run; on the table's pages there may be those of a million that ran before.
create function {schema}.running_depths(p_tenant text, p_exact int)
returns table (queue text, kind text, jobs bigint, estimated boolean)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set max_parallel_workers_per_gather = 0 set plan_cache_mode = force_generic_plan
as $$
declare
    v_jobs uuid[] := array(select l.job_id from {schema}.lease l order by l.job_id limit p_exact + 1);
    v_step double precision := 1;
begin
    if cardinality(v_jobs) > p_exact then
        v_step := (select count(*) from {schema}.lease)::float8 / p_exact;
        v_jobs := v_jobs[:p_exact];
    end if;
    return query
    select j.queue, j.kind, round(count(*) * v_step)::bigint, v_step > 1
    from unnest(v_jobs) l (job_id)
    cross join lateral (select x.queue, x.kind, x.tenant from {schema}.job x where x.id = l.job_id limit 1) j
    where p_tenant is null or j.tenant = p_tenant
    group by j.queue, j.kind;
end $$;

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

-- How many jobs wait and run, by queue, kind and place; of one tenant, or of all. Those of a tenant may each be on a
-- page of its own, so fewer of them are counted one by one.
create function {schema}.depths(p_tenant text)
returns table (queue text, kind text, state text, jobs bigint, estimated boolean)
language sql stable as $$
    with asked as (select case when p_tenant is null then 10000 else 5000 end as exact)
    select d.queue, d.kind, p.place, d.jobs, d.estimated
    from asked a
    cross join unnest(array['scheduled', 'blocked']) p (place)
    cross join lateral {schema}.place_depths(p.place, p_tenant, a.exact, 250) d
    union all
    select d.queue, d.kind, 'ready', d.jobs, d.estimated
    from asked a
    cross join lateral {schema}.ready_depths(p_tenant, a.exact, 500, 768) d
    union all
    select d.queue, d.kind, 'running', d.jobs, d.estimated
    from {schema}.running_depths(p_tenant, 5000) d
$$;

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
