-- Probes: which jobs test whether the service behind a half-open breaker has recovered.

-- Returns breakers for which jobs may wait, and that are half-open or may become so.
create or replace function {schema}.gated_breakers(p_now timestamptz)
returns table (now_at timestamptz, kept {schema}.breaker)
language plpgsql stable {walk_indexes} as $$ #variable_conflict use_column
declare v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query
    select v_now, b
    from {schema}.breaker b
    where (b.state = 'half_open' or (b.state = 'open' and b.open_until <= v_now))
      and exists (select 1 from {schema}.breaker_kind k where k.breaker = b.name)
    order by b.name;
end $$;

-- Locks breakers that still have these versions; returns which.
create or replace function {schema}.lock_breakers(p_names text[], p_versions bigint[]) returns text[]
language plpgsql volatile {use_indexes} as $$
begin
    return array(
        select b.name
        from unnest(p_names, p_versions) a (name, version)
        join {schema}.breaker b on b.name = a.name and b.version = a.version
        order by b.name
        for update of b skip locked);
end $$;

-- Writes breakers that were decided to be half-open, each if it still has its version; returns which. One that is
-- locked at this moment is left to the next sweep.
create or replace function {schema}.half_open_breakers(
    p_names text[], p_versions bigint[], p_states text[], p_successes int[], p_rounds bigint[],
    p_half_opened_at timestamptz[], p_now timestamptz
) returns setof text
language plpgsql volatile {use_indexes} as $$
declare v_names text[] := {schema}.lock_breakers(p_names, p_versions);
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

-- Returns the probes of these breakers: whether each runs, since when it is one, and its queue level while it is ready. A
-- claim that was given back probes no more, and its job has no turn.
create or replace function {schema}.breaker_probes(p_names text[], p_now timestamptz)
returns table (breaker text, job_id uuid, since timestamptz, runs boolean, kind text, queue text, tenant text)
language plpgsql stable {walk_indexes} as $$ #variable_conflict use_column
begin
    return query
    select p.breaker::text, p.job_id, p.since,
           coalesce(l.expires_at > p_now and (p.claim_id is null or p.claim_id = l.claim_id), false),
           r.kind::text, r.queue::text, r.tenant
    from {schema}.breaker_probe p
    left join lateral (select x.* from {schema}.lease x where x.job_id = p.job_id limit 1) l on true
    left join lateral (select x.* from {schema}.ready x where x.job_id = p.job_id and p.claim_id is null limit 1) r on true
    where p.breaker = any (p_names);
end $$;

-- Returns the queue levels of due jobs that wait for these breakers, each with its first seq, from one to the next.
create or replace function {schema}.waiting_levels(p_names text[])
returns table (breaker text, kind text, queue text, priority int, seq bigint)
language plpgsql stable {walk_in_order} as $$ #variable_conflict use_column
begin
    return query
    with recursive level as (
        select k.breaker, k.kind, f.queue, f.priority, f.seq
        from {schema}.breaker_kind k, lateral (
            select b.queue, b.priority, b.seq from {schema}.blocked b
            where b.gate = 'paused' and b.seq is not null and b.kind <> '' and b.key = k.kind
            order by b.queue, b.priority, b.seq limit 1
        ) f
        where k.breaker = any (p_names)
        union all
        select l.breaker, l.kind, n.queue, n.priority, n.seq
        from level l, lateral (
            select b.queue, b.priority, b.seq from {schema}.blocked b
            where b.gate = 'paused' and b.seq is not null and b.kind <> '' and b.key = l.kind and b.queue > l.queue
            order by b.queue, b.priority, b.seq limit 1
        ) n
    )
    select l.breaker::text, l.kind::text, l.queue::text, l.priority, l.seq from level l;
end $$;

-- Returns the first jobs of such levels, up to the limit of each; of one tenant, or where that is null, of any or none.
-- `level` is the position of the request.
create or replace function {schema}.probe_candidates(p_kinds text[], p_queues text[], p_tenants text[], p_limits int[])
returns table (level bigint, priority int, seq bigint, job_id uuid)
language plpgsql stable {walk_in_order} as $$ #variable_conflict use_column
begin
    return query
    select a.level, f.priority, f.seq, f.job_id
    from unnest(p_kinds, p_queues, p_tenants, p_limits) with ordinality a (kind, queue, tenant, most, level)
    cross join lateral (
        select b.priority, b.seq, b.job_id from {schema}.blocked b
        where b.gate = 'paused' and b.seq is not null and b.kind <> '' and b.key = a.kind and b.queue = a.queue
        order by b.priority, b.seq
        limit a.most
    ) f
    where a.tenant is null
    union all
    select a.level, f.priority, f.seq, f.job_id
    from unnest(p_kinds, p_queues, p_tenants, p_limits) with ordinality a (kind, queue, tenant, most, level)
    cross join lateral (
        select b.priority, b.seq, b.job_id from {schema}.blocked b
        where b.tenant = a.tenant and b.gate = 'paused' and b.seq is not null and b.key = a.kind and b.queue = a.queue
        order by b.priority, b.seq
        limit a.most
    ) f
    where a.tenant is not null;
