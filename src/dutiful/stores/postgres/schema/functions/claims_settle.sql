-- Settles claims: writes outcomes, fenced by the claim, and all that follows from a job's end.

-- Returns whether a key's holder no longer needs it. Freeing skips locked rows, so an unneeded key may be left.
create or replace function {schema}.is_key_orphaned(p_job uuid, p_scope text) returns boolean
language sql stable as $$
    select case p_scope
        when 'queued' then exists (select 1 from {schema}.lease l where l.job_id = p_job)
                        or exists (select 1 from {schema}.finished f where f.job_id = p_job)
        when 'active' then exists (select 1 from {schema}.finished f where f.job_id = p_job)
        else false end
$$;

-- Frees the keys of jobs that are final. Skips locked rows instead of waiting for a user's open transaction.
create or replace function {schema}.free_active_keys(p_jobs uuid[]) returns void
language plpgsql volatile as $$
begin
    delete from {schema}.unique_key u
    where u.ctid = any (array(
        select k.ctid from {schema}.unique_key k
        where k.scope = 'active' and k.job_id = any (p_jobs)
        for update skip locked));
end $$;

-- Completes jobs. Returns those that were not: 'cancel_requested', 'locked', or null where the claim is not held.
-- p_webhooks: which jobs name a webhook of their own, if any; p_skip_locked: do not wait for users' transactions.
create or replace function {schema}.complete(
    p_jobs uuid[], p_claims bigint[], p_results text[], p_webhooks boolean[], p_skip_locked boolean, p_now timestamptz
) returns table (job_id uuid, claim_id bigint, reason text)
language plpgsql volatile set lock_timeout = '2s' {look_up_ids} as $$ #variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_gone   uuid[];
    v_claims bigint[];
    v_free   bigint[];
begin
    if p_skip_locked then
        v_free := array(
            select l.claim_id from {schema}.lease l
            where l.job_id = any (p_jobs) and l.claim_id = any (p_claims)
            for update skip locked);
    end if;
    with gone as (
        delete from {schema}.lease l
        using unnest(p_jobs, p_claims, p_results) as a (job_id, claim_id, result)
        where l.job_id = any (array[a.job_id]) and l.claim_id = a.claim_id
          and (not p_skip_locked or l.claim_id = any (v_free)) and l.cancel_requested_at is null
        returning l.job_id, l.claim_id, l.worker_id, l.claimed_at, l.attempt, l.crashes, a.result
    ), ended as (
        insert into {schema}.finished
            (job_id, claim_id, worker_id, claimed_at, finished_at, attempt, crashes, state, result)
        select g.job_id, g.claim_id, g.worker_id, g.claimed_at, v_now, g.attempt, g.crashes, 'completed', g.result::jsonb
        from gone g
    )
    select array_agg(g.job_id), array_agg(g.claim_id) into v_gone, v_claims from gone g;
    perform {schema}.free_active_keys(v_gone);
    if exists (select 1 from {schema}.webhook where enabled and states <> '{}') then
        perform {schema}.write_webhook_posts(v_gone, v_now);
    elsif p_webhooks is not null then
        perform {schema}.write_webhook_posts(
            array(select a.job_id from unnest(p_jobs, p_webhooks) a (job_id, own) where a.own and a.job_id = any (v_gone)),
            v_now);
    end if;
    if coalesce(cardinality(v_claims), 0) < cardinality(p_jobs) then
        return query
        select a.job_id, a.claim_id,
               (select case when p_skip_locked and l.claim_id <> all (v_free) then 'locked'
                            when l.cancel_requested_at is not null then 'cancel_requested' end
                from {schema}.lease l where l.job_id = a.job_id and l.claim_id = a.claim_id)
        from unnest(p_jobs, p_claims) a (job_id, claim_id)
        where a.claim_id <> all (coalesce(v_claims, '{}'));
    end if;
end $$;

-- Completes one job, as `complete` does, in small statements: for one job they are half the work. False: the claim is not
-- held, or a cancellation is requested. It has the planner settings of its callers.
create or replace function {schema}.finish_one(p_job uuid, p_claim bigint, p_result jsonb, p_now timestamptz)
returns boolean
language plpgsql volatile as $$
declare
    v_worker  uuid;
    v_began   timestamptz;
    v_attempt int;
    v_crashes int;
    v_unique  boolean;
    v_posted  boolean;
