-- Which jobs may find out whether a breaker's service is well again.

-- What waits and is due, by the lines that it would stand in and in their order: so that nobody walks past what is not
-- due yet, or belongs to tenants whom nobody serves. Conditional as job_line is, so that the jobs of one tenant are not
-- looked for among all.
create index blocked_line on {schema}.blocked (key, queue, priority, seq)
    where gate = 'paused' and seq is not null and kind <> '';
create index blocked_line_tenant on {schema}.blocked (tenant, key, queue, priority, seq)
    where gate = 'paused' and seq is not null and tenant is not null;
create index blocked_tenant on {schema}.blocked (tenant) where tenant is not null;

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

-- Lock those that are as they were seen; returns which.
create function {schema}.hold_breakers(p_names text[], p_versions bigint[]) returns text[]
language plpgsql volatile
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    return array(
        select b.name
        from unnest(p_names, p_versions) a (name, version)
        join {schema}.breaker b on b.name = a.name and b.version = a.version
        order by b.name
        for update of b skip locked);
end $$;

-- Write those that have turned half-open as was decided, each if it is as it was seen; returns which. What somebody else
-- writes at this moment is left to the next sweep.
create function {schema}.turn_breakers(
    p_names text[], p_versions bigint[], p_states text[], p_successes int[], p_rounds bigint[],
    p_half_opened_at timestamptz[], p_now timestamptz
) returns setof text
language plpgsql volatile
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_names text[] := {schema}.hold_breakers(p_names, p_versions);
begin
    update {schema}.breaker b
    set version = b.version + 1, state = a.state, successes = a.successes, round = a.round,
        half_opened_at = a.half_opened_at, updated_at = p_now
    from unnest(v_names) h (name)
    join unnest(p_names, p_states, p_successes, p_rounds, p_half_opened_at)
         a (name, state, successes, round, half_opened_at) using (name)
    where b.name = h.name;
    delete from {schema}.breaker_probe where breaker = any (v_names);
    perform {schema}.set_gates(
        array(select k.kind from {schema}.breaker_kind k where k.breaker = any (v_names) order by k.kind), p_now);
    return query select unnest(v_names);
end $$;

-- Their probes: of each whether it runs, since when it may, and in which line it stands, if it does.
create function {schema}.probes_of_breakers(p_names text[], p_now timestamptz)
returns table (breaker text, job_id uuid, since timestamptz, runs boolean, kind text, queue text, tenant text)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    select p.breaker::text, p.job_id, p.since,
           coalesce(l.expires_at > p_now and (p.claim_id is null or p.claim_id = l.claim_id), false),
           r.kind::text, r.queue::text, r.tenant
    from {schema}.breaker_probe p
    left join lateral (select x.* from {schema}.lease x where x.job_id = p.job_id limit 1) l on true
    left join lateral (select x.* from {schema}.ready x where x.job_id = p.job_id limit 1) r on true
    where p.breaker = any (p_names);
end $$;

-- The lines in which jobs would stand that wait for one of these and are due, each with its first one's place; from one
-- line to the next.
create function {schema}.waiting_lines(p_names text[])
returns table (breaker text, kind text, queue text, priority int, seq bigint)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    with recursive line as (
        select k.breaker, k.kind, f.queue, f.priority, f.seq
        from {schema}.breaker_kind k, lateral (
            select b.queue, b.priority, b.seq from {schema}.blocked b
            where b.gate = 'paused' and b.seq is not null and b.kind <> '' and b.key = k.kind
            order by b.queue, b.priority, b.seq limit 1
        ) f
        where k.breaker = any (p_names)
        union all
        select l.breaker, l.kind, n.queue, n.priority, n.seq
        from line l, lateral (
            select b.queue, b.priority, b.seq from {schema}.blocked b
            where b.gate = 'paused' and b.seq is not null and b.kind <> '' and b.key = l.kind and b.queue > l.queue
            order by b.queue, b.priority, b.seq limit 1
        ) n
    )
    select l.breaker::text, l.kind::text, l.queue::text, l.priority, l.seq from line l;