end $$;

-- Admits jobs that wait for half-open breakers as probes, and blocks those again that were admitted to a queue level
-- that no worker serves; of breakers that still have their versions.
create or replace function {schema}.admit_probes(
    p_names text[], p_versions bigint[], p_jobs uuid[], p_for text[], p_stranded uuid[], p_stranded_for text[],
    p_now timestamptz
) returns table (queue text, priority int, moved bigint)
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$ #variable_conflict use_column
declare
    v_names text[] := {schema}.lock_breakers(p_names, p_versions);
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
        insert into {schema}.blocked (job_id, since, seq, gate, key, {carried})
        select s.job_id, p_now, s.seq, 'paused', s.kind, {carried of s} from stranded s;
    end if;
    -- The limit makes this a look-up by id; by the gate, all waiting jobs would be read.
    select array_agg(b.job_id), array_agg(j.name) into v_jobs, v_for
    from unnest(v_names) h (name)
    join unnest(p_jobs, p_for) j (id, name) using (name)
    cross join lateral (
        select x.job_id, x.gate from {schema}.blocked x where x.job_id = j.id limit 1 for update skip locked
    ) b
    where b.gate = 'paused';
    -- Probes that are neither ready nor running have ended; the offsets make these look-ups.
    delete from {schema}.breaker_probe p
    where p.breaker = any (v_names)
      and not exists (select 1 from {schema}.ready r where r.job_id = p.job_id offset 0)
      and not exists (select 1 from {schema}.lease l where l.job_id = p.job_id offset 0);
    insert into {schema}.breaker_probe (breaker, job_id, round, since)
    select b.name, j.id, b.round, p_now
    from unnest(v_jobs, v_for) j (id, name) join {schema}.breaker b on b.name = j.name
    on conflict (breaker, job_id) do update set round = excluded.round, claim_id = null, since = excluded.since;
    return query select u.queue, u.priority, u.moved from {schema}.unblock(v_jobs, p_now) u;
end $$;

-- Returns the breakers for which jobs wait that were rejected inside their handlers, unless they are open. Steps from
-- one to the next. A breaker without a row is closed.
create or replace function {schema}.awaited_breakers(p_now timestamptz)
returns table (awaited text, now_at timestamptz, kept {schema}.breaker, probing bigint)
language plpgsql stable {walk_in_order} as $$
declare v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query
    with recursive waits as (
        (select w.key from {schema}.blocked w where w.gate = 'breaker' order by w.key limit 1)
        union all
        select n.key
        from waits w, lateral (
            select x.key from {schema}.blocked x where x.gate = 'breaker' and x.key > w.key order by x.key limit 1
        ) n
    )
    select w.key::text, v_now, b,
           (select count(*) from {schema}.breaker_probe p
            where p.breaker = b.name and p.round = b.round and {schema}.is_claim_live(p.job_id, p.claim_id, v_now))
    from waits w
    left join {schema}.breaker b on b.name = w.key
    where b.name is null or b.state <> 'open' or b.open_until <= v_now;
end $$;

-- Returns the first jobs, by seq, that wait for each of these breakers.
create or replace function {schema}.rejected_jobs(p_names text[], p_limits int[])
returns table (breaker text, job_id uuid, kind text, queue text, tenant text, priority int)
language plpgsql stable {walk_in_order} as $$
begin
    return query
    select n.name, b.job_id, b.kind::text, b.queue::text, b.tenant, b.priority
    from unnest(p_names, p_limits) n (name, jobs)
    cross join lateral (
        select w.job_id, w.kind, w.queue, w.tenant, w.priority from {schema}.blocked w
        where w.gate = 'breaker' and w.key = n.name
        order by w.seq
        limit n.jobs
    ) b;
end $$;

-- Moves such jobs out of blocked, by their seqs; one whose kind is paused, or has an open breaker, goes to that gate.
create or replace function {schema}.unblock_rejected(p_jobs uuid[], p_now timestamptz)
returns table (queue text, priority int, moved bigint)
language plpgsql volatile {look_up_ids} as $$
declare v_tids tid[];
begin
    -- The limit makes this a look-up by id; by the gate, all rejected jobs would be read.
    v_tids := array(
        select b.tid
        from unnest(p_jobs) j (id)
        cross join lateral (
            select x.ctid as tid, x.gate from {schema}.blocked x where x.job_id = j.id limit 1 for update skip locked
        ) b
        where b.gate = 'breaker');
    -- The row of one that stays blocked is a new version, and no longer found at its place.
    update {schema}.blocked b set gate = 'paused', key = b.kind
    where b.ctid = any (v_tids)
      and exists (select 1 from {schema}.pause p
                  where p.scope in {blocking_scopes} and p.name = b.kind offset 0);
    return query
    select u.queue, u.priority, u.moved
    from {schema}.unblock(array(select b.job_id from {schema}.blocked b where b.ctid = any (v_tids)), p_now) u;
end $$;
