-- Sending an email: one task a message, attempts until one succeeds or too many have failed.

create table comms.email_message (
    email_message_id bigserial primary key,
    account_id bigint references accounts.account,
    to_address text,  -- null: its account was anonymised
    subject text not null, body text not null,
    created_at timestamptz not null default now()
);

create table comms.send_email_task (
    send_email_task_id bigserial primary key,
    email_message_id bigint not null unique references comms.email_message,
    created_at timestamptz not null default now()
);
create table comms.send_email_attempt (
    send_email_attempt_id bigserial primary key,
    send_email_task_id bigint not null references comms.send_email_task,
    task_id uuid not null,  -- of the queue
    created_at timestamptz not null default now()
);
create index send_email_attempt_task on comms.send_email_attempt (send_email_task_id);
create table comms.send_email_attempt_succeeded (
    send_email_attempt_id bigint primary key references comms.send_email_attempt,
    created_at timestamptz not null default now()
);
create table comms.send_email_attempt_failed (
    send_email_attempt_id bigint primary key references comms.send_email_attempt,
    error_message text not null,
    created_at timestamptz not null default now()
);
-- The end of a task without success.
create table comms.send_email_task_failed (
    send_email_task_id bigint primary key references comms.send_email_task,
    error_message text not null,
    created_at timestamptz not null default now()
);
create trigger append_only before update or delete on comms.send_email_task
for each row execute function internal.refuse_change();
create trigger append_only before update or delete on comms.send_email_attempt
for each row execute function internal.refuse_change();
create trigger append_only before update or delete on comms.send_email_attempt_succeeded
for each row execute function internal.refuse_change();
create trigger append_only before update or delete on comms.send_email_attempt_failed
for each row execute function internal.refuse_change();
create trigger append_only before update or delete on comms.send_email_task_failed
for each row execute function internal.refuse_change();

-- Input: facts.

create function comms.has_send_email_succeeded_attempt(_send_email_task_id bigint) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
    select exists (select 1 from comms.send_email_attempt a
                   join comms.send_email_attempt_succeeded s using (send_email_attempt_id)
                   where a.send_email_task_id = _send_email_task_id)
$$;

create function comms.count_send_email_failed_attempts(_send_email_task_id bigint) returns int
language sql stable set search_path = pg_catalog, pg_temp as $$
    select count(*)::int from comms.send_email_attempt a
    join comms.send_email_attempt_failed f using (send_email_attempt_id)
    where a.send_email_task_id = _send_email_task_id
$$;

create function comms.count_send_email_attempts(_send_email_task_id bigint) returns int
language sql stable set search_path = pg_catalog, pg_temp as $$
    select count(*)::int from comms.send_email_attempt a where a.send_email_task_id = _send_email_task_id
$$;

create function comms.is_send_email_stuck(_email_message_id bigint) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
    select exists (select 1 from comms.send_email_task t
                   join comms.send_email_task_failed f using (send_email_task_id)
                   where t.email_message_id = _email_message_id)
$$;

-- An attempt whose task has ended without a fact has failed. If the provider may have accepted the message, no attempt
-- follows: the message would be sent twice.
create function comms.close_send_email_attempts(_send_email_task_id bigint) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare _ended record;
begin
    for _ended in
        select a.send_email_attempt_id, e.accepted, e.error_message
        from comms.send_email_attempt a
        cross join lateral internal.ended_task(a.task_id) e
        where a.send_email_task_id = _send_email_task_id
          and not exists (select 1 from comms.send_email_attempt_succeeded s
                          where s.send_email_attempt_id = a.send_email_attempt_id)
          and not exists (select 1 from comms.send_email_attempt_failed f
                          where f.send_email_attempt_id = a.send_email_attempt_id)
    loop
        insert into comms.send_email_attempt_failed (send_email_attempt_id, error_message)
        values (_ended.send_email_attempt_id, _ended.error_message)
        on conflict do nothing;
        if _ended.accepted then
            insert into comms.send_email_task_failed (send_email_task_id, error_message)
            values (_send_email_task_id, 'perhaps accepted by the provider, but not recorded: ' || _ended.error_message)
            on conflict do nothing;
        end if;
    end loop;
end $$;