end $$;

-- The first jobs of such lines, up to the limit of each; of one tenant only, or where that is null, of anybody, even
-- nobody. `line` says which of those asked for.
create function {schema}.may_probe(p_kinds text[], p_queues text[], p_tenants text[], p_limits int[])
returns table (line bigint, priority int, seq bigint, job_id uuid)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    select a.line, f.priority, f.seq, f.job_id
    from unnest(p_kinds, p_queues, p_tenants, p_limits) with ordinality a (kind, queue, tenant, most, line)
    cross join lateral (
        select b.priority, b.seq, b.job_id from {schema}.blocked b
        where b.gate = 'paused' and b.seq is not null and b.kind <> '' and b.key = a.kind and b.queue = a.queue
        order by b.priority, b.seq
        limit a.most
    ) f
    where a.tenant is null
    union all
    select a.line, f.priority, f.seq, f.job_id
    from unnest(p_kinds, p_queues, p_tenants, p_limits) with ordinality a (kind, queue, tenant, most, line)
    cross join lateral (
        select b.priority, b.seq, b.job_id from {schema}.blocked b
        where b.tenant = a.tenant and b.gate = 'paused' and b.seq is not null and b.key = a.kind and b.queue = a.queue
        order by b.priority, b.seq
        limit a.most
    ) f
    where a.tenant is not null;
end $$;

-- Let jobs that wait for half-open breakers out to probe, of each its breaker's name, and put those back that were let
-- out to a line that nobody serves; of breakers that are as they were seen.
create function {schema}.let_out(
    p_names text[], p_versions bigint[], p_jobs uuid[], p_for text[], p_stranded uuid[], p_stranded_for text[],
    p_now timestamptz
) returns table (queue text, priority int, moved bigint)
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_names text[] := {schema}.hold_breakers(p_names, p_versions);
    v_back  uuid[];
    v_jobs  uuid[];
    v_for   text[];
begin
    update {schema}.breaker b set version = b.version + 1 where b.name = any (v_names);
    v_back := array(
        select s.id from unnest(v_names) h (name) join unnest(p_stranded, p_stranded_for) s (id, name) using (name));
    if cardinality(v_back) > 0 then
        with stranded as (
            delete from {schema}.ready r
            where r.ctid = any (array(
                select x.ctid from {schema}.ready x where x.job_id = any (v_back) for update skip locked))
            returning r.*
        )
        insert into {schema}.blocked
            (job_id, since, run_at, seq, priority, attempt, crashes, gate, key, queue, kind, tenant)
        select s.job_id, p_now, null, s.seq, s.priority, s.attempt, s.crashes, 'paused', s.kind, s.queue, s.kind, s.tenant
        from stranded s;
    end if;
    -- With its limit each is looked up by its id: by the gate, all that wait would be.
    select array_agg(b.job_id), array_agg(j.name) into v_jobs, v_for
    from unnest(v_names) h (name)
    join unnest(p_jobs, p_for) j (id, name) using (name)
    cross join lateral (
        select x.job_id, x.gate from {schema}.blocked x where x.job_id = j.id limit 1 for update skip locked
    ) b
    where b.gate = 'paused';
    -- Jobs that were let out and have ended, or are elsewhere; their offsets make these look-ups, too.
    delete from {schema}.breaker_probe p
    where p.breaker = any (v_names)
      and not exists (select 1 from {schema}.ready r where r.job_id = p.job_id offset 0)
      and not exists (select 1 from {schema}.lease l where l.job_id = p.job_id offset 0);
    insert into {schema}.breaker_probe (breaker, job_id, round, since)
    select b.name, j.id, b.round, p_now
    from unnest(v_jobs, v_for) j (id, name) join {schema}.breaker b on b.name = j.name
    on conflict (breaker, job_id) do update set round = excluded.round, claim_id = null, since = excluded.since;
    return query select * from {schema}.admit(v_jobs, p_now);
end $$;