begin
    delete from {schema}.lease l where l.job_id = p_job and l.claim_id = p_claim and l.cancel_requested_at is null
    returning l.worker_id, l.claimed_at, l.attempt, l.crashes,
              exists (select 1 from {schema}.unique_key k where k.scope = 'active' and k.job_id = p_job),
              exists (select 1 from {schema}.webhook w where w.enabled and w.states <> '{}')
                  or (select j.options ? 'webhook' from {schema}.job j where j.id = p_job)
    into v_worker, v_began, v_attempt, v_crashes, v_unique, v_posted;
    if not found then return false; end if;
    insert into {schema}.finished
        (job_id, claim_id, worker_id, claimed_at, finished_at, attempt, crashes, state, result)
    values (p_job, p_claim, v_worker, v_began, p_now, v_attempt, v_crashes, 'completed', p_result);
    if v_unique then perform {schema}.free_active_keys(array[p_job]); end if;
    if v_posted then perform {schema}.write_webhook_posts(array[p_job], p_now); end if;
    return true;
end $$;

-- Completes one job in a transaction of the user's own; with p_errors, as completed_with_errors. Its running phase is
-- completed with it, because no later report can do so.
create or replace function {schema}.complete_one(p_job uuid, p_claim bigint, p_result text, p_errors text)
returns setof uuid
language plpgsql volatile set lock_timeout = '2s' {use_indexes} as $$
declare
    v_lease {schema}.lease;
    v_lost  boolean;
begin
    if p_errors is null then
        return query
        select p_job where not {schema}.finish_one(p_job, p_claim, p_result::jsonb, clock_timestamp());
    else
        select l.* into v_lease from {schema}.lease l where l.job_id = p_job and l.claim_id = p_claim;
        return query
        select s.job_id
        from {schema}.settle(
            p_expired_only => false, p_skip_locked => false, p_now => null, p_job_id => array[p_job],
            p_claim_id => array[p_claim], p_to => array['completed_with_errors'], p_outcome => array['partial'],
            p_attempt => array[v_lease.attempt], p_crashes => array[v_lease.crashes], p_delay => null,
            p_result => array[p_result], p_errors => array[p_errors], p_keep_seq => array[false], p_phase_to => null,
            p_wait => null, p_began => null) s;
    end if;
    v_lost := found;
    if not v_lost then
        update {schema}.phase
        set state = 'completed', claim_id = p_claim, ended_at = clock_timestamp(), result = p_result::jsonb
        where job_id = p_job and state = 'running';
        if found then
            update {schema}.progress
            set percent = 100, overall = 100, updated_at = clock_timestamp()
            where job_id = p_job;
        end if;
    end if;
end $$;

-- Keeps only the last of a job's consecutive rejections by one breaker, because an open one may reject it for hours.
create or replace function {schema}.compact_rejections(p_jobs uuid[]) returns void
language plpgsql volatile {look_up_ids} as $$
begin
    -- Ordered by a sum, which no index has, because along the primary key every attempt of every job might be read.
    delete from {schema}.attempt t
    where t.id = any (array(
        select before.id
        from unnest(p_jobs) b (job_id),
             lateral (select a.error ->> 'breaker' as breaker from {schema}.attempt a
                      where a.job_id = b.job_id order by a.id + 0 desc limit 1) this,
             lateral (select a.id, a.outcome, a.error ->> 'breaker' as breaker from {schema}.attempt a
                      where a.job_id = b.job_id order by a.id + 0 desc offset 1 limit 1) before
        where before.outcome = 'snoozed' and before.breaker = this.breaker));
end $$;

-- Writes decided changes. Returns those not applied: 'cancel_requested', 'locked', or null where the claim is not held.
create or replace function {schema}.settle(
    p_expired_only boolean, p_skip_locked boolean, p_now timestamptz, {change_parameters}
) returns table (job_id uuid, claim_id bigint, reason text)
language plpgsql volatile set lock_timeout = '2s' {look_up_ids} as $$ #variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_seq    bigint := {schema}.seq_at(v_now);
    v_paused text[] := {blocked_kinds};
    v_stopped text[] := {stopped_kinds};
    v_gone   bigint[];
    v_final  uuid[];
    v_dead   uuid[];
    v_free   bigint[];
    v_phased uuid[];
    v_phases text[];
    v_errors jsonb[];
    v_halted uuid[];
    v_posting  uuid[];
    v_rejected uuid[];
    v_began    uuid[];
    v_began_at timestamptz[];
    v_waiting  uuid[];
    v_keys     text[];
    v_due      timestamptz[];
