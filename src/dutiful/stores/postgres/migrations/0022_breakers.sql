-- Circuit breakers, shared by all processes.
--
-- What becomes of a breaker is decided by whoever calls, from a look at it, and written if nobody has written since:
-- `version` tells. So nobody ever holds one locked while it thinks, or while it is stopped.

-- The policy is that of whoever spoke last.
create table {schema}.breaker (
    name            text collate "C" primary key,
    version         bigint not null default 1,
    state           text not null default 'closed' check (state in ('closed', 'open', 'half_open')),
    failures        int    not null default 0,
    successes       int    not null default 0,
    neutral         int    not null default 0,
    round           bigint not null default 0,
    trips           bigint not null default 0,
    threshold       int    not null,
    open_for        interval not null,
    probes          int    not null,
    last_failure_at timestamptz,
    opened_at       timestamptz,
    open_until      timestamptz,
    half_opened_at  timestamptz,
    updated_at      timestamptz not null
);

-- Who finds out in this round. It counts for as long as the claim's lease; without a claim, the job was let out to do
-- so at `since`, and counts while it runs, or is in a line and its turn is not over.
create table {schema}.breaker_probe (
    breaker  text collate "C" not null,
    job_id   uuid   not null,
    round    bigint not null,
    claim_id bigint,
    since    timestamptz not null,
    primary key (breaker, job_id)
);

create table {schema}.breaker_kind (
    kind    text collate "C" primary key,
    breaker text collate "C" not null
);
create index breaker_kind_breaker on {schema}.breaker_kind (breaker, kind);

-- Before which gate the jobs of these kinds wait, as their breakers are now: before 'breaker' nothing of them is claimed,
-- before 'probing' what was let out may be.
create function {schema}.set_gates(p_kinds text[], p_now timestamptz) returns void
language plpgsql volatile
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    delete from {schema}.pause where scope in ('breaker', 'probing') and name = any (p_kinds);
    insert into {schema}.pause (scope, name, since, reason)
    select case b.state when 'open' then 'breaker' else 'probing' end, k.kind, p_now, 'breaker ' || b.name
    from unnest(p_kinds) a (kind)
    join {schema}.breaker_kind k on k.kind = a.kind
    join {schema}.breaker b on b.name = k.breaker
    where b.state <> 'closed'
    on conflict do nothing;
end $$;

-- All that one needs to know to enter or to leave; version 0: there is none. `place`: the claim has one among the
-- probes; `live`: its lease is not over.
create function {schema}.look_breaker(p_name text, p_job uuid, p_claim bigint, p_now timestamptz)
returns table (now_at timestamptz, kept {schema}.breaker, probing bigint, place boolean, live boolean)
language plpgsql stable
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_breaker {schema}.breaker;
begin
    select b.* into v_breaker from {schema}.breaker b where b.name = p_name;
    if v_breaker.state is null or v_breaker.state = 'closed' then
        return query select v_now, v_breaker, 0::bigint, false, true;
    else
        return query
        select v_now, v_breaker,
               (select count(*) from {schema}.breaker_probe p
                where p.breaker = p_name and p.round = v_breaker.round
                  and {schema}.is_live(p.job_id, p.claim_id, v_now)),
               exists (select 1 from {schema}.breaker_probe p
                       where p.breaker = p_name and p.job_id = p_job and p.claim_id = p_claim
                         and p.round = v_breaker.round),
               {schema}.is_live(p_job, p_claim, v_now);
    end if;
end $$;

