-- Which jobs may find out whether a breaker's service is well again.

-- What waits, by the lines that it would stand in and since when it has been due, or will be: so that nobody walks past
-- what is not due yet, or belongs to tenants whom nobody serves. Conditional as job_line is, so that the jobs of one
-- tenant are not looked for among all.
create index blocked_line on {schema}.blocked (key, queue, (coalesce(run_at, since)), job_id)
    where gate = 'paused' and kind <> '';
create index blocked_tenant on {schema}.blocked (tenant, gate, key, queue, (coalesce(run_at, since)), job_id)
    where tenant is not null;

-- Those before whose gates jobs may wait, and that are half-open or may be.
create function {schema}.gated_breakers(p_now timestamptz)
returns table (now_at timestamptz, kept {schema}.breaker)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query
    select v_now, b
    from {schema}.breaker b
    where (b.state = 'half_open' or (b.state = 'open' and b.open_until <= v_now))
      and exists (select 1 from {schema}.breaker_kind k where k.breaker = b.name)
    order by b.name;
end $$;

-- The probes of one: of each whether it runs, since when it may, and in which line it stands, if it does.
create function {schema}.probes_of_breaker(p_name text, p_now timestamptz)
returns table (job_id uuid, since timestamptz, runs boolean, kind text, queue text, tenant text)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    select p.job_id, p.since,
           exists (select 1 from {schema}.lease l
                   where l.job_id = p.job_id and l.expires_at > p_now
                     and (p.claim_id is null or p.claim_id = l.claim_id)),
           r.kind::text, r.queue::text, r.tenant
    from {schema}.breaker_probe p
    left join {schema}.ready r on r.job_id = p.job_id
    where p.breaker = p_name;
end $$;

-- The lines in which jobs would stand that wait for one and are due, and since when the first one is; from one line to
-- the next.
create function {schema}.waiting_lines(p_name text, p_now timestamptz)
returns table (kind text, queue text, since timestamptz)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    with recursive line as (
        select k.kind, f.queue
        from {schema}.breaker_kind k, lateral (
            select b.queue from {schema}.blocked b
            where b.gate = 'paused' and b.kind <> '' and b.key = k.kind order by b.queue limit 1
        ) f
        where k.breaker = p_name
        union all
        select l.kind, n.queue
        from line l, lateral (
            select b.queue from {schema}.blocked b
            where b.gate = 'paused' and b.kind <> '' and b.key = l.kind and b.queue > l.queue order by b.queue limit 1
        ) n
    )
    select l.kind::text, l.queue::text, f.since
    from line l, lateral (
        select coalesce(b.run_at, b.since) as since from {schema}.blocked b
        where b.gate = 'paused' and b.kind <> '' and b.key = l.kind and b.queue = l.queue
          and coalesce(b.run_at, b.since) <= p_now
        order by coalesce(b.run_at, b.since), b.job_id
        limit 1
    ) f;
end $$;

-- Jobs of one such line that may probe, first those that have been due for the longest. p_tenants: of these; null:
-- anybody's, even nobody's.
create function {schema}.may_probe(p_kind text, p_queue text, p_tenants text[], p_limit int, p_now timestamptz)
returns setof uuid
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan
as $$
begin
    if p_tenants is null then
        return query
        select b.job_id from {schema}.blocked b
        where b.gate = 'paused' and b.kind <> '' and b.key = p_kind and b.queue = p_queue
          and coalesce(b.run_at, b.since) <= p_now
        order by coalesce(b.run_at, b.since), b.job_id
        limit p_limit;
    else
        return query
        select w.job_id
        from unnest(p_tenants) t (tenant)
        cross join lateral (
            select b.job_id, coalesce(b.run_at, b.since) as due_at from {schema}.blocked b
            where b.tenant = t.tenant and b.gate = 'paused' and b.key = p_kind and b.queue = p_queue
              and coalesce(b.run_at, b.since) <= p_now
            order by coalesce(b.run_at, b.since), b.job_id
            limit p_limit
        ) w
        order by w.due_at, w.job_id
        limit p_limit;
    end if;
end $$;

-- Let jobs that wait for a half-open breaker out to probe, and put those back that were let out to a line that nobody
-- serves, if it is as it was seen.
create function {schema}.let_out(p_name text, p_version bigint, p_jobs uuid[], p_stranded uuid[], p_now timestamptz)
returns table (queue text, priority int, moved bigint)
language plpgsql volatile
set lock_timeout = '2s' set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_jobs uuid[];
begin
    update {schema}.breaker b set version = version + 1 where b.name = p_name and b.version = p_version;
    if not found then
        return;
    end if;
    with stranded as (
        delete from {schema}.ready r
        where r.ctid = any (array(
            select x.ctid from {schema}.ready x where x.job_id = any (p_stranded) for update skip locked))
        returning r.*
    )
    insert into {schema}.blocked (job_id, since, run_at, priority, attempt, crashes, gate, key, queue, kind, tenant)
    select s.job_id, p_now, null, s.priority, s.attempt, s.crashes, 'paused', s.kind, s.queue, s.kind, s.tenant
    from stranded s;
    -- With its limit each is looked up by its id: by the gate, all that wait would be.
    v_jobs := array(
        select b.job_id
        from unnest(p_jobs) j (id)
        cross join lateral (
            select x.job_id, x.gate from {schema}.blocked x where x.job_id = j.id limit 1 for update skip locked
        ) b
        where b.gate = 'paused');
    -- Jobs that were let out and have ended, or are elsewhere.
    delete from {schema}.breaker_probe p
    where p.breaker = p_name
      and not exists (select 1 from {schema}.ready r where r.job_id = p.job_id)
      and not exists (select 1 from {schema}.lease l where l.job_id = p.job_id);
    insert into {schema}.breaker_probe (breaker, job_id, round, since)
    select p_name, j.id, b.round, p_now from unnest(v_jobs) j (id), {schema}.breaker b where b.name = p_name
    on conflict (breaker, job_id) do update set round = excluded.round, claim_id = null, since = excluded.since;
    return query select * from {schema}.admit(v_jobs, p_now);
end $$;
