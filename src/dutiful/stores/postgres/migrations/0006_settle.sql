-- What becomes of a job that ran, and what its end brings with it.

-- Whether a key's holder no longer needs it: freeing skips a row that is locked, and then this stays true.
create function {schema}.is_left_behind(p_job uuid, p_scope text) returns boolean
language sql stable as $$
    select case p_scope
        when 'queued' then exists (select 1 from {schema}.lease l where l.job_id = p_job)
                        or exists (select 1 from {schema}.finished f where f.job_id = p_job)
        when 'active' then exists (select 1 from {schema}.finished f where f.job_id = p_job)
        else false end
$$;

-- Free the keys of jobs that are final. Never waits: somebody's open transaction may hold one.
create function {schema}.free_active(p_jobs uuid[]) returns void
language plpgsql volatile as $$
begin
    delete from {schema}.unique_key u
    where u.ctid = any (array(
        select k.ctid from {schema}.unique_key k
        where k.scope = 'active' and k.job_id = any (p_jobs)
        for update skip locked));
end $$;

-- Write the dead letters of jobs that have just failed for good.
create function {schema}.bury(p_jobs uuid[], p_now timestamptz) returns void
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
    insert into {schema}.dead_letter
        (job_id, died_at, created_at, attempt, max_attempts, kind, queue, tenant, correlation_id, unique_key,
         error_class, error_type, message, fingerprint, job, errors, history)
    select j.id, p_now, j.created_at, f.attempt, j.max_attempts, j.kind, j.queue, j.tenant,
           coalesce(j.correlation_id, j.id::text), j.options ->> 'unique',
           f.errors #>> '{0,class}', f.errors #>> '{0,type}', f.errors #>> '{0,message}',
           f.errors #>> '{0,fingerprint}', to_jsonb(j), f.errors,
           (select jsonb_agg(to_jsonb(t) - '{id,next_at}'::text[] order by t.id) from {schema}.attempt t where t.job_id = j.id)
    from {schema}.job j join {schema}.finished f on f.job_id = j.id
    where j.id = any (p_jobs);
end $$;

-- The common end: done. Returns those that were not applied: 'locked', or null where the claim was not held.
-- p_webhooks: which jobs name a webhook of their own; null: none does. p_skip_locked: wait for nobody's transaction.
create function {schema}.complete(
    p_jobs uuid[], p_claims bigint[], p_results text[], p_webhooks boolean[], p_skip_locked boolean, p_now timestamptz
) returns table (job_id uuid, claim_id bigint, verdict text)
language plpgsql volatile
set lock_timeout = '2s' set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
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
        where l.job_id = a.job_id and l.claim_id = a.claim_id
          and (not p_skip_locked or l.claim_id = any (v_free))
        returning l.job_id, l.claim_id, l.worker_id, l.claimed_at, l.attempt, l.crashes, a.result
    ), ended as (
        insert into {schema}.finished
            (job_id, claim_id, worker_id, claimed_at, finished_at, attempt, crashes, state, result)
        select g.job_id, g.claim_id, g.worker_id, g.claimed_at, v_now, g.attempt, g.crashes, 'completed', g.result::jsonb
        from gone g
    )
    select array_agg(g.job_id), array_agg(g.claim_id) into v_gone, v_claims from gone g;
    perform {schema}.free_active(v_gone);
    if exists (select 1 from {schema}.webhook where enabled and states <> '{}') then
        perform {schema}.announce(v_gone, v_now);
    elsif p_webhooks is not null then
        perform {schema}.announce(
            array(select a.job_id from unnest(p_jobs, p_webhooks) a (job_id, own) where a.own and a.job_id = any (v_gone)),
            v_now);
    end if;
    if coalesce(cardinality(v_claims), 0) < cardinality(p_jobs) then
        return query
        select a.job_id, a.claim_id,
               (select 'locked' from {schema}.lease l
                where p_skip_locked and l.job_id = a.job_id and l.claim_id = a.claim_id)
        from unnest(p_jobs, p_claims) a (job_id, claim_id)
        where a.claim_id <> all (coalesce(v_claims, '{}'));
    end if;
end $$;

-- The same for one job in a transaction of the user's own; with errors, it is completed in spite of them. Its last phase
-- ends with it, for nobody can say so earlier or later.
create function {schema}.complete_one(p_job uuid, p_claim bigint, p_result text, p_errors text) returns setof uuid
language plpgsql volatile
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_lease {schema}.lease;
    v_lost  boolean;
begin
    if p_errors is null then
        return query
        select c.job_id from {schema}.complete(array[p_job], array[p_claim], array[p_result], array[true], false, null) c;
    else
        select l.* into v_lease from {schema}.lease l where l.job_id = p_job and l.claim_id = p_claim;
        return query
        select s.job_id
        from {schema}.settle(
            array[p_job], array[p_claim], array['completed_with_errors'], array['partial'], array[v_lease.attempt],
            array[v_lease.crashes], array[null::interval], array[p_result], array[p_errors], array[false],
            array[null::text], false, false, null) s;
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