begin
    if array_length(array_remove(p_wait, null), 1) > 0 then
        -- Locked, so that a delivery of the event comes before, and its job is ready, or finds the job blocked.
        -- A job of which one step is over is not among them.
        select array_agg(b.job_id), array_agg(b.key), array_agg(b.due_at)
        into v_waiting, v_keys, v_due
        from (select w.job_id, min(w.event || ':' || w.key) as key, min(w.due_at) as due_at
              from (select s.job_id, s.event, s.key, s.due_at, json_array_length(a.steps::json) as asked
                    from unnest(p_job_id, p_wait) a (job_id, steps)
                    cross join lateral json_array_elements_text(a.steps::json) n (name)
                    join {schema}.step s on s.job_id = any (array[a.job_id]) and s.name = n.name
                    where s.state = 'waiting'
                    order by s.job_id, s.name
                    for update of s) w
              group by w.job_id
              having count(*) = min(w.asked) and coalesce(min(w.due_at) > v_now, true)) b;
    end if;
    if p_expired_only or p_skip_locked then
        -- A locked lease is being renewed or settled: not expired, and not worth a wait.
        v_free := array(
            select l.claim_id from {schema}.lease l
            where l.job_id = any (p_job_id) and l.claim_id = any (p_claim_id)
              and (not p_expired_only or l.expires_at <= v_now)
            for update skip locked);
    end if;
    with asked as (
        select * from {changes_given}
    ), gone as (
        -- The expiry and the cancel are tested in the DELETE, because it waits for a renewal and then tests again.
        delete from {schema}.lease l
        using asked a
        where l.job_id = any (array[a.job_id]) and l.claim_id = a.claim_id
          and (not p_expired_only or l.expires_at <= v_now)
          and (v_free is null or l.claim_id = any (v_free))
          and (l.cancel_requested_at is null or a."to" = 'cancelled')
        returning l.job_id, l.claim_id, l.worker_id, l.claimed_at, l.attempt as this_attempt, l.seq,
                  a."to" as target, a.outcome, a.attempt, a.crashes, a.delay, a.result, a.keep_seq, a.phase_to, a.wait,
                  a.began,
                  -- The request to cancel gave the reason.
                  case when a."to" = 'cancelled' and l.cancel_reason is not null
                       then jsonb_build_array(jsonb_build_object('type', 'Cancelled', 'message', l.cancel_reason))
                       else a.errors::jsonb end as errors
    ), moved as (
        select g.*, {route of j},
               j.options ? 'phases' as phased, j.options ? 'webhook' as own_webhook,
               case when g.wait is not null and w.key is null and j.kind <> all (v_paused) then 'ready'
                    when (g.target = 'ready' and j.kind = any (v_paused))
                      or (g.target = 'scheduled' and j.kind = any (v_stopped)) then 'blocked'
                    else g.target end as place,
               g.target = 'blocked' and g.wait is null and j.kind <> all (v_stopped) as rejected,
               w.key as event, w.due_at
        from gone g join {schema}.job j on j.id = any (array[g.job_id])
        left join unnest(v_waiting, v_keys, v_due) w (job_id, key, due_at) on w.job_id = g.job_id
    ), ended as (
        insert into {schema}.finished
            (job_id, claim_id, worker_id, claimed_at, finished_at, attempt, crashes, state, result, errors)
        select m.job_id, m.claim_id, m.worker_id, m.claimed_at, v_now, m.attempt, m.crashes, m.place,
               m.result::jsonb, m.errors
        from moved m where m.place not in ('ready', 'scheduled', 'blocked')
    ), tried as (
        insert into {schema}.attempt
            (job_id, claim_id, worker_id, claimed_at, ended_at, next_at, attempt, outcome, error)
        select m.job_id, m.claim_id, m.worker_id, m.claimed_at, v_now, coalesce(m.due_at, v_now + m.delay), m.this_attempt,
               m.outcome, m.errors -> 0
        from moved m where m.place in ('ready', 'scheduled', 'blocked')
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, {carried})
        select case when m.keep_seq then m.seq else v_seq end, m.job_id, {carried of m}
        from moved m where m.place = 'ready'
    ), to_scheduled as (
        insert into {schema}.scheduled (run_at, job_id, {carried})
        select v_now + m.delay, m.job_id, {carried of m} from moved m where m.place = 'scheduled'
    ), to_blocked as (
        insert into {schema}.blocked (job_id, since, run_at, seq, gate, key, {carried})
        select m.job_id, v_now, coalesce(m.due_at, v_now + m.delay),
               case when m.event is not null then null
                    when m.keep_seq then m.seq
                    when m.delay is null or m.delay <= interval '0' then v_seq end,
               case when m.event is not null then 'event' when m.rejected then 'breaker' else 'paused' end,
               case when m.event is not null then m.event
                    when m.rejected then m.errors -> 0 ->> 'breaker' else m.kind end, {carried of m}
        from moved m where m.place = 'blocked'
    )
    select array_agg(m.claim_id), array_agg(m.job_id) filter (where m.place not in ('ready', 'scheduled', 'blocked')),
           array_agg(m.job_id) filter (where m.place = 'failed'),
           array_agg(m.job_id) filter (where m.phase_to is not null),
           array_agg(m.phase_to) filter (where m.phase_to is not null),
           array_agg(m.errors -> 0) filter (where m.phase_to is not null),
           array_agg(m.job_id) filter (where m.phase_to = 'cancelled' and m.phased),
           array_agg(m.job_id) filter (where m.place not in ('ready', 'scheduled', 'blocked') and m.own_webhook),
           array_agg(m.job_id) filter (where m.outcome = 'snoozed' and m.errors -> 0 ? 'breaker'),
           array_agg(m.job_id) filter (where m.began), array_agg(m.claimed_at) filter (where m.began)
    into v_gone, v_final, v_dead, v_phased, v_phases, v_errors, v_halted, v_posting, v_rejected, v_began, v_began_at
    from moved m;

    if v_began is not null then perform {schema}.count_starts(v_began, v_began_at); end if;
    if v_rejected is not null then perform {schema}.compact_rejections(v_rejected); end if;
    if v_dead is not null then perform {schema}.write_dead_letters(v_dead, v_now); end if;
    perform {schema}.free_active_keys(v_final);
    if v_phased is not null then perform {schema}.end_phases(v_phased, v_phases, v_errors, v_now); end if;
    if v_halted is not null then perform {schema}.cancel_phases(v_halted, v_now); end if;
    if v_final is not null and exists (select 1 from {schema}.webhook where enabled and states <> '{}') then
        perform {schema}.write_webhook_posts(v_final, v_now);
    elsif v_posting is not null then
        perform {schema}.write_webhook_posts(v_posting, v_now);
    end if;
    return query
    select a.job_id, a.claim_id,
           (select case when p_skip_locked and l.claim_id <> all (v_free) then 'locked'
                        when l.cancel_requested_at is not null then 'cancel_requested' end
            from {schema}.lease l
            where l.job_id = a.job_id and l.claim_id = a.claim_id
              and (not p_expired_only or l.expires_at <= v_now))
    from unnest(p_job_id, p_claim_id) a (job_id, claim_id)
    where a.claim_id <> all (coalesce(v_gone, '{}'));
