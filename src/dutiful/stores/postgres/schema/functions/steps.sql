-- Steps of running jobs, and the events that jobs wait for.

-- Stores calls that have returned. Returns claims whose steps were not stored: not held (true), or locked by an open
-- transaction (false), so that the others of the batch need not wait for it.
create or replace function {schema}.put_steps(
    p_jobs uuid[], p_claims bigint[], p_names text[], p_positions int[], p_codes text[], p_fingerprints text[],
    p_took interval[], p_results text[], p_now timestamptz
) returns table (claim_id bigint, lost boolean)
language plpgsql volatile set lock_timeout = '2s' {look_up_ids} as $$ #variable_conflict use_column
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_held bigint[];
begin
    -- Locked, so that no job is settled or rescued before the commit.
    v_held := array(
        select l.claim_id
        from {schema}.lease l
        join (select distinct j, c from unnest(p_jobs, p_claims) g (j, c)) a on l.job_id = any (array[a.j]) and l.claim_id = a.c
        where l.cancel_requested_at is null
        for key share of l skip locked);
    insert into {schema}.step
        (job_id, claim_id, started_at, ended_at, position, name, kind, state, code, fingerprint, result)
    select a.job_id, a.claim_id, v_now - a.took, v_now, a.position, a.name, 'call', 'done', a.code, a.fingerprint,
           a.result::jsonb
    from unnest(p_jobs, p_claims, p_names, p_positions, p_codes, p_fingerprints, p_took, p_results)
      as a (job_id, claim_id, name, position, code, fingerprint, took, result)
    where a.claim_id = any (v_held)
    on conflict (job_id, name) do nothing;
    return query
    select a.c, not exists (select 1 from {schema}.lease l
                            where l.job_id = a.j and l.claim_id = a.c and l.cancel_requested_at is null)
    from (select distinct j, c from unnest(p_jobs, p_claims) g (j, c)) a
    where a.c <> all (v_held);
end $$;

-- Returns the steps of jobs.
create or replace function {schema}.steps(p_jobs uuid[]) returns setof {schema}.step
language plpgsql stable {look_up_ids} as $$
begin
    return query select s.* from {schema}.step s where s.job_id = any (p_jobs) order by s.job_id, s.position, s.name;
end $$;

-- Begins to wait in a step, or goes on: the step gets an event that its job has not got yet, or its time is over. No row:
-- the claim is not held.
create or replace function {schema}.wait_in_step(
    p_job uuid, p_claim bigint, p_name text, p_position int, p_kind text, p_code text, p_fingerprint text,
    p_timeout interval, p_event text, p_key text, p_now timestamptz
) returns setof {schema}.step
language plpgsql volatile set lock_timeout = '2s' {walk_indexes} as $$
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_tenant text;
    v_step   {schema}.step;
    v_seq    bigint;
    v_data   jsonb;
begin
    perform 1 from {schema}.lease l
    where l.job_id = p_job and l.claim_id = p_claim and l.cancel_requested_at is null
    for key share;
    if not found then return; end if;
    if p_event is not null then
        lock table {schema}.event_turn in row exclusive mode;
        select coalesce(j.tenant, '') into v_tenant from {schema}.job j where j.id = p_job;
    end if;
    insert into {schema}.step as s
        (job_id, claim_id, started_at, due_at, position, name, kind, state, code, fingerprint, event, key, of_tenant)
    values (p_job, p_claim, v_now, v_now + p_timeout, p_position, p_name, p_kind, 'waiting', p_code, p_fingerprint,
            p_event, p_key, v_tenant)
    on conflict (job_id, name) do nothing;
    select s.* into v_step from {schema}.step s where s.job_id = p_job and s.name = p_name for update;
    if v_step.state = 'waiting' and v_step.fingerprint = p_fingerprint then
        if p_event is not null then
            select e.seq, e.data into v_seq, v_data
            from {schema}.sent_event e
            where e.name = p_event and e.key = p_key and coalesce(e.tenant, '') = v_tenant and e.expires_at > v_now
              and not exists (select 1 from {schema}.step g where g.job_id = p_job and g.received = e.seq offset 0)
            order by e.seq
            limit 1;
        end if;
        if v_seq is not null or v_step.due_at <= v_now then
            update {schema}.step s
            set state = case when p_event is null or v_seq is not null then 'done' else 'timed_out' end,
                ended_at = v_now, received = v_seq, result = v_data, claim_id = p_claim
            where s.job_id = p_job and s.name = p_name
            returning s.* into v_step;
        end if;
    end if;
    return next v_step;
end $$;

-- Moves jobs that wait for an event out of its gate: they become ready, or wait for what blocks their kind.
create or replace function {schema}.wake_waiting(p_jobs uuid[], p_now timestamptz)
returns table (queue text, priority int, moved bigint)
language plpgsql volatile {look_up_ids} as $$ #variable_conflict use_column
begin
    update {schema}.blocked b
    set gate = 'paused', key = b.kind, run_at = null, seq = {schema}.seq_at(p_now)
    where b.job_id = any (p_jobs) and b.gate = 'event';
    return query
    select u.queue, u.priority, u.moved
    from {schema}.unblock(array(
        select b.job_id from {schema}.blocked b
        where b.job_id = any (p_jobs) and b.gate = 'paused' and b.kind <> all ({blocked_kinds})), p_now) u;
end $$;

