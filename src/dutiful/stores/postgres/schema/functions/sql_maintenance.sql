-- Maintenance that workers in SQL do themselves, so that they need no worker in Python: promotion, gates and rescue; and
-- their heartbeat.

-- Settles expired claims of these kinds, the longest expired first, by the default policy; returns how many.
-- Decides as maintenance/rescuer.py does for a kind that it does not know; test_sql_maintenance.py compares them.
create or replace function {schema}.rescue_expired(p_kinds text[], p_limit int, p_now timestamptz) returns int
language plpgsql volatile {walk_in_order} as $$
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_held    record;
    v_refused int;
begin
    select array_agg(h.job_id) as jobs, array_agg(h.claim_id) as claims,
           array_agg(case when h.cancel_requested then 'cancelled'
                          when h.crashes + 1 < {max_crashes} then 'ready' else 'failed' end) as places,
           array_agg(case when h.cancel_requested then 'cancelled' else 'lost' end) as outcomes,
           -- An attempt that was lost is not counted, unless it was the last.
           array_agg(case when h.cancel_requested or h.crashes + 1 >= {max_crashes} then h.attempt
                          else h.attempt - 1 end) as attempts,
           array_agg(case when h.cancel_requested then h.crashes else h.crashes + 1 end) as crashes,
           array_agg(case when h.cancel_requested then jsonb_build_array(jsonb_build_object(
                              'type', 'Cancelled', 'message', 'cancelled while its worker died'))::text
                          when h.crashes + 1 >= {max_crashes} then jsonb_build_array(jsonb_build_object(
                              'type', 'WorkerLost', 'class', 'transient', 'fingerprint', '{lost_fingerprint}', 'message',
                              format('the worker running this job died %s times; it may be what kills it', h.crashes + 1)
                          ))::text end) as errors,
           array_agg(case when h.cancel_requested then 'cancelled' else 'interrupted' end) as phases
    into v_held
    from {schema}.held_claims(array(
        select l.job_id from {schema}.lease l
        where l.expires_at <= v_now
          -- The offset makes this a look-up for each, whatever the statistics say.
          and exists (select 1 from {schema}.job j where j.id = l.job_id and j.kind = any (p_kinds) offset 0)
        order by l.expires_at
        limit p_limit)) h;
    if v_held.jobs is null then return 0; end if;
    select count(*) into v_refused
    from {schema}.settle(
        p_expired_only => true, p_skip_locked => false, p_now => v_now, p_job_id => v_held.jobs,
        p_claim_id => v_held.claims, p_to => v_held.places, p_outcome => v_held.outcomes,
        p_attempt => v_held.attempts, p_crashes => v_held.crashes, p_delay => null, p_result => null,
        p_errors => v_held.errors, p_keep_seq => array_fill(true, array[cardinality(v_held.jobs)]),
        p_phase_to => v_held.phases, p_wait => null, p_began => null);
    return cardinality(v_held.jobs) - v_refused;
end $$;

-- Makes jobs ready whose dependencies have completed, whose kind is no longer paused, or that limits admit, and cancels
-- or fails those with a dependency that failed; returns how many became ready. Dependents are all read, so a session that needed long for it
-- pauses, and one session at a time does it.
create or replace function {schema}.open_gates(p_limit int, p_now timestamptz) returns int
language plpgsql volatile as $$
declare
    v_began timestamptz := clock_timestamp();
    v_moved int;
begin
    if not exists (select 1 from {schema}.blocked)
       or p_now is null and {schema}.seq_at(v_began) < nullif(current_setting('dutiful.gates', true), '')::bigint then
        return 0;
    end if;
    perform 1 from {schema}.lock_secret for no key update skip locked;
    if not found then return 0; end if;
    perform {schema}.assign_due_seqs(p_limit, p_now);
    select coalesce(sum(u.moved), 0) into v_moved
    from (select r.moved from {schema}.unblock_resumed(p_limit, p_now) r
          union all
          select d.moved from {schema}.unblock_dependents(p_limit, p_now) d where d.queue is not null
          union all
          select a.moved from {schema}.admit_limited(true, p_limit, null, p_now) a where a.queue is not null
          union all
          select e.moved from {schema}.deliver_events(p_limit, p_now) e where e.queue is not null) u;
    perform set_config('dutiful.gates', {schema}.seq_at(
        clock_timestamp() + 20 * (clock_timestamp() - v_began - interval '0.1 s'))::text, false);
    return v_moved;
end $$;

-- Without the options that came later; a second function of this name would make calls ambiguous.
drop function if exists {schema}.maintain_jobs(text[], boolean, int, timestamptz);

