-- needs: claims_settle
-- Published for workers in plain SQL or any language: dequeue, renew, complete, fail, release, look up. They claim and
-- settle by the functions of claims.sql and claims_settle.sql, so their claims are fenced as those of Python workers.
--
-- Those that write have their owner's rights, so that a worker's role needs no right to any table. Therefore only
-- the owner may execute them until it is granted.

-- Makes all tenants visible where policies bind the owner, too. Returns the setting that is to be restored; an error
-- restores it by itself. Refuses a time of the caller's own, unless the owner gives it: others could forge history.
create or replace function {schema}.act_for_all(p_now timestamptz) returns text
language plpgsql volatile as $$
declare
    v_before text := coalesce(current_setting('dutiful.tenant', true), '');
    -- Assigned, because `perform` would run a query for it.
    v_all    text := set_config('dutiful.tenant', '*', true);
begin
    if p_now is not null then perform {schema}.check_own_time(); end if;
    return v_before;
end $$;

-- Raises unless a lease is long enough to work, and short enough that its end is awaited if its worker dies.
create or replace function {schema}.check_lease(p_lease interval) returns void
language plpgsql immutable as $$
begin
    if coalesce(p_lease <= interval '0' or p_lease > interval '1 day', true) then
        raise exception 'p_lease must be longer than 0 and at most a day'
            using errcode = 'invalid_parameter_value', hint = 'renew it while the work goes on';
    end if;
end $$;

-- Renews a lease, to end p_lease from now. Returns 'held'; 'cancel_requested', if it is held but a person wants its job
-- to stop; 'lost', if the claim is no longer held, and nothing that its worker does counts any more.
--
-- Unlike renew, it waits for who settles, cancels or rescues the claim at the same time: 'held' has to mean that the lease
-- was renewed, because a session does not ask again soon. After 2 s it raises lock_not_available.
create or replace function {schema}.renew_job(
    p_job uuid, p_claim bigint, p_lease interval default '5 minutes', p_now timestamptz default null
) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' {use_indexes} as $$
declare
    v_before text := {schema}.act_for_all(p_now);
    v_cancel boolean;
    v_held   boolean;
begin
    perform {schema}.check_lease(p_lease);
    update {schema}.lease l set expires_at = coalesce(p_now, clock_timestamp()) + p_lease
    where l.job_id = p_job and l.claim_id = p_claim
    returning l.cancel_requested_at is not null into v_cancel;
    v_held := found;
    perform set_config('dutiful.tenant', v_before, true);
    return case when not v_held then 'lost' when v_cancel then 'cancel_requested' else 'held' end;
end $$;

