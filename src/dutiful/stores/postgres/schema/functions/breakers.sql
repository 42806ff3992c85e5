-- Circuit breakers, shared by all processes. The caller reads a breaker, decides, and writes it if its version is still
-- the one it read, so that no process holds a breaker locked while it decides, or while it is stopped.

-- Sets the gates of these kinds by the state of their breakers: at 'breaker' none of their jobs is claimed, at
-- 'probing' only those that were admitted as probes.
create or replace function {schema}.set_gates(p_kinds text[], p_now timestamptz) returns void
language plpgsql volatile {use_indexes} as $$
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

-- Returns all that a caller needs to enter or exit; version 0: there is none. `is_probe`: the claim is one of the probes;
-- `live`: its lease has not expired.
create or replace function {schema}.read_breaker(p_name text, p_job uuid, p_claim bigint, p_now timestamptz)
returns table (now_at timestamptz, kept {schema}.breaker, probing bigint, is_probe boolean, live boolean)
language plpgsql stable {use_indexes} as $$ #variable_conflict use_column
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
                  and {schema}.is_claim_live(p.job_id, p.claim_id, v_now)),
               exists (select 1 from {schema}.breaker_probe p
                       where p.breaker = p_name and p.job_id = p_job and p.claim_id = p_claim
                         and p.round = v_breaker.round),
               {schema}.is_claim_live(p_job, p_claim, v_now);
    end if;
end $$;

-- Writes a breaker, given as JSON with the names of its table, if its version is still p_version, 0 for none. False:
-- read it again. p_turn: a new round begins. p_enters, p_exits: the claim becomes a probe, or stops being one.
create or replace function {schema}.put_breaker(
    p_breaker jsonb, p_version bigint, p_turn boolean, p_enters boolean, p_exits boolean, p_job uuid, p_claim bigint,
    p_now timestamptz
) returns boolean
language plpgsql volatile set lock_timeout = '2s' {use_indexes} as $$
declare b {schema}.breaker := jsonb_populate_record(null::{schema}.breaker, p_breaker);
begin
    b.version := p_version + 1;
    b.updated_at := p_now;
    if p_version = 0 then
        insert into {schema}.breaker ({breaker}) values ({breaker of b}) on conflict do nothing;
    else
        update {schema}.breaker x set ({breaker}) = ({breaker of b}) where x.name = b.name and x.version = p_version;
    end if;
    if not found then return false; end if;
    if p_turn then
        delete from {schema}.breaker_probe where breaker = b.name;
        perform {schema}.set_gates(array(select k.kind from {schema}.breaker_kind k where k.breaker = b.name), p_now);
    end if;
    if p_enters then
        -- Expired claims have been replaced by other probes, and must not become probes again.
        delete from {schema}.breaker_probe p
        where p.breaker = b.name and p.claim_id is not null and not {schema}.is_claim_live(p.job_id, p.claim_id, p_now);
        insert into {schema}.breaker_probe (breaker, job_id, round, claim_id, since)
        values (b.name, p_job, b.round, p_claim, p_now)
        on conflict (breaker, job_id) do update
        set round = excluded.round, claim_id = excluded.claim_id, since = excluded.since;
    end if;
    if p_exits then
        delete from {schema}.breaker_probe where breaker = b.name and job_id = p_job and claim_id = p_claim;
    end if;
    return true;
end $$;

-- Writes the breaker that each kind declares; null: none any more. Breakers that do not exist are created; the policy
-- of existing ones is changed if p_declared. Nothing is written that has not changed.
create or replace function {schema}.put_breaker_kinds(
    p_kinds text[], p_breakers text[], p_names text[], p_failures int[], p_open_for interval[], p_probes int[],
    p_declared boolean[], p_now timestamptz
) returns void
language plpgsql volatile set lock_timeout = '2s' {use_indexes} as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_kinds text[] := array(
        select a.kind from unnest(p_kinds, p_breakers) a (kind, breaker)
        left join {schema}.breaker_kind k on k.kind = a.kind
        where k.breaker is distinct from a.breaker);
    v_names text[];  -- of which the policy is another one
begin
    insert into {schema}.breaker (name, failures_allowed, open_for, probes, updated_at)
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
          and row(p.failures, p.open_for, p.probes) is distinct from row(b.failures_allowed, b.open_for, b.probes));
    if cardinality(v_kinds) = 0 and cardinality(v_names) = 0 then return; end if;
    -- Their states cannot change before the commit, and later changes see these kinds.
    perform 1 from {schema}.breaker b
    where b.name = any (array(
        select a.breaker from unnest(v_kinds) n (kind) join unnest(p_kinds, p_breakers) a (kind, breaker) using (kind)
        union select k.breaker from {schema}.breaker_kind k where k.kind = any (v_kinds)
        union select unnest(v_names)))
    order by b.name
    for update;
    update {schema}.breaker b
    set version = b.version + 1, failures_allowed = p.failures, open_for = p.open_for, probes = p.probes, updated_at = v_now
    from unnest(p_names, p_failures, p_open_for, p_probes, p_declared) p (name, failures, open_for, probes, declared)
    where b.name = p.name and p.declared
      and row(b.failures_allowed, b.open_for, b.probes) is distinct from row(p.failures, p.open_for, p.probes);
    delete from {schema}.breaker_kind k where k.kind = any (v_kinds);
    insert into {schema}.breaker_kind (kind, breaker)
    select a.kind, a.breaker
    from unnest(v_kinds) n (kind) join unnest(p_kinds, p_breakers) a (kind, breaker) using (kind)
    where a.breaker is not null
    order by a.kind
    on conflict (kind) do update set breaker = excluded.breaker;
    perform {schema}.set_gates(v_kinds, v_now);
end $$;

-- Returns all breakers for display; waiting jobs are counted up to p_counted.
create or replace function {schema}.all_breakers(p_counted int, p_now timestamptz)
returns table (kept {schema}.breaker, probing bigint, kinds text[], waiting bigint)
language plpgsql stable {use_indexes} as $$ #variable_conflict use_column
declare v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    -- The limits inside make each a look-up, also if the planner believes the queue tables to be empty.
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

-- Deletes breakers that no kind declares, that block no job, and that were not used since p_cutoff.
create or replace function {schema}.delete_unused_breakers(p_cutoff timestamptz, p_limit int, p_now timestamptz)
returns bigint
language plpgsql volatile set lock_timeout = '2s' set enable_hashjoin = off set enable_mergejoin = off as $$
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