-- Makes due jobs of all kinds ready, and those that waited for other jobs, a limit or the end of a pause; and, if p_rescue,
-- jobs of p_kinds whose lease has ended. A caller that rescues
-- must have reached the database without a break for so long that workers which live have renewed. p_seen is the seen_at
-- of its call before: if that is longer ago than p_within, this call hung in an outage, and rescues nothing. Returns how
-- many jobs were moved, up to p_limit each, when the next one is due, and its own time; wakes workers if any were moved.
create or replace function {schema}.maintain_jobs(
    p_kinds text[], p_rescue boolean default true, p_limit int default 500, p_seen timestamptz default null,
    p_within interval default '10 seconds', p_now timestamptz default null
) returns table (promoted int, rescued int, next_at timestamptz, seen_at timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$ #variable_conflict use_column
declare
    v_before   text := {schema}.act_for_all(p_now);
    v_now      timestamptz := coalesce(p_now, clock_timestamp());
    v_promoted int;
    v_rescued  int := 0;
    v_next     timestamptz;
    v_led      boolean;  -- by a worker in Python
    v_hold     boolean;  -- the leader lets workers renew first
begin
    if coalesce(p_limit < 1, true) or p_kinds is null then
        raise exception 'p_kinds must be given, and p_limit must be 1 or more' using errcode = 'invalid_parameter_value';
    end if;
    -- The row without a queue says when the next job is due.
    select coalesce(sum(p.moved), 0)::int, max(p.last_run_at) filter (where p.queue is null)
    into v_promoted, v_next
    from {schema}.promote(p_limit, '-infinity', p_now) p;
    -- A leader that lives opens gates, and knows best whether the database was away; without one, the caller does.
    select true, l.rescue_from > v_now into v_led, v_hold
    from {schema}.leader l where l.name = 'services' and l.next_by >= v_now;
    if v_led is null then v_promoted := v_promoted + {schema}.open_gates(p_limit, p_now); end if;
    if p_rescue and coalesce(v_now - p_seen <= p_within, p_seen is null) and v_hold is not true then
        v_rescued := {schema}.rescue_expired(p_kinds, p_limit, v_now);  -- not a later time, see p_seen
    end if;
    if v_promoted + v_rescued > 0 then
        perform {schema}.wake_workers('[]'),
                -- What became due long ago may be below the floors that this session remembers.
                set_config('dutiful.levels', '', false);
    end if;
    perform set_config('dutiful.tenant', v_before, true);
    return query select v_promoted, v_rescued, v_next, v_now;
end $$;

revoke execute on function {schema}.maintain_jobs(text[], boolean, int, timestamptz, interval, timestamptz) from public;

-- Records that a worker in SQL lives, for p_ttl, what it serves, and which jobs it runs: `dutiful workers` lists it, and
-- `dutiful doctor` and `dutiful drain` know it. Called while no dequeue of the worker is under way, because it also notes
-- the pauses that the next ones respect. p_slots 0: it has stopped. p_process identifies the process on its host.
create or replace function {schema}.report_worker(
    p_worker uuid, p_name text, p_kinds text[], p_queues text[] default null, p_slots int default 1,
    p_jobs uuid[] default '{}', p_ttl interval default '30 seconds', p_host text default '', p_pid int default 0,
    p_process text default null, p_lane text default 'sql'
) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp {use_indexes} as $$
declare
    v_most constant int := 1000;
    v_now  timestamptz := clock_timestamp();
begin
    if not coalesce(p_worker is not null and p_pid is not null and length(p_name) <= 500 and length(p_host) <= 500
                    and p_slots >= 0 and p_ttl > interval '0' and p_ttl <= interval '1 hour' and cardinality(p_kinds) <= 1000
                    and coalesce(cardinality(p_queues), 0) <= 1000 and cardinality(p_jobs) <= 1500
                    and array_position(p_kinds, null) is null and array_position(p_queues, null) is null
                    and array_position(p_jobs, null) is null and p_lane is not null
                    and (select max(length(n)) <= 200 and sum(length(n)) <= 20000
                         from unnest(p_kinds || p_queues || p_lane || coalesce(p_process, '')) n),
                    false) then
        raise exception 'p_slots must be 0 or more, p_ttl at most an hour, lists short, and names of 200 characters at most'
            using errcode = 'invalid_parameter_value',
                  hint = 'p_worker and p_name must be given; lists have no nulls; p_name and p_host may have 500 characters';
    end if;
    -- Only what this function has written: the record of a worker in Python has a mode of locks, or more lanes.
    if p_slots = 0 then
        delete from {schema}.worker w where w.id = p_worker and w.locks is null and w.lanes - p_lane = '{}';
        return;
    end if;
    -- Whoever lists workers reads all records, each worker in Python too, and this login may invent any. Those that have
    -- ended make room.
    if not exists (select 1 from {schema}.worker w where w.id = p_worker) then
        if (select count(*) from {schema}.worker w where w.locks is null) >= v_most then
            delete from {schema}.worker w where w.locks is null and w.expires_at < v_now;
        end if;
        if (select count(*) from {schema}.worker w where w.locks is null) >= v_most then
            raise exception '% workers in SQL are on record, and there is room for no more', v_most
                using errcode = 'program_limit_exceeded',
                      hint = 'all sessions of a process are one p_worker, which is removed at its end by p_slots => 0';
        end if;
    end if;
    insert into {schema}.worker as w
        (id, name, host, pid, process_started, started_at, seen_at, expires_at, lanes, kinds)
    values (p_worker, p_name, p_host, p_pid, p_process, v_now, v_now, v_now + p_ttl, jsonb_build_object(
        p_lane, jsonb_build_object(
            'slots', p_slots, 'queues', coalesce(to_jsonb(p_queues), '["*"]'), 'busy', cardinality(p_jobs), 'jobs', p_jobs,
            'pauses_seen', (
                select coalesce(jsonb_agg(concat_ws(' ', s.scope, s.name, to_char(
                           s.since at time zone 'UTC', case when extract(microseconds from s.since)::bigint % 1000000 = 0
                                                            then 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"'
                                                            else 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"' end))), '[]')
                from {schema}.pause s where s.scope in ('queue', 'kind', 'lane')))), to_jsonb(p_kinds))
    on conflict (id) do update
    set seen_at = excluded.seen_at, expires_at = excluded.expires_at, lanes = excluded.lanes, kinds = excluded.kinds
    where w.locks is null and w.lanes - p_lane = '{}';
end $$;

revoke execute on function {schema}.report_worker(
    uuid, text, text[], text[], int, uuid[], interval, text, int, text, text) from public;
