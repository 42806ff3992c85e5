-- How many jobs wait and run, and have ended, at a cost that does not grow with them.

-- To count the jobs of one tenant, as blocked_tenant does; a job that has none pays nothing for it.
create index scheduled_tenant on {schema}.scheduled (tenant) where tenant is not null;

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
