-- Operations on single jobs: cancel, run now, end.

-- Frees what jobs held that waited and have ended, and writes their posts, and the dead letters of those that failed.
create or replace function {schema}.free_ended(p_jobs uuid[], p_failed uuid[], p_now timestamptz) returns void
language plpgsql volatile {look_up_ids} as $$
begin
    delete from {schema}.unique_key where job_id = any (p_jobs) and scope = 'active';
    delete from {schema}.unique_key where job_id = any (p_jobs) and scope = 'queued';
    perform {schema}.cancel_phases(p_jobs, p_now);
    if p_failed is not null then perform {schema}.write_dead_letters(p_failed, p_now); end if;
    perform {schema}.write_webhook_posts(p_jobs, p_now);
end $$;

-- Ends a job that waits as cancelled or failed; returns whether it did. Waits for a claim that has the job locked. With
-- p_attempt, only if it has had so many attempts, and one more is counted.
create or replace function {schema}.end_waiting(
    p_job uuid, p_state text, p_error jsonb, p_now timestamptz, p_attempt int default null)
returns boolean
language plpgsql volatile {look_up_ids} as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_done boolean;
begin
    with from_ready as (
        delete from {schema}.ready where job_id = p_job and attempt = coalesce(p_attempt, attempt)
        returning attempt, crashes
    ), from_scheduled as (
        delete from {schema}.scheduled where job_id = p_job and attempt = coalesce(p_attempt, attempt)
        returning attempt, crashes
    ), from_blocked as (
        delete from {schema}.blocked where job_id = p_job and attempt = coalesce(p_attempt, attempt)
        returning attempt, crashes
    ), freed as (
        insert into {schema}.finished (job_id, finished_at, attempt, crashes, state, errors)
        select p_job, v_now, coalesce(p_attempt + 1, w.attempt), w.crashes, p_state, jsonb_build_array(p_error)
        from (select * from from_ready union all select * from from_scheduled union all select * from from_blocked) w
        returning 1
    )
    select exists (select 1 from freed) into v_done;
    if v_done then
        perform {schema}.free_ended(array[p_job], case when p_state = 'failed' then array[p_job] end, v_now);
    end if;
    return v_done;
end $$;

create or replace function {schema}.cancel_waiting(p_job uuid, p_reason text, p_now timestamptz) returns boolean
language sql volatile as $$
    select {schema}.end_waiting(p_job, 'cancelled', jsonb_build_object('type', 'Cancelled', 'message', p_reason), p_now)
$$;

-- Cancels a waiting job at once, and requests it of a running one. No row: there is no such job. As those that insert, it
-- has its owner's rights.
create or replace function {schema}.cancel(p_job uuid, p_reason text, p_now timestamptz)
returns table (state text, changed boolean, requested boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp {walk_indexes}
as $$ #variable_conflict use_column
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_state text;
begin
    if p_now is not null then perform {schema}.check_own_time(); end if;
    if not exists (select 1 from {schema}.job where id = p_job) then return; end if;
    -- Not found, it moved meanwhile: try again.
    for i in 1..100 loop
        if {schema}.cancel_waiting(p_job, p_reason, v_now) then
            return query select 'cancelled', true, false;
            return;
        end if;
        update {schema}.lease l
        set cancel_requested_at = v_now, cancel_reason = p_reason
        where l.job_id = p_job and l.cancel_requested_at is null;
        if found then
            return query select 'running', true, true;
            return;
        end if;
        if exists (select 1 from {schema}.lease l where l.job_id = p_job) then
            return query select 'running', false, true;
            return;
        end if;
        select f.state into v_state from {schema}.finished f where f.job_id = p_job;
        if found then
            return query select v_state, false, false;
            return;
        end if;
    end loop;
    raise exception 'job % stands in no place: run `dutiful doctor`', p_job;
end $$;

revoke execute on function {schema}.cancel from public;

-- Records a failed attempt of a waiting job that has had p_attempt, and lets it wait for p_delay, or until it was due;
-- returns its new state, null if there is no such job. One that waits for others goes on to do so.
create or replace function {schema}.retry_waiting(
    p_job uuid, p_error jsonb, p_attempt int, p_delay interval, p_now timestamptz)
returns text
language plpgsql volatile {look_up_ids} as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_due   timestamptz := v_now + p_delay;
    v_seq   bigint;
    w       record;
    v_state text;
begin
    update {schema}.blocked set attempt = p_attempt + 1
    where job_id = p_job and attempt = p_attempt and gate = 'dependency';
    if found then
        v_state := 'blocked';
    else
        with from_ready as (
            delete from {schema}.ready where job_id = p_job and attempt = p_attempt
            returning null::timestamptz as run_at, {carried}
        ), from_scheduled as (
            delete from {schema}.scheduled where job_id = p_job and attempt = p_attempt returning run_at, {carried}
        ), from_blocked as (
            delete from {schema}.blocked where job_id = p_job and attempt = p_attempt and gate <> 'dependency'
            returning run_at, {carried}
        )
        select * into w
        from (select * from from_ready union all select * from from_scheduled union all select * from from_blocked) f;
        if not found then return null; end if;
        w.attempt := p_attempt + 1;
        v_due := greatest(v_due, w.run_at);  -- never before the time that it was enqueued for
        if v_due <= v_now then v_seq := {schema}.seq_at(v_now); end if;
        if (v_seq is null and w.kind = any ({stopped_kinds})) or (v_seq is not null and w.kind = any ({blocked_kinds}))
        then
            insert into {schema}.blocked (job_id, since, run_at, seq, gate, key, {carried})
            values (p_job, v_now, case when v_seq is null then v_due end, v_seq, 'paused', w.kind, {carried of w});
            v_state := 'blocked';
        elsif v_seq is null then
            insert into {schema}.scheduled (run_at, job_id, {carried}) values (v_due, p_job, {carried of w});
            v_state := 'scheduled';
        else
            insert into {schema}.ready (seq, job_id, {carried}) values (v_seq, p_job, {carried of w});
            v_state := 'ready';
        end if;
    end if;
    insert into {schema}.attempt (job_id, claim_id, ended_at, next_at, attempt, outcome, error)
    values (p_job, nextval('{schema}.claim_seq'), v_now, case when v_due > v_now then v_due end, p_attempt + 1, 'failed',
            p_error);
    return v_state;
end $$;

-- Makes a job due now that is scheduled, or that a breaker has rejected; returns its state, null if there is none.
create or replace function {schema}.run_now(p_job uuid, p_now timestamptz) returns text
language plpgsql volatile {walk_indexes} as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    w       record;
    v_state text;
begin
    for i in 1..100 loop
        with from_scheduled as (
            delete from {schema}.scheduled where job_id = p_job returning {carried}
        ), from_blocked as (
            delete from {schema}.blocked where job_id = p_job and gate = 'breaker'
            returning {carried}
        )
        select * into w from (select * from from_scheduled union all select * from from_blocked) f;
        if found then
            if w.kind = any ({blocked_kinds}) then
                insert into {schema}.blocked (job_id, since, run_at, seq, gate, key, {carried})
                values (p_job, v_now, v_now, {schema}.seq_at(v_now), 'paused', w.kind, {carried of w});
                return 'blocked';
            end if;
            insert into {schema}.ready (seq, job_id, {carried})
            values ({schema}.seq_at(v_now), p_job, {carried of w});
            return 'ready';
        end if;
        select j.state into v_state from {schema}.jobs j where j.id = p_job;
        if not found then return null; end if;
        if v_state <> 'scheduled' then return v_state; end if;
    end loop;
    raise exception 'job % keeps moving: try again', p_job;
end $$;