-- Compute and output: one check. An early or a double one makes no extra attempt.
create function comms.send_email_supervisor(_payload jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    _send_email_task_id bigint := internal.read_id(_payload, 'send_email_task_id');
    _process            text := 'comms.send_email/' || _send_email_task_id;
    _failures           int;
    _next_check_at      timestamptz;
    _attempt_id         bigint;
    _task_id            uuid := dutiful.new_id();
begin
    if _send_email_task_id is null then
        return '{"status": "missing_send_email_task_id"}';
    end if;
    perform 1 from comms.send_email_task t where t.send_email_task_id = _send_email_task_id for update;
    if not found then
        return '{"status": "send_email_task_not_found"}';
    end if;

    perform comms.close_send_email_attempts(_send_email_task_id);
    if comms.has_send_email_succeeded_attempt(_send_email_task_id) then
        return '{"status": "succeeded"}';
    end if;
    _failures := comms.count_send_email_failed_attempts(_send_email_task_id);
    if _failures >= internal.max_attempts() then
        insert into comms.send_email_task_failed (send_email_task_id, error_message)
        select _send_email_task_id, format(
            '%s of %s attempts failed, the last: %s', _failures, internal.max_attempts(), f.error_message)
        from comms.send_email_attempt a join comms.send_email_attempt_failed f using (send_email_attempt_id)
        where a.send_email_task_id = _send_email_task_id
        order by a.send_email_attempt_id desc limit 1
        on conflict do nothing;
    end if;
    if exists (select 1 from comms.send_email_task_failed f where f.send_email_task_id = _send_email_task_id) then
        return '{"status": "max_attempts_reached"}';
    end if;
    _next_check_at := internal.next_check_at(_failures);

    if comms.count_send_email_attempts(_send_email_task_id) = _failures then
        insert into comms.send_email_attempt (send_email_task_id, task_id) values (_send_email_task_id, _task_id)
        returning send_email_attempt_id into _attempt_id;
        perform queues.enqueue(
            'email', jsonb_build_object(
                'task_type', 'email', 'send_email_attempt_id', _attempt_id,
                'before_handler', 'comms.get_email_payload',
                'success_handler', 'comms.record_email_success',
                'error_handler', 'comms.record_email_failure'),
            _process => _process, _task_id => _task_id);
    end if;
    perform queues.enqueue(
        'db_function', jsonb_build_object(
            'task_type', 'db_function', 'db_function', 'comms.send_email_supervisor',
            'send_email_task_id', _send_email_task_id),
        _next_check_at, _process);
    return jsonb_build_object('status', 'succeeded', 'payload', jsonb_build_object(
        'send_email_attempt_id', _attempt_id, 'next_check_at', _next_check_at));
end $$;

-- Begins to send a message, once. A request that makes no sense is answered with a message.
create function comms.kickoff_send_email(
    _email_message_id bigint, _scheduled_at timestamptz default now(), out validation_failure_message text
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare _send_email_task_id bigint;
begin
    if _email_message_id is null then
        validation_failure_message := 'an email message id is required';
        return;
    end if;
    if not exists (select 1 from comms.email_message m where m.email_message_id = _email_message_id) then
        validation_failure_message := format('there is no email message %s', _email_message_id);
        return;
    end if;
    if not internal.is_possible_time(_scheduled_at) then
        validation_failure_message := 'the time must be of the years 1 to 9999';
        return;
    end if;
    if exists (select 1 from comms.send_email_task t where t.email_message_id = _email_message_id) then
        return;  -- its supervisor is at work, or has ended
    end if;
    insert into comms.send_email_task (email_message_id) values (_email_message_id)
    on conflict (email_message_id) do nothing
    returning send_email_task_id into _send_email_task_id;
    if _send_email_task_id is not null then
        perform queues.enqueue(
            'db_function', jsonb_build_object(
                'task_type', 'db_function', 'db_function', 'comms.send_email_supervisor',
                'send_email_task_id', _send_email_task_id),
            _scheduled_at, 'comms.send_email/' || _send_email_task_id);
    end if;
end $$;

-- Before the provider: the message that this attempt is to send.
create function comms.get_email_payload(_payload jsonb) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    _attempt_id bigint := internal.read_id(_payload, 'send_email_attempt_id');
    _message    record;
begin
    if _attempt_id is null then
        return '{"status": "missing_attempt_id"}';
    end if;
    select m.to_address, m.subject, m.body,
           exists (select 1 from comms.send_email_attempt_succeeded s
                   where s.send_email_attempt_id = _attempt_id) as sent
    into _message
    from comms.send_email_attempt a
    join comms.send_email_task t using (send_email_task_id)
    join comms.email_message m using (email_message_id)
    where a.send_email_attempt_id = _attempt_id;
    return case
        when not found then '{"status": "attempt_not_found"}'
        -- Its worker died after it had recorded the success, and before the task was completed.
        when _message.sent then '{"status": "already_sent"}'
        when _message.to_address is null then '{"status": "address_erased"}'
        else jsonb_build_object('status', 'succeeded', 'payload', jsonb_build_object(
            'to_address', _message.to_address, 'subject', _message.subject, 'body', _message.body))
    end;
end $$;

-- After the provider has accepted it. A repeat changes nothing.
create function comms.record_email_success(_payload jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare _attempt_id bigint := internal.read_id(_payload -> 'original_payload', 'send_email_attempt_id');
begin
    if _attempt_id is null then
        return '{"status": "missing_attempt_id"}';
    end if;
    if not exists (select 1 from comms.send_email_attempt a where a.send_email_attempt_id = _attempt_id) then
        return '{"status": "attempt_not_found"}';
    end if;
    insert into comms.send_email_attempt_succeeded (send_email_attempt_id) values (_attempt_id)
    on conflict do nothing;
    return '{"status": "succeeded"}';
end $$;

-- After a failure. A repeat changes nothing, and an attempt that has succeeded does not fail.
create function comms.record_email_failure(_payload jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare _attempt_id bigint := internal.read_id(_payload -> 'original_payload', 'send_email_attempt_id');
begin
    if _attempt_id is null then
        return '{"status": "missing_attempt_id"}';
    end if;
    if not exists (select 1 from comms.send_email_attempt a where a.send_email_attempt_id = _attempt_id) then
        return '{"status": "attempt_not_found"}';
    end if;
    insert into comms.send_email_attempt_failed (send_email_attempt_id, error_message)
    select _attempt_id, coalesce(_payload ->> 'error', 'unknown error')
    where not exists (select 1 from comms.send_email_attempt_succeeded s where s.send_email_attempt_id = _attempt_id)
    on conflict do nothing;
    return '{"status": "succeeded"}';
end $$;