-- Returns steps that wait for an event which their job has not got yet.
create or replace function {schema}.steps_waiting_for(p_seq bigint, p_limit int) returns table (job_id uuid, name text)
language sql stable as $$
    select s.job_id, s.name
    from {schema}.sent_event e
    join {schema}.step s on s.event = e.name and s.key = e.key and s.of_tenant = coalesce(e.tenant, '')
                        and s.state = 'waiting' and s.event is not null
    where e.seq = p_seq
      and not exists (select 1 from {schema}.step g where g.job_id = s.job_id and g.received = e.seq offset 0)
    limit p_limit
$$;

-- Gives stored events to the steps that wait for them, p_limit at most, and wakes jobs whose wait is over. The last row has
-- no queue; it says how many events and waits were seen. A role that may not change steps leaves it to the worker that leads.
create or replace function {schema}.deliver_events(p_limit int, p_now timestamptz)
returns table (queue text, priority int, moved bigint)
language plpgsql volatile set lock_timeout = '2s' {walk_indexes} as $$ #variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_events bigint[];
    v_jobs   uuid[];
    v_over   uuid[];
    v_seen   bigint := 0;
begin
    if not has_table_privilege('{schema}.step', 'update') then return; end if;
    if exists (select 1 from {schema}.sent_event e where not e.delivered) then
        -- A wait that has begun is committed before this is granted, and so it is seen below.
        lock table {schema}.event_turn in exclusive mode;
        v_events := array(
            select e.seq from {schema}.sent_event e where not e.delivered order by e.seq limit p_limit for update skip locked);
        -- Waits for a job that is being settled: its row is blocked then, or it finds that its step no longer waits.
        with got as (
            select distinct on (p.job_id, p.name) p.job_id, p.name, p.seq
            from (
                -- In the order of events: a step is found for a later one only if it was for the first.
                select w.job_id, w.name, v.seq
                from unnest(v_events) v (seq)
                cross join lateral {schema}.steps_waiting_for(v.seq, p_limit) w
                limit p_limit
            ) p
            order by p.job_id, p.name, p.seq
        ), given as (
            update {schema}.step s
            set state = 'done', ended_at = v_now, received = g.seq,
                result = (select e.data from {schema}.sent_event e where e.seq = g.seq)
            from got g
            where s.job_id = g.job_id and s.name = g.name and s.state = 'waiting'
            returning s.job_id
        )
        select array_agg(distinct g.job_id) into v_jobs from given g;
        -- One for which more jobs wait is taken up again by the next call.
        update {schema}.sent_event e set delivered = true
        where e.seq = any (v_events) and not exists (select 1 from {schema}.steps_waiting_for(e.seq, 1));
        get diagnostics v_seen = row_count;
        if v_seen < cardinality(v_events) then v_seen := p_limit; end if;
        if v_jobs is not null then return query select * from {schema}.wake_waiting(v_jobs, v_now); end if;
    end if;
    v_over := array(
        select b.job_id from {schema}.blocked b
        where b.gate = 'event' and b.run_at <= v_now
        order by b.run_at
        limit p_limit
        for update skip locked);
    if cardinality(v_over) > 0 then return query select * from {schema}.wake_waiting(v_over, v_now); end if;
    return query
    select null::text, null::int, greatest(v_seen, cardinality(v_over));
end $$;

-- Stores an event; false: it was stored before. As those that insert jobs, it has its owner's rights.
create or replace function {schema}.put_event(
    p_id uuid, p_name text, p_key text, p_data text, p_tenant text, p_by text, p_keep interval, p_now timestamptz
) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    if p_now is not null then perform {schema}.check_own_time(); end if;
    -- Each job that waits gets a copy. Sealed, it is longer than what was sent.
    if octet_length(p_data) > 2 * 1024 * 1024 then
        raise exception 'the data of an event may have 1 MiB of JSON'
            using errcode = 'program_limit_exceeded', hint = 'store it elsewhere, and send its id';
    end if;
    insert into {schema}.sent_event (id, sent_at, expires_at, name, key, tenant, by, data)
    values (p_id, v_now, v_now + p_keep, p_name, p_key, p_tenant, p_by, p_data::jsonb)
    on conflict (id) do nothing;
    return found;
end $$;

revoke execute on function {schema}.put_event from public;

-- Sends an event to the jobs that wait for it, or will within p_keep, when the caller's transaction commits; a worker
-- delivers it within a second. Returns its id.
create or replace function {schema}.send_event(
    p_name text, p_key text, p_data jsonb default null, p_tenant text default null, p_keep interval default '7 days'
) returns uuid
language plpgsql volatile as $$
declare v_id uuid := {schema}.new_id();
begin
    if coalesce(length(p_name) not between 1 and 200, true) or coalesce(length(p_key) not between 1 and 200, true) then
        raise exception '% must have 1 to 200 characters',
                        case when length(p_name) between 1 and 200 then 'p_key' else 'p_name' end
            using errcode = 'invalid_parameter_value';
    end if;
    if coalesce(p_keep <= interval '0', true) then
        raise exception 'p_keep must be longer than 0' using errcode = 'invalid_parameter_value';
    end if;
    if octet_length(p_data::text) > 1024 * 1024 then
        raise exception 'p_data has % bytes of JSON, and an event may have 1 MiB', octet_length(p_data::text)
            using errcode = 'program_limit_exceeded', hint = 'store it elsewhere, and send its id';
    end if;
    perform {schema}.put_event(v_id, p_name, p_key, p_data::text, p_tenant, session_user, p_keep, null);
    perform {schema}.wake_workers('[]');
    return v_id;
end $$;
