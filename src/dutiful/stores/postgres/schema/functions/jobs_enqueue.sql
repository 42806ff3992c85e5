-- Enqueues one job from any language, with every option that the client has.

-- Without the options that came later; a second function of this name would make calls ambiguous.
drop function if exists {schema}.enqueue(
    text, jsonb, text, int, timestamptz, int, text, text, jsonb, uuid, boolean, text);

-- Raises if an enqueue was rejected, because a payload may carry a unique key that its caller does not know of.
create or replace function {schema}.check_not_rejected(p_kind text, p_holder uuid, p_insertion text) returns void
language plpgsql immutable as $$
begin
    if p_insertion = 'rejected' then
        raise exception 'kind %: job % holds the unique key', p_kind, p_holder
            using errcode = 'unique_violation', hint = 'the payload is to have another key, or nothing is to be done';
    end if;
end $$;

-- Returns the options of a job of this trace; null if it is not in W3C's spelling: a trace is worth less than the job.
create or replace function {schema}.trace_options(p_traceparent text) returns jsonb
language sql volatile as $$
    select jsonb_build_object('trace', jsonb_build_object(
        'traceparent', p_traceparent, 'at', round(extract(epoch from clock_timestamp()), 3)))
    where p_traceparent ~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'
$$;

-- Returns a job's unique key as insert_jobs takes it, null if there is none; by the same rules as in the client.
create or replace function {schema}.unique_options(
    p_key text, p_scope text, p_on_conflict text, p_window interval, p_across_kinds boolean
) returns jsonb
language plpgsql immutable as $$
begin
    if p_key is null then return null; end if;
    if p_key = '' or length(p_key) > 500 then
        raise exception 'p_unique must have 1 to 500 characters' using errcode = 'invalid_parameter_value';
    end if;
    if coalesce(p_on_conflict not in ('reject', 'return', 'replace'), true) then
        raise exception 'p_on_conflict % must be one of: reject, return, replace', p_on_conflict
            using errcode = 'invalid_parameter_value';
    end if;
    if p_scope not in ('queued', 'active', 'window', 'forever') then
        raise exception 'p_unique_scope % must be one of: queued, active, window, forever', p_scope
            using errcode = 'invalid_parameter_value';
    end if;
    if coalesce((p_scope = 'window') <> (p_window is not null), true) then
        raise exception 'give p_unique_window with p_unique_scope window, and only then'
            using errcode = 'invalid_parameter_value', hint = 'as in p_unique_window => interval ''1 hour''';
    end if;
    if p_window not between interval '0' and interval '36525 days' then
        raise exception 'p_unique_window must be from 0 to 36525 days' using errcode = 'invalid_parameter_value';
    end if;
    return jsonb_build_object(
        'key', p_key, 'scope', p_scope, 'on_conflict', p_on_conflict, 'across_kinds', p_across_kinds,
        'window_ms', round(extract(epoch from p_window) * 1000)::bigint);
end $$;

-- Returns the option webhook; null if there is none. What it may reach is judged by the sender, whose setting that is.
create or replace function {schema}.webhook_options(p_url text, p_states text[]) returns jsonb
language plpgsql immutable as $$
begin
    if p_url is null then return null; end if;
    if p_url !~ '^https?://[!-~]+$' or length(p_url) > 2000 then
        raise exception 'p_webhook must begin with https:// (or http://) and a host, and have no blanks'
            using errcode = 'invalid_parameter_value';
    end if;
    if not p_states <@ array['completed', 'completed_with_errors', 'failed', 'cancelled'] or p_states = '{}' then
        raise exception 'p_webhook_states must be some of: completed, completed_with_errors, failed, cancelled'
            using errcode = 'invalid_parameter_value';
    end if;
    return jsonb_build_object('webhook', jsonb_build_object('url', p_url, 'states', p_states));
end $$;