end $$;

-- Returns for outcomes that were not applied whether each is 'repeated', or 'lost', which is recorded as an attempt.
-- Decides as is_repeat and refused_error of core/settle.py do; tests/conformance/test_stores_agree.py compares them.
create or replace function {schema}.record_refusals(
    p_jobs uuid[], p_claims bigint[], p_outcomes text[], p_now timestamptz
) returns table (job_id uuid, claim_id bigint, reason text)
language plpgsql volatile {look_up_ids} as $$ #variable_conflict use_column
declare v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query
    -- The offsets make each a look-up, whatever the statistics say.
    with asked as (
        select a.job_id, a.claim_id, a.outcome,
               exists (select 1 from {schema}.finished f
                       where f.job_id = a.job_id and f.claim_id = a.claim_id
                         -- A success does not repeat a failure or a cancellation.
                         and not (a.outcome in ('done', 'partial') and f.state in ('failed', 'cancelled'))
                       offset 0)
               or exists (select 1 from {schema}.attempt t
                          where t.job_id = a.job_id and t.claim_id = a.claim_id and t.outcome = a.outcome offset 0)
                  as repeated
        from unnest(p_jobs, p_claims, p_outcomes) a (job_id, claim_id, outcome)
    ), noted as (
        insert into {schema}.attempt (job_id, claim_id, ended_at, attempt, outcome, error)
        select a.job_id, a.claim_id, v_now,
               coalesce((select max(t.attempt) from {schema}.attempt t
                         where t.job_id = a.job_id and t.claim_id = a.claim_id), 0),
               'refused',
               jsonb_build_object('type', 'ClaimLost', 'message', 'its outcome came after the claim was lost: ' || a.outcome)
        from asked a
        where not a.repeated
          and exists (select 1 from {schema}.job j where j.id = a.job_id offset 0)
          and not exists (select 1 from {schema}.attempt t
                          where t.job_id = a.job_id and t.claim_id = a.claim_id and t.outcome = 'refused' offset 0)
          -- A claim that was lost has left a row. Of numbers that may be invented, a few are noted for each job.
          and (exists (select 1 from {schema}.attempt t
                       where t.job_id = a.job_id and t.claim_id = a.claim_id offset 0)
               or (select count(*) from {schema}.attempt t where t.job_id = a.job_id and t.outcome = 'refused') < 20)
    )
    select a.job_id, a.claim_id, case when a.repeated then 'repeated' else 'lost' end from asked a;
end $$;