-- Of jobs that a breaker has barred again, only the last time is kept, however long it is open.
create function {schema}.forget_barred(p_jobs uuid[]) returns void
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
    delete from {schema}.attempt t
    using unnest(p_jobs) b (job_id),
          lateral (select a.error ->> 'breaker' as breaker from {schema}.attempt a
                   where a.job_id = b.job_id order by a.id desc limit 1) this,
          lateral (select a.id, a.outcome, a.error ->> 'breaker' as breaker from {schema}.attempt a
                   where a.job_id = b.job_id order by a.id desc offset 1 limit 1) before
    where t.id = before.id and before.outcome = 'snoozed' and before.breaker = this.breaker;
end $$;

-- Write decided changes. Returns those not applied: 'cancel_requested', 'locked', or null where the claim was not held.
create function {schema}.settle(
    p_jobs uuid[], p_claims bigint[], p_to text[], p_outcomes text[], p_attempts int[], p_crashes int[],
    p_delays interval[], p_results text[], p_errors text[], p_keep_seq boolean[], p_phase_to text[],
    p_lapsed_only boolean, p_skip_locked boolean, p_now timestamptz
) returns table (job_id uuid, claim_id bigint, verdict text)
language plpgsql volatile
set lock_timeout = '2s' set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_paused text[] := array(select name from {schema}.pause where scope in ('kind', 'breaker', 'probing'));
    v_gone   bigint[];
    v_final  uuid[];
    v_dead   uuid[];
    v_free   bigint[];
    v_phased uuid[];
    v_phases text[];
    v_errors jsonb[];
    v_halted uuid[];
    v_tell   uuid[];
    v_barred uuid[];
begin
    if p_lapsed_only or p_skip_locked then
        -- A lease that somebody holds locked is being renewed or settled: not lapsed, and not worth a wait.
        v_free := array(
            select l.claim_id from {schema}.lease l
            where l.job_id = any (p_jobs) and l.claim_id = any (p_claims)
              and (not p_lapsed_only or l.expires_at <= v_now)
            for update skip locked);
    end if;
    with asked as (
        select * from unnest(p_jobs, p_claims, p_to, p_outcomes, p_attempts, p_crashes, p_delays, p_results, p_errors,
                             p_keep_seq, p_phase_to)
          as a (job_id, claim_id, target, outcome, attempt, crashes, delay, result, errors, keep_seq, phase_to)
    ), gone as (
        -- The expiry and the cancel are tested in the DELETE itself: it waits for a renewal and then looks again.
        delete from {schema}.lease l
        using asked a
        where l.job_id = a.job_id and l.claim_id = a.claim_id
          and (not p_lapsed_only or l.expires_at <= v_now)
          and (v_free is null or l.claim_id = any (v_free))
          and (l.cancel_requested_at is null or a.target not in ('ready', 'scheduled', 'blocked'))
        returning l.job_id, l.claim_id, l.worker_id, l.claimed_at, l.attempt as this_attempt, l.seq,
                  a.target, a.outcome, a.attempt, a.crashes, a.delay, a.result, a.keep_seq, a.phase_to,
                  -- Whoever asked for the end has said why.
                  case when a.target = 'cancelled' and l.cancel_reason is not null
                       then jsonb_build_array(jsonb_build_object('type', 'Cancelled', 'message', l.cancel_reason))
                       else a.errors::jsonb end as errors
    ), moved as (
        select g.*, j.queue, j.kind, j.priority, j.tenant,
               j.options ? 'phases' as phased, j.options ? 'webhook' as telling,
               case when g.target in ('ready', 'scheduled') and j.kind = any (v_paused) then 'blocked'
                    else g.target end as place,
               g.target = 'blocked' and j.kind <> all (v_paused) as barred
        from gone g join {schema}.job j on j.id = g.job_id
    ), ended as (
        insert into {schema}.finished
            (job_id, claim_id, worker_id, claimed_at, finished_at, attempt, crashes, state, result, errors)
        select m.job_id, m.claim_id, m.worker_id, m.claimed_at, v_now, m.attempt, m.crashes, m.place,
               m.result::jsonb, m.errors
        from moved m where m.place not in ('ready', 'scheduled', 'blocked')
    ), tried as (
        insert into {schema}.attempt
            (job_id, claim_id, worker_id, claimed_at, ended_at, next_at, attempt, outcome, error)
        select m.job_id, m.claim_id, m.worker_id, m.claimed_at, v_now, v_now + m.delay, m.this_attempt, m.outcome,
               m.errors -> 0
        from moved m where m.place in ('ready', 'scheduled', 'blocked') and m.outcome <> 'released'
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, priority, attempt, crashes, queue, kind, tenant)
        select case when m.keep_seq then m.seq else nextval('{schema}.ready_seq') end,
               m.job_id, m.priority, m.attempt, m.crashes, m.queue, m.kind, m.tenant
        from moved m where m.place = 'ready'
    ), to_scheduled as (
        insert into {schema}.scheduled (run_at, job_id, priority, attempt, crashes, queue, kind, tenant)
        select v_now + m.delay, m.job_id, m.priority, m.attempt, m.crashes, m.queue, m.kind, m.tenant
        from moved m where m.place = 'scheduled'
    ), to_blocked as (
        insert into {schema}.blocked
            (job_id, since, run_at, seq, priority, attempt, crashes, gate, key, queue, kind, tenant)
        select m.job_id, v_now, v_now + m.delay,
               case when m.keep_seq then m.seq
                    when m.delay is null or m.delay <= interval '0' then nextval('{schema}.ready_seq') end,
               m.priority, m.attempt, m.crashes, case when m.barred then 'breaker' else 'paused' end,
               case when m.barred then m.errors -> 0 ->> 'breaker' else m.kind end, m.queue, m.kind, m.tenant
        from moved m where m.place = 'blocked'
    )
    select array_agg(m.claim_id), array_agg(m.job_id) filter (where m.place not in ('ready', 'scheduled', 'blocked')),
           array_agg(m.job_id) filter (where m.place = 'failed'),
           array_agg(m.job_id) filter (where m.phase_to is not null),
           array_agg(m.phase_to) filter (where m.phase_to is not null),
           array_agg(m.errors -> 0) filter (where m.phase_to is not null),
           array_agg(m.job_id) filter (where m.phase_to = 'cancelled' and m.phased),
           array_agg(m.job_id) filter (where m.place not in ('ready', 'scheduled', 'blocked') and m.telling),
           array_agg(m.job_id) filter (where m.outcome = 'snoozed' and m.errors -> 0 ? 'breaker')
    into v_gone, v_final, v_dead, v_phased, v_phases, v_errors, v_halted, v_tell, v_barred from moved m;

    if v_barred is not null then
        perform {schema}.forget_barred(v_barred);
    end if;
    if v_dead is not null then
        perform {schema}.bury(v_dead, v_now);
    end if;
    perform {schema}.free_active(v_final);
    if v_phased is not null then
        perform {schema}.end_phases(v_phased, v_phases, v_errors, v_now);
    end if;
    if v_halted is not null then
        perform {schema}.cancel_phases(v_halted, v_now);
    end if;
    if v_final is not null and exists (select 1 from {schema}.webhook where enabled and states <> '{}') then
        perform {schema}.announce(v_final, v_now);
    elsif v_tell is not null then
        perform {schema}.announce(v_tell, v_now);
    end if;
    return query
    select a.job_id, a.claim_id,
           (select case when p_skip_locked and l.claim_id <> all (v_free) then 'locked'
                        when l.cancel_requested_at is not null then 'cancel_requested' end
            from {schema}.lease l
            where l.job_id = a.job_id and l.claim_id = a.claim_id
              and (not p_lapsed_only or l.expires_at <= v_now))
    from unnest(p_jobs, p_claims) a (job_id, claim_id)
    where a.claim_id <> all (coalesce(v_gone, '{}'));