-- For any language, in its own transaction: dutiful.enqueue('send_email', '{"to": "ada@example.org"}'). Options that are
-- left out are those that the kind declares, if a migration or a worker has stored them.
create or replace function {schema}.enqueue(
    p_kind text, p_payload jsonb default '{}', p_queue text default null, p_priority int default null,
    p_run_at timestamptz default null, p_max_attempts int default null, p_tenant text default null,
    p_correlation_id text default null, p_subject jsonb default null, p_id uuid default null,
    p_notify boolean default true, p_traceparent text default null, p_delay interval default null,
    p_unique text default null, p_unique_scope text default 'active', p_on_conflict text default 'return',
    p_unique_window interval default null, p_across_kinds boolean default false, p_depends_on uuid[] default null,
    p_webhook text default null, p_webhook_states text[] default null, p_parent_id uuid default null,
    p_retry_of uuid default null, p_on_failure text default 'cancel'
) returns uuid
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    v_id      uuid := coalesce(p_id, {schema}.new_id());
    v_options jsonb;
    v_kind    record;
    v_stored  record;
begin
    if p_run_at is not null and p_delay is not null then
        raise exception 'give p_run_at or p_delay, not both' using errcode = 'invalid_parameter_value';
    end if;
    if p_delay not between interval '0' and interval '36525 days' then
        raise exception 'p_delay must be from 0 to 36525 days' using errcode = 'invalid_parameter_value';
    end if;
    if coalesce(p_on_failure not in ('cancel', 'run', 'fail'), true) then
        raise exception 'p_on_failure % must be one of: cancel, run, fail', p_on_failure
            using errcode = 'invalid_parameter_value';
    end if;
    if array_position(p_depends_on, null) is not null then
        raise exception 'p_depends_on has a null in it'
            using errcode = 'invalid_parameter_value', hint = 'give the ids of jobs, or leave it out';
    end if;
    if p_traceparent is not null or p_webhook is not null then
        v_options := nullif(coalesce({schema}.trace_options(p_traceparent), '{}')
                            || coalesce({schema}.webhook_options(p_webhook, p_webhook_states), '{}'), '{}');
    end if;
    select d.queue, d.priority, d.max_attempts, d.unique_as,
           exists (select 1 from {schema}.payload_rule r where r.kind = p_kind) as has_rules
    into v_kind
    from (values (p_kind)) g (kind) left join {schema}.kind_default d on d.kind = g.kind;
    if p_unique is null and v_kind.unique_as is null and p_depends_on is null and not v_kind.has_rules then
        -- As Python stores a plain job, in a third of the time that insert_jobs takes.
        perform {schema}.insert_one(
            null, case when p_notify then '[]' else '' end, v_id, p_kind, coalesce(p_queue, v_kind.queue, 'default'),
            coalesce(p_payload, '{}'), coalesce(p_priority, v_kind.priority, 100),
            coalesce(p_max_attempts, v_kind.max_attempts, 5), p_tenant, p_correlation_id, p_parent_id, p_retry_of,
            p_subject, session_user::text, v_options, p_run_at, p_delay);
        return v_id;
    end if;
    select i.job_id, i.insertion into v_stored
    from {schema}.insert_jobs(jsonb_build_array(jsonb_build_object(
        'id', v_id, 'kind', p_kind, 'payload', p_payload, 'queue', p_queue, 'priority', p_priority, 'run_at', p_run_at,
        'delay_ms', round(extract(epoch from p_delay) * 1000)::bigint,
        'max_attempts', p_max_attempts, 'tenant', p_tenant, 'correlation_id', p_correlation_id,
        'subject', p_subject, 'created_by', session_user, 'options', v_options,
        'unique', {schema}.unique_options(p_unique, p_unique_scope, p_on_conflict, p_unique_window, p_across_kinds),
        'depends_on', p_depends_on, 'policies', array_fill(p_on_failure, array[coalesce(cardinality(p_depends_on), 0)]),
        'parent_id', p_parent_id, 'retry_of', p_retry_of)),
        null, p_notify) i;
    perform {schema}.check_not_rejected(p_kind, v_stored.job_id, v_stored.insertion);
    return v_stored.job_id;
end $$;
