-- What people do to a job.

-- End a job that waits as cancelled or failed. Returns whether it did; one that a claim holds locked is waited for.
create function {schema}.end_waiting(p_job uuid, p_state text, p_error jsonb, p_now timestamptz) returns boolean
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_done boolean;
begin
    with from_ready as (
        delete from {schema}.ready where job_id = p_job returning attempt, crashes
    ), from_scheduled as (
        delete from {schema}.scheduled where job_id = p_job returning attempt, crashes
    ), from_blocked as (
        delete from {schema}.blocked where job_id = p_job returning attempt, crashes
    ), freed as (
        insert into {schema}.finished (job_id, finished_at, attempt, crashes, state, errors)
        select p_job, v_now, w.attempt, w.crashes, p_state, jsonb_build_array(p_error)
        from (select * from from_ready union all select * from from_scheduled union all select * from from_blocked) w
        returning 1
    )
    select exists (select 1 from freed) into v_done;
    if v_done then
        delete from {schema}.unique_key where job_id = p_job and scope = 'active';
        delete from {schema}.unique_key where job_id = p_job and scope = 'queued';
        perform {schema}.cancel_phases(array[p_job], v_now);
        if p_state = 'failed' then
            perform {schema}.bury(array[p_job], v_now);
        end if;
        perform {schema}.announce(array[p_job], v_now);
    end if;
    return v_done;
end $$;

create function {schema}.cancel_waiting(p_job uuid, p_reason text, p_now timestamptz) returns boolean
language sql volatile as $$
    select {schema}.end_waiting(p_job, 'cancelled', jsonb_build_object('type', 'Cancelled', 'message', p_reason), p_now)
$$;

-- Cancel: a waiting job at once, a running one by request. No row: there is no such job.
create function {schema}.cancel(p_job uuid, p_reason text, p_now timestamptz)
returns table (state text, changed boolean, requested boolean)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_state text;
begin
    if not exists (select 1 from {schema}.job where id = p_job) then
        return;
    end if;
    -- Found nowhere means that it moved while we looked: look again.
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

-- Make a job due now that is scheduled, or that a breaker has barred; answers where the job stands then. Null: there is no
-- such job.
create function {schema}.expedite(p_job uuid, p_now timestamptz) returns text
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_row  record;
    v_state text;
begin
    for i in 1..100 loop
        with from_scheduled as (
            delete from {schema}.scheduled where job_id = p_job
            returning priority, attempt, crashes, queue, kind, tenant
        ), from_blocked as (
            delete from {schema}.blocked where job_id = p_job and gate = 'breaker'
            returning priority, attempt, crashes, queue, kind, tenant
        )
        select * into v_row from (select * from from_scheduled union all select * from from_blocked) w;
        if found then
            if exists (select 1 from {schema}.pause
                       where scope in ('kind', 'breaker', 'probing') and name = v_row.kind) then
                insert into {schema}.blocked
                    (job_id, since, run_at, seq, priority, attempt, crashes, gate, key, queue, kind, tenant)
                values (p_job, v_now, v_now, nextval('{schema}.ready_seq'), v_row.priority, v_row.attempt, v_row.crashes,
                        'paused', v_row.kind, v_row.queue, v_row.kind, v_row.tenant);
                return 'blocked';
            end if;
            insert into {schema}.ready (seq, job_id, priority, attempt, crashes, queue, kind, tenant)
            values (nextval('{schema}.ready_seq'), p_job, v_row.priority, v_row.attempt, v_row.crashes, v_row.queue,
                    v_row.kind, v_row.tenant);
            return 'ready';
        end if;
        select j.state into v_state from {schema}.jobs j where j.id = p_job;
        if not found then
            return null;
        end if;
        if v_state <> 'scheduled' then
            return v_state;
        end if;
    end loop;
    raise exception 'job % keeps moving: try again', p_job;
end $$;
