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

-- The first job of each line, and since when it has been due: one that is tried again, since its last attempt.
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
                                   (select max(a.ended_at) from {schema}.attempt a where a.job_id = v_head.job_id))
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
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
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

-- What stands in a place, judged by some of its pages, which lie as far from each other: p_pages or, in a table that has
-- few rows left on them, more. As JSON: queue, priority, kind, jobs.
create function {schema}.sample_place(p_place text, p_tenant text, p_pages int) returns jsonb
language plpgsql stable
set enable_seqscan = off
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
                select x.queue, x.priority, x.kind, count(*) * $2 as jobs
                from (select format('(%%s,0)', n)::tid as low, format('(%%s,0)', n + 1)::tid as high
                      from (select floor(i * $2)::bigint as n from generate_series(0, $3) i) n
                      where n < $4) p
                cross join lateral (
                    select t.queue, t.priority, t.kind from {schema}.%I t
                    where t.ctid >= p.low and t.ctid < p.high and ($1 is null or t.tenant = $1)
                    offset 0
                ) x
                group by x.queue, x.priority, x.kind
            ) s
            $sql$, p_place)
        using p_tenant, v_step, v_read, v_pages into v_rows, v_found;
        exit when v_found / v_step >= 3000 or v_step = 1 or v_read >= 64 * p_pages;
        v_read := 4 * v_read;
    end loop;
    return coalesce(v_rows, '[]');
end $$;

-- Whether there are so many in a place that only a sample is looked at, which is returned then.
create function {schema}.sample_if_many(p_place text, p_tenant text, p_exact int, p_pages int) returns jsonb
language plpgsql stable
set enable_seqscan = off
as $$
declare
    v_sample jsonb;
    v_jobs   double precision;
begin
    if p_tenant is not null then
        execute format('select count(*) from (select 1 from {schema}.%I t where t.tenant = $1 limit $2) s', p_place)
        using p_tenant, p_exact + 1 into v_jobs;
        return case when v_jobs > p_exact then {schema}.sample_place(p_place, p_tenant, p_pages) end;
    end if;
    if pg_relation_size(format('{schema}.%I', p_place)) <= p_pages * current_setting('block_size')::bigint then
        return null;
    end if;
    v_sample := {schema}.sample_place(p_place, null, p_pages);
    select sum(s.jobs) into v_jobs from jsonb_to_recordset(v_sample) s (jobs double precision);
    -- A sample may err: what might be few is counted.
    return case when v_jobs > 1.5 * p_exact then v_sample end;
end $$;

-- How many jobs stand in a place: exactly if there are up to p_exact, or where a line has up to p_short.
create function {schema}.place_depths(p_place text, p_tenant text, p_exact int, p_short int, p_pages int)
returns table (queue text, kind text, jobs bigint, estimated boolean)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_sample jsonb := {schema}.sample_if_many(p_place, p_tenant, p_exact, p_pages);
begin
    if v_sample is null then
        return query execute format(
            'select t.queue::text, t.kind::text, count(*), false from {schema}.%I t where %s group by 1, 2',
            p_place, case when p_tenant is null then 'true' else 't.tenant = $1' end)
        using p_tenant;
    elsif p_place <> 'ready' then
        return query
        select s.queue, s.kind, round(sum(s.jobs))::bigint, true
        from jsonb_to_recordset(v_sample) s (queue text, kind text, jobs double precision)
        group by s.queue, s.kind;
    else
        return query
        with sampled as materialized (
            select s.queue, s.priority, s.kind, s.jobs
            from jsonb_to_recordset(v_sample) s (queue text, priority int, kind text, jobs double precision)
        ), looked as materialized (
            select l.queue, l.priority, k.kind, k.jobs,
                   sum(k.jobs) over (partition by l.queue, l.priority) > p_short as is_long
            from {schema}.line_heads(p_tenant) l
            cross join lateral {schema}.look_along(l.queue, l.priority, p_tenant, p_short + 1) k
        ), chosen as (
            -- A line that no page of the sample has is as long as it was looked at, at least.
            select k.queue, k.kind, k.jobs::float8 as jobs, k.is_long as estimated
            from looked k
            where not k.is_long
               or not exists (select 1 from sampled s where s.queue = k.queue and s.priority = k.priority)
            union all
            select s.queue, s.kind, s.jobs, true
            from sampled s
            where exists (select 1 from looked k where k.queue = s.queue and k.priority = s.priority and k.is_long)
        )
        select c.queue, c.kind, round(sum(c.jobs))::bigint, bool_or(c.estimated)
        from chosen c
        group by c.queue, c.kind;
    end if;
end $$;

-- How many jobs run; each is looked up to know its queue, and so are p_exact at most.
create function {schema}.running_depths(p_tenant text, p_exact int)
returns table (queue text, kind text, jobs bigint, estimated boolean)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_step double precision := greatest((select count(*) from {schema}.lease)::float8 / p_exact, 1);
begin
    return query
    select j.queue, j.kind, round(count(*) * v_step)::bigint, v_step > 1
    from (select x.job_id from {schema}.lease x limit p_exact) l
    cross join lateral (select x.queue, x.kind, x.tenant from {schema}.job x where x.id = l.job_id limit 1) j
    where p_tenant is null or j.tenant = p_tenant
    group by j.queue, j.kind;
end $$;

-- How many jobs wait and run, by queue, kind and place; of one tenant, or of all.
create function {schema}.depths(p_tenant text)
returns table (queue text, kind text, state text, jobs bigint, estimated boolean)
language sql stable as $$
    select d.queue, d.kind, p.place, d.jobs, d.estimated
    from unnest(array['scheduled', 'ready', 'blocked']) p (place)
    cross join lateral {schema}.place_depths(p.place, p_tenant, 10000, 500, 100) d
    union all
    select d.queue, d.kind, 'running', d.jobs, d.estimated
    from {schema}.running_depths(p_tenant, 5000) d
$$;

-- By state, up to p_limit of the jobs that have ended since then. Of a tenant: its p_limit newest jobs, those that have
-- not under null.
create function {schema}.count_finished(p_since timestamptz, p_tenant text, p_limit int)
returns table (state text, jobs bigint)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
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
