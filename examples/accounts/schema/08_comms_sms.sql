-- Sending an SMS: the message, and how it is asked for. All else mirrors the email, and is written by
--     dutiful supervisor new comms.send_sms --channel sms …
-- when the application is installed: database.py has the whole command.

create table comms.sms_message (
    sms_message_id bigserial primary key,
    account_id bigint references accounts.account,
    to_number text,  -- null: its account was anonymised
    body text not null,
    created_at timestamptz not null default now()
);

-- Before the provider: the message that this attempt is to send.
create function comms.get_sms_payload(_payload jsonb) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    _attempt_id bigint := internal.read_id(_payload, 'send_sms_attempt_id');
    _message    record;
begin
    if _attempt_id is null then
        return '{"status": "missing_attempt_id"}';
    end if;
    select m.to_number, m.body,
           exists (select 1 from comms.send_sms_attempt_succeeded s
                   where s.send_sms_attempt_id = _attempt_id) as sent
    into _message
    from comms.send_sms_attempt a
    join comms.send_sms_task t using (send_sms_task_id)
    join comms.sms_message m using (sms_message_id)
    where a.send_sms_attempt_id = _attempt_id;
    return case
        when not found then '{"status": "attempt_not_found"}'
        -- Its worker died after it had recorded the success, and before the task was completed.
        when _message.sent then '{"status": "already_sent"}'
        when _message.to_number is null then '{"status": "number_erased"}'
        else jsonb_build_object('status', 'succeeded', 'payload', jsonb_build_object(
            'to_number', _message.to_number, 'body', _message.body))
    end;
end $$;