-- Write a breaker as it was decided, if it is as it was seen: of p_version, 0 if there was none. False: look again.
-- p_turn: a new round begins. p_enters, p_leaves: the claim gets a place among the probes, or gives it up.
create function {schema}.put_breaker(
    p_name text, p_version bigint, p_state text, p_failures int, p_successes int, p_neutral int, p_round bigint,
    p_trips bigint, p_threshold int, p_open_for interval, p_probes int, p_last_failure_at timestamptz,
    p_opened_at timestamptz, p_open_until timestamptz, p_half_opened_at timestamptz, p_turn boolean, p_enters boolean,
    p_leaves boolean, p_job uuid, p_claim bigint, p_now timestamptz
) returns boolean
language plpgsql volatile
set lock_timeout = '2s' set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    if p_version = 0 then
        insert into {schema}.breaker
            (name, state, failures, successes, neutral, round, trips, threshold, open_for, probes, last_failure_at,
             opened_at, open_until, half_opened_at, updated_at)
        values (p_name, p_state, p_failures, p_successes, p_neutral, p_round, p_trips, p_threshold, p_open_for,
                p_probes, p_last_failure_at, p_opened_at, p_open_until, p_half_opened_at, p_now)
        on conflict do nothing;
    else
        update {schema}.breaker
        set version = version + 1, state = p_state, failures = p_failures, successes = p_successes,
            neutral = p_neutral, round = p_round, trips = p_trips, threshold = p_threshold, open_for = p_open_for,
            probes = p_probes, last_failure_at = p_last_failure_at, opened_at = p_opened_at, open_until = p_open_until,
            half_opened_at = p_half_opened_at, updated_at = p_now
        where name = p_name and version = p_version;
    end if;
    if not found then
        return false;
    end if;
    if p_turn then
        delete from {schema}.breaker_probe where breaker = p_name;
        perform {schema}.set_gates(array(select k.kind from {schema}.breaker_kind k where k.breaker = p_name), p_now);
    end if;
    if p_enters then
        -- Another one has the places of those whose leases are over: they must not come back to them.
        delete from {schema}.breaker_probe p
        where p.breaker = p_name and p.claim_id is not null and not {schema}.is_live(p.job_id, p.claim_id, p_now);
        insert into {schema}.breaker_probe (breaker, job_id, round, claim_id, since)
        values (p_name, p_job, p_round, p_claim, p_now)
        on conflict (breaker, job_id) do update
        set round = excluded.round, claim_id = excluded.claim_id, since = excluded.since;
    end if;
    if p_leaves then
        delete from {schema}.breaker_probe where breaker = p_name and job_id = p_job and claim_id = p_claim;
    end if;
    return true;
end $$;

-- By kind, the breaker that it declares; null: none any more. Breakers that are not there yet are made; of those that
-- are, the policy is changed if p_declared. What is as it was is not written.
create function {schema}.put_breaker_kinds(
    p_kinds text[], p_breakers text[], p_names text[], p_failures int[], p_open_for interval[], p_probes int[],
    p_declared boolean[], p_now timestamptz
) returns void
language plpgsql volatile
set lock_timeout = '2s' set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_kinds text[] := array(
        select a.kind from unnest(p_kinds, p_breakers) a (kind, breaker)
        left join {schema}.breaker_kind k on k.kind = a.kind
        where k.breaker is distinct from a.breaker);
    v_names text[];  -- of which the policy is another one
begin
    insert into {schema}.breaker (name, threshold, open_for, probes, updated_at)
    select p.name, p.failures, p.open_for, p.probes, v_now
    from unnest(p_names, p_failures, p_open_for, p_probes) p (name, failures, open_for, probes)
    where not exists (select 1 from {schema}.breaker b where b.name = p.name)
    order by p.name
    on conflict do nothing;
    v_names := array(
        select b.name
        from unnest(p_names, p_failures, p_open_for, p_probes, p_declared) p (name, failures, open_for, probes, declared)
        join {schema}.breaker b on b.name = p.name
        where p.declared
          and row(p.failures, p.open_for, p.probes) is distinct from row(b.threshold, b.open_for, b.probes));
    if cardinality(v_kinds) = 0 and cardinality(v_names) = 0 then
        return;
    end if;
    -- Nobody changes their states until we have committed, and whoever does so after us sees our kinds.
    perform 1 from {schema}.breaker b
    where b.name = any (array(
        select a.breaker from unnest(v_kinds) n (kind) join unnest(p_kinds, p_breakers) a (kind, breaker) using (kind)
        union select k.breaker from {schema}.breaker_kind k where k.kind = any (v_kinds)
        union select unnest(v_names)))
    order by b.name
    for update;
    update {schema}.breaker b
    set version = b.version + 1, threshold = p.failures, open_for = p.open_for, probes = p.probes, updated_at = v_now
    from unnest(p_names, p_failures, p_open_for, p_probes, p_declared) p (name, failures, open_for, probes, declared)
    where b.name = p.name and p.declared
      and row(b.threshold, b.open_for, b.probes) is distinct from row(p.failures, p.open_for, p.probes);
    delete from {schema}.breaker_kind k where k.kind = any (v_kinds);
    insert into {schema}.breaker_kind (kind, breaker)
    select a.kind, a.breaker
    from unnest(v_kinds) n (kind) join unnest(p_kinds, p_breakers) a (kind, breaker) using (kind)
    where a.breaker is not null
    order by a.kind
    on conflict (kind) do update set breaker = excluded.breaker;
    perform {schema}.set_gates(v_kinds, v_now);