-- Renews many leases, as renew_job does; answers 'locked', without a wait, for one that another transaction holds: it was
-- not renewed, and is to be renewed again soon.
create or replace function {schema}.renew_jobs(
    p_jobs uuid[], p_claims bigint[], p_lease interval default '5 minutes', p_now timestamptz default null
) returns table (job_id uuid, claim_id bigint, answer text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp {look_up_ids}
as $$ #variable_conflict use_column
declare
    v_before  text := {schema}.act_for_all(p_now);
    v_renewed bigint[];
begin
    perform {schema}.check_lease(p_lease);
    if cardinality(p_jobs) is distinct from cardinality(p_claims) then
        raise exception 'p_jobs and p_claims must be of one length: the claim of each job, in the same order'
            using errcode = 'invalid_parameter_value';
    end if;
    with renewed as (
        update {schema}.lease l set expires_at = coalesce(p_now, clock_timestamp()) + p_lease
        where l.ctid = any (array(
            select x.ctid from {schema}.lease x
            join unnest(p_jobs, p_claims) a (job_id, claim_id)
              on x.job_id = any (array[a.job_id]) and x.claim_id = a.claim_id
            for no key update of x skip locked))
        returning l.claim_id
    )
    select array_agg(r.claim_id) into v_renewed from renewed r;
    return query
    select a.job_id, a.claim_id,
           case when c.claim_id is null then 'lost'
                when a.claim_id <> all (coalesce(v_renewed, '{}')) then 'locked'
                when c.cancel then 'cancel_requested' else 'held' end
    from unnest(p_jobs, p_claims) a (job_id, claim_id)
    left join {schema}.check_claims(p_jobs, p_claims) c on c.job_id = a.job_id and c.claim_id = a.claim_id;
    perform set_config('dutiful.tenant', v_before, true);
end $$;

-- Returns whether a settlement that found no claim is 'repeated', or 'lost', which it records as an attempt.
create or replace function {schema}.refuse_one(p_job uuid, p_claim bigint, p_outcome text, p_now timestamptz)
returns text
language sql volatile as $$
    select r.reason from {schema}.record_refusals(array[p_job], array[p_claim], array[p_outcome], p_now) r
$$;

-- Writes an outcome other than done, with the attempts that it leaves spent: p_counted false, without this one. Returns
-- 'applied', 'repeated' or 'lost'; 'cancelled', if its cancellation was requested, because then it ends so.
create or replace function {schema}.settle_one(
    p_job uuid, p_claim bigint, p_to text, p_outcome text, p_counted boolean, p_delay interval, p_result jsonb,
    p_errors jsonb, p_now timestamptz
) returns text
language plpgsql volatile {use_indexes} as $$
declare
    v_held   record;
    v_reason text;
begin
    -- Neither changes while the claim is held.
    select l.attempt, l.crashes into v_held
    from {schema}.lease l where l.job_id = p_job and l.claim_id = p_claim;
    select s.reason into v_reason
    from {schema}.settle(
        p_expired_only => false, p_skip_locked => false, p_now => p_now, p_job_id => array[p_job],
        p_claim_id => array[p_claim], p_to => array[p_to], p_outcome => array[p_outcome],
        p_attempt => array[v_held.attempt - case when p_counted then 0 else 1 end],
        p_crashes => array[v_held.crashes], p_delay => array[p_delay], p_result => array[p_result::text],
        p_errors => array[p_errors::text], p_keep_seq => array[p_outcome = 'released'],
        p_wait => null, p_began => array[p_outcome = 'released'],
        p_phase_to => array[case when p_outcome = 'released' then 'interrupted'
                                 when p_outcome not in ('done', 'partial') then p_outcome end]) s;
    if not found then return 'applied'; end if;
    if v_reason = 'cancel_requested' then
        v_reason := {schema}.settle_one(
            p_job, p_claim, 'cancelled', 'cancelled', true, null, null,
            jsonb_build_array(jsonb_build_object('type', 'Cancelled', 'message', 'cancelled')), p_now);
        return case v_reason when 'applied' then 'cancelled' else v_reason end;
    end if;
    return {schema}.refuse_one(p_job, p_claim, p_outcome, p_now);
end $$;

-- Returns how long to wait after a failed attempt, as Exponential() of core/retry/backoff.py does; p_uniform: 0 to 1.
create or replace function {schema}.backoff_after(p_attempt int, p_uniform double precision) returns interval
language sql immutable as $$
    select make_interval(secs => least(2 ^ least(p_attempt - 1, 30) * (1 + 0.1 * p_uniform), 300))
$$;

-- Returns an error as it is stored. Secrets can be found in SQL, but not cut out of a text, so it is withheld.
create or replace function {schema}.error_info(p_type text, p_message text, p_retryable boolean) returns jsonb
language plpgsql stable as $$
declare
    v_text   text := coalesce(p_message, '');
    v_secret text := coalesce({schema}.secret_shape(left(v_text, 10000)), (
        select {schema}.name_meaning({schema}.name_words(m[1]))
        -- A value is not consumed, because it may be the next name, as in `failed: token=…`. A client may have cut it out.
        from regexp_matches(
            left(v_text, 10000),
            '([[:alpha:]][[:alnum:]_-]*)["'']?\s*[=:](?!\s*["'']?\[redacted\])(?=\s*\S)', 'g') m
        where {schema}.name_meaning({schema}.name_words(m[1])) is not null
        limit 1));
    v_note   text := format('… (%s characters in all)', length(v_text));
begin
    if v_secret is not null then v_text := format('(withheld: it has %s)', v_secret); end if;
    return jsonb_build_object(
        'type', left(p_type, 200),
        'message', case when length(v_text) > 500 then left(v_text, 500 - length(v_note)) || v_note else v_text end,
        'class', case when p_retryable then 'retryable' else 'non_retryable' end,
        -- Without words that differ from job to job, as ids and quotations.
        'fingerprint', left(md5(p_type || regexp_replace(
            left(v_text, 2000), '''[^'']*''|"[^"]*"|\S*[0-9@/\\]\S*', '#', 'g')), 16));
end $$;

-- Returns the errors of a job that has completed, as they are stored: messages as error_info has them. Raises unless they
-- are an array of objects.
create or replace function {schema}.errors_info(p_errors jsonb) returns jsonb
language plpgsql stable as $$
begin
    perform {schema}.check_size('p_errors', p_errors, 262144);
    if jsonb_typeof(p_errors) <> 'array' or p_errors = '[]' or p_errors @? '$[*] ? (@.type() != "object")' then
        raise exception 'p_errors must be an array of one object or more' using errcode = 'invalid_parameter_value';
    end if;
    return (select jsonb_agg(e.value || jsonb_build_object('type', i.info -> 'type', 'message', i.info -> 'message')
                             order by e.ordinality)
            from jsonb_array_elements(p_errors) with ordinality e,
                 {schema}.error_info(coalesce(e.value ->> 'type', 'Error'), e.value ->> 'message', false) i (info));
end $$;

-- Raises if JSON is larger than that many bytes: one job must not fill a page of everyone's lists.
create or replace function {schema}.check_size(p_what text, p_value jsonb, p_most int) returns void
language plpgsql immutable as $$
begin
    if octet_length(p_value::text) > p_most then
        raise exception '% has % bytes, more than %', p_what, octet_length(p_value::text), p_most
            using errcode = 'invalid_parameter_value', hint = 'store it elsewhere and pass a reference';
    end if;
end $$;

-- Completes a job, with a result of 1 MB at most, as in Python by default; with p_errors, an array of objects, as
-- completed_with_errors. Returns 'applied', 'repeated' or 'lost'; 'cancelled', if a person has cancelled it meanwhile.
create or replace function {schema}.complete_job(
    p_job uuid, p_claim bigint, p_result jsonb default null, p_errors jsonb default null,
    p_now timestamptz default null
) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' {use_indexes} as $$
declare
    v_before text := coalesce(current_setting('dutiful.tenant', true), '');
    v_all    text := set_config('dutiful.tenant', '*', true);
    v_came   text := 'applied';
begin
    if p_now is not null then perform {schema}.check_own_time(); end if;
    if p_result is not null then perform {schema}.check_size('p_result', p_result, 1048576); end if;
    if p_errors is not null then
        v_came := {schema}.settle_one(
            p_job, p_claim, 'completed_with_errors', 'partial', true, null, p_result, {schema}.errors_info(p_errors),
            p_now);
    elsif not {schema}.finish_one(p_job, p_claim, p_result, coalesce(p_now, clock_timestamp())) then
        v_came := {schema}.settle_one(p_job, p_claim, 'completed', 'done', true, null, p_result, null, p_now);
    end if;
    v_before := set_config('dutiful.tenant', v_before, true);
    return v_came;
end $$;

-- Records a failed attempt. The job is tried again after p_delay, or the default backoff, unless p_retry is false or this
-- was the last of its attempts. Returns 'retried', 'failed', 'cancelled', 'repeated' or 'lost'.
-- Decides as core/settle.py does; tests/integration/test_sql_workers.py compares them.
create or replace function {schema}.fail_job(
    p_job uuid, p_claim bigint, p_message text, p_retry boolean default true, p_delay interval default null,
    p_type text default 'Error', p_now timestamptz default null
) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp {use_indexes} as $$
declare
    v_before text := {schema}.act_for_all(p_now);
    v_tried  int := (select l.attempt from {schema}.lease l where l.job_id = p_job and l.claim_id = p_claim);
    -- A driver may pass null for what is left out, and a job is not to be given up by that.
    v_retry  boolean := coalesce(p_retry, true);
    v_again  boolean := v_retry and v_tried < (select j.max_attempts from {schema}.job j where j.id = p_job);
    v_delay  interval;
    v_came   text;
begin
    if v_again then
        v_delay := least(coalesce(p_delay, {schema}.backoff_after(v_tried, random())), interval '36525 days');
    end if;
    v_came := {schema}.settle_one(
        p_job, p_claim,
        case when not coalesce(v_again, false) then 'failed' when v_delay > interval '0' then 'scheduled' else 'ready' end,
        'failed', true, case when v_delay > interval '0' then v_delay end, null,
        jsonb_build_array({schema}.error_info(coalesce(p_type, 'Error'), p_message, v_retry)), p_now);
    perform set_config('dutiful.tenant', v_before, true);
    return case when v_came = 'applied' then case when v_again then 'retried' else 'failed' end else v_came end;
end $$;

-- Gives a job back to the position that it had in its queue; the attempt is recorded, and not counted. Returns 'applied', 'cancelled',
-- 'repeated' or 'lost'.
create or replace function {schema}.release_job(p_job uuid, p_claim bigint, p_now timestamptz default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_before text := {schema}.act_for_all(p_now);
    v_came   text := {schema}.settle_one(p_job, p_claim, 'ready', 'released', false, null, null, null, p_now);
begin
    perform set_config('dutiful.tenant', v_before, true);
    return v_came;
end $$;

revoke execute on function {schema}.renew_job(uuid, bigint, interval, timestamptz) from public;
revoke execute on function {schema}.renew_jobs(uuid[], bigint[], interval, timestamptz) from public;
revoke execute on function {schema}.complete_job(uuid, bigint, jsonb, jsonb, timestamptz) from public;
revoke execute on function {schema}.fail_job(uuid, bigint, text, boolean, interval, text, timestamptz) from public;
revoke execute on function {schema}.release_job(uuid, bigint, timestamptz) from public;

-- Returns where a job stands; no row if there is none that the caller may see. It has its caller's rights.
create or replace function {schema}.look_up_job(p_job uuid) returns table (
    job_id uuid, kind text, queue text, state text, attempt int, max_attempts int, created_at timestamptz,
    run_at timestamptz, started_at timestamptz, finished_at timestamptz, expires_at timestamptz,
    cancel_requested boolean, result jsonb, errors jsonb, last_error jsonb, crashes int
)
language plpgsql stable set search_path = pg_catalog, pg_temp {look_up_ids} as $$ #variable_conflict use_column
begin
    return query
    select v.id, v.kind, v.queue, v.state, v.attempt, v.max_attempts, v.created_at, v.run_at, v.started_at,
           v.finished_at, v.expires_at, v.cancel_requested_at is not null, v.result, v.errors, v.last_error,
           v.crashes
    from {schema}.jobs v where v.id = any (array[p_job]);
end $$;