end $$;

-- Why were these not applied? 'repeated' if they had been before, else 'lost', which leaves a record.
create function {schema}.refuse(p_jobs uuid[], p_claims bigint[], p_outcomes text[], p_now timestamptz)
returns table (job_id uuid, claim_id bigint, verdict text)
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query
    with asked as (
        select a.job_id, a.claim_id, a.outcome,
               exists (select 1 from {schema}.finished f
                       where f.job_id = a.job_id and f.claim_id = a.claim_id
                         -- A success is no repeat of what somebody else has ended otherwise.
                         and not (a.outcome in ('done', 'partial') and f.state in ('failed', 'cancelled')))
               or exists (select 1 from {schema}.attempt t
                          where t.job_id = a.job_id and t.claim_id = a.claim_id and t.outcome = a.outcome)
               -- Giving back leaves no row; a claim that was taken from us has left one.
               or (a.outcome = 'released' and not exists (
                       select 1 from {schema}.attempt t where t.job_id = a.job_id and t.claim_id = a.claim_id))
                  as repeated
        from unnest(p_jobs, p_claims, p_outcomes) a (job_id, claim_id, outcome)
    ), noted as (
        insert into {schema}.attempt (job_id, claim_id, ended_at, attempt, outcome, error)
        select a.job_id, a.claim_id, v_now,
               coalesce((select max(t.attempt) from {schema}.attempt t
                         where t.job_id = a.job_id and t.claim_id = a.claim_id), 0),
               'refused',
               jsonb_build_object('type', 'ClaimLost', 'message', 'came too late with: ' || a.outcome)
        from asked a
        where not a.repeated
          and exists (select 1 from {schema}.job j where j.id = a.job_id)
          and not exists (select 1 from {schema}.attempt t
                          where t.job_id = a.job_id and t.claim_id = a.claim_id and t.outcome = 'refused')
    )
    select a.job_id, a.claim_id, case when a.repeated then 'repeated' else 'lost' end from asked a;
end $$;