end $$;

-- All of them, as people look at them; up to p_counted of the jobs that wait are counted.
create function {schema}.all_breakers(p_counted int, p_now timestamptz)
returns table (kept {schema}.breaker, probing bigint, kinds text[], waiting bigint)
language plpgsql stable
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    -- The limits inside make each a look-up, whatever the planner believes of the queue tables.
    return query
    with declared as (
        select k.breaker, array_agg(k.kind::text order by k.kind) as kinds from {schema}.breaker_kind k group by k.breaker
    ), under_way as (
        select p.breaker, p.round, count(*) as probing
        from {schema}.breaker_probe p
        cross join lateral (
            select l.claim_id, l.expires_at from {schema}.lease l where l.job_id = p.job_id limit 1
        ) l
        where l.claim_id = p.claim_id and l.expires_at > v_now
        group by p.breaker, p.round
    )
    select b, coalesce(u.probing, 0), coalesce(d.kinds, '{}'), coalesce(w.waiting, 0)
    from {schema}.breaker b
    left join declared d on d.breaker = b.name
    left join under_way u on u.breaker = b.name and u.round = b.round
    left join lateral (
        select count(*) as waiting
        from (select 1
              from unnest(d.kinds) k (kind)
              cross join lateral (
                  select 1 from {schema}.blocked x where x.gate = 'paused' and x.key = k.kind limit p_counted
              ) x
              union all
              (select 1 from {schema}.blocked x where x.gate = 'breaker' and x.key = b.name limit p_counted)
              limit p_counted) s
        where b.state <> 'closed'
    ) w on true
    order by b.name;
end $$;

-- Delete those that no kind declares, that keep nobody from anything, and that nobody has used since p_cutoff.
create function {schema}.forget_breakers(p_cutoff timestamptz, p_limit int, p_now timestamptz) returns bigint
language plpgsql volatile
set lock_timeout = '2s' set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_names   text[];
    v_deleted bigint;
begin
    v_names := array(
        select b.name from {schema}.breaker b
        where b.updated_at < p_cutoff and (b.state = 'closed' or b.open_until <= p_now)
          and not exists (select 1 from {schema}.breaker_kind k where k.breaker = b.name)
          and not exists (select 1 from {schema}.blocked w where w.gate = 'breaker' and w.key = b.name)
          and not exists (select 1 from {schema}.breaker_probe p join {schema}.lease l on l.job_id = p.job_id
                          where p.breaker = b.name)
        limit p_limit
        for update skip locked);
    delete from {schema}.breaker_probe where breaker = any (v_names);
    delete from {schema}.breaker where name = any (v_names);
    get diagnostics v_deleted = row_count;
    return v_deleted;
end $$;

-- Those before whose gates jobs wait that were refused inside their handlers, unless they are open; from one to the next.
-- One that has no row is closed.
create function {schema}.awaited_breakers(p_now timestamptz)
returns table (awaited text, now_at timestamptz, kept {schema}.breaker, probing bigint)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
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
            where p.breaker = b.name and p.round = b.round and {schema}.is_live(p.job_id, p.claim_id, v_now))
    from waits w
    left join {schema}.breaker b on b.name = w.key
    where b.name is null or b.state <> 'open' or b.open_until <= v_now;
end $$;

-- Of each of these the jobs that are first in line.
create function {schema}.barred_jobs(p_names text[], p_limits int[])
returns table (breaker text, job_id uuid, kind text, queue text, tenant text, priority int)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan
as $$
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

-- Let such jobs go on, to their places in line; one whose kind was paused while it waited, or has a breaker of its own that is
-- not closed, goes to that gate.
create function {schema}.free_barred(p_jobs uuid[], p_now timestamptz)
returns table (queue text, priority int, moved bigint)
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_jobs uuid[];
begin
    v_jobs := array(
        select b.job_id from {schema}.blocked b where b.job_id = any (p_jobs) and b.gate = 'breaker'
        for update skip locked);
    update {schema}.blocked b set gate = 'paused', key = b.kind
    where b.job_id = any (v_jobs)
      and exists (select 1 from {schema}.pause p
                  where p.scope in ('kind', 'breaker', 'probing') and p.name = b.kind);
    return query
    select * from {schema}.admit(
        array(select b.job_id from {schema}.blocked b where b.job_id = any (v_jobs) and b.gate = 'breaker'), p_now);
end $$;
