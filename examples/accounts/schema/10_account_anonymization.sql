-- Anonymising an account: pure SQL, so an attempt is a db_function, too, and commits together with its fact.

create table accounts.account_anonymization_task (
    account_anonymization_task_id bigserial primary key,
    account_id bigint not null unique references accounts.account,
    created_at timestamptz not null default now()
);
create table accounts.account_anonymization_attempt (
    account_anonymization_attempt_id bigserial primary key,
    account_anonymization_task_id bigint not null references accounts.account_anonymization_task,
    task_id uuid not null,  -- of the queue
    created_at timestamptz not null default now()
);
create index account_anonymization_attempt_task
    on accounts.account_anonymization_attempt (account_anonymization_task_id);
create table accounts.account_anonymization_attempt_succeeded (
    account_anonymization_attempt_id bigint primary key references accounts.account_anonymization_attempt,
    created_at timestamptz not null default now()
);
create table accounts.account_anonymization_attempt_failed (
    account_anonymization_attempt_id bigint primary key references accounts.account_anonymization_attempt,
    error_message text not null,
    created_at timestamptz not null default now()
);
create trigger append_only before update or delete on accounts.account_anonymization_task
for each row execute function internal.refuse_change();
create trigger append_only before update or delete on accounts.account_anonymization_attempt
for each row execute function internal.refuse_change();
create trigger append_only before update or delete on accounts.account_anonymization_attempt_succeeded
for each row execute function internal.refuse_change();
create trigger append_only before update or delete on accounts.account_anonymization_attempt_failed
for each row execute function internal.refuse_change();

-- The outcomes by task: every failed attempt, and the one that succeeded.
create view accounts.account_anonymization_task_failed as
select a.account_anonymization_task_id, f.account_anonymization_attempt_id, f.error_message, f.created_at
from accounts.account_anonymization_attempt_failed f
join accounts.account_anonymization_attempt a using (account_anonymization_attempt_id);

create view accounts.account_anonymization_task_succeeded as
select a.account_anonymization_task_id, s.account_anonymization_attempt_id, s.created_at
from accounts.account_anonymization_attempt_succeeded s
join accounts.account_anonymization_attempt a using (account_anonymization_attempt_id);

-- Input: facts.

create function accounts.has_account_anonymization_succeeded_attempt(_account_anonymization_task_id bigint)
returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
    select exists (select 1 from accounts.account_anonymization_task_succeeded s
                   where s.account_anonymization_task_id = _account_anonymization_task_id)
$$;

create function accounts.count_account_anonymization_failed_attempts(_account_anonymization_task_id bigint) returns int
language sql stable set search_path = pg_catalog, pg_temp as $$
    select count(*)::int from accounts.account_anonymization_task_failed f
    where f.account_anonymization_task_id = _account_anonymization_task_id
$$;

create function accounts.count_account_anonymization_attempts(_account_anonymization_task_id bigint) returns int
language sql stable set search_path = pg_catalog, pg_temp as $$
    select count(*)::int from accounts.account_anonymization_attempt a
    where a.account_anonymization_task_id = _account_anonymization_task_id
$$;

-- Returns whether an account was not anonymised in as many attempts as there may be.
create function accounts.is_account_anonymization_stuck(_account_id bigint) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
    select exists (
        select 1 from accounts.account_anonymization_task t
        where t.account_id = _account_id
          and not accounts.has_account_anonymization_succeeded_attempt(t.account_anonymization_task_id)
          and accounts.count_account_anonymization_failed_attempts(t.account_anonymization_task_id)
              >= internal.max_attempts())
$$;

-- Erases what identifies a person. It raises if that must not be: an account under legal hold stays as it is.
create function accounts.anonymize_account(_account_id bigint) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if exists (select 1 from accounts.account_flag f where f.account_id = _account_id and f.flag = 'legal_hold') then
        raise exception 'account % is under legal hold', _account_id;
    end if;
    update accounts.account set email_address = null, phone_number = null where account_id = _account_id;
    update accounts.profile set display_name = 'someone' where account_id = _account_id;
    update comms.email_message set to_address = null, subject = '', body = '' where account_id = _account_id;
    update comms.sms_message set to_number = null, body = '' where account_id = _account_id;
    insert into accounts.account_flag (account_id, flag) values (_account_id, 'anonymized') on conflict do nothing;
end $$;

-- One attempt. What anonymize_account raises is the failure of the attempt, not of the task.
create function accounts.run_account_anonymization(_payload jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    _attempt_id bigint := internal.read_id(_payload, 'account_anonymization_attempt_id');
    _account_id bigint;
begin
    if _attempt_id is null then
        return '{"status": "missing_attempt_id"}';
    end if;
    select t.account_id into _account_id
    from accounts.account_anonymization_attempt a
    join accounts.account_anonymization_task t using (account_anonymization_task_id)
    where a.account_anonymization_attempt_id = _attempt_id;
    if not found then
        return '{"status": "attempt_not_found"}';
    end if;
    begin
        perform accounts.anonymize_account(_account_id);
        insert into accounts.account_anonymization_attempt_succeeded (account_anonymization_attempt_id)
        values (_attempt_id) on conflict do nothing;
    exception when others then
        insert into accounts.account_anonymization_attempt_failed (account_anonymization_attempt_id, error_message)
        values (_attempt_id, sqlerrm) on conflict do nothing;
        return jsonb_build_object('status', 'anonymization_failed', 'error', sqlerrm);
    end;
    return '{"status": "succeeded"}';
end $$;

-- Compute and output: one check. An early or a double one makes no extra attempt.
create function accounts.account_anonymization_supervisor(_payload jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    _anonymization_task_id bigint := internal.read_id(_payload, 'account_anonymization_task_id');
    _process               text := 'accounts.account_anonymization/' || _anonymization_task_id;
    _account_id            bigint;
    _failures              int;
    _next_check_at         timestamptz;
    _attempt_id            bigint;
    _task_id               uuid := dutiful.new_id();
begin
    if _anonymization_task_id is null then
        return '{"status": "missing_account_anonymization_task_id"}';
    end if;
    select t.account_id into _account_id from accounts.account_anonymization_task t
    where t.account_anonymization_task_id = _anonymization_task_id for update;
    if not found then
        return '{"status": "account_anonymization_task_not_found"}';
    end if;

    -- An attempt whose task has ended without a fact has failed, and nothing of it was committed.
    insert into accounts.account_anonymization_attempt_failed (account_anonymization_attempt_id, error_message)
    select a.account_anonymization_attempt_id, e.error_message
    from accounts.account_anonymization_attempt a
    cross join lateral internal.ended_task(a.task_id) e
    where a.account_anonymization_task_id = _anonymization_task_id
      and not exists (select 1 from accounts.account_anonymization_attempt_succeeded s
                      where s.account_anonymization_attempt_id = a.account_anonymization_attempt_id)
    on conflict do nothing;
    if accounts.has_account_anonymization_succeeded_attempt(_anonymization_task_id) then
        return '{"status": "succeeded"}';
    end if;
    if accounts.is_account_anonymization_stuck(_account_id) then
        return '{"status": "max_attempts_reached"}';
    end if;
    _failures := accounts.count_account_anonymization_failed_attempts(_anonymization_task_id);
    _next_check_at := internal.next_check_at(_failures);

    if accounts.count_account_anonymization_attempts(_anonymization_task_id) = _failures then
        insert into accounts.account_anonymization_attempt (account_anonymization_task_id, task_id)
        values (_anonymization_task_id, _task_id)
        returning account_anonymization_attempt_id into _attempt_id;
        perform queues.enqueue(
            'db_function', jsonb_build_object(
                'task_type', 'db_function', 'db_function', 'accounts.run_account_anonymization',
                'account_anonymization_attempt_id', _attempt_id),
            _process => _process, _task_id => _task_id);
    end if;
    perform queues.enqueue(
        'db_function', jsonb_build_object(
            'task_type', 'db_function', 'db_function', 'accounts.account_anonymization_supervisor',
            'account_anonymization_task_id', _anonymization_task_id),
        _next_check_at, _process);
    return jsonb_build_object('status', 'succeeded', 'payload', jsonb_build_object(
        'account_anonymization_attempt_id', _attempt_id, 'next_check_at', _next_check_at));
end $$;

-- Begins to anonymise an account, once. A request that makes no sense is answered with a message.
create function accounts.kickoff_account_anonymization(
    _account_id bigint, _scheduled_at timestamptz default now(), out validation_failure_message text
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare _task_id bigint;
begin
    if _account_id is null then
        validation_failure_message := 'an account id is required';
        return;
    end if;
    if not exists (select 1 from accounts.account a where a.account_id = _account_id) then
        validation_failure_message := format('there is no account %s', _account_id);
        return;
    end if;
    if not internal.is_possible_time(_scheduled_at) then
        validation_failure_message := 'the time must be of the years 1 to 9999';
        return;
    end if;
    if exists (select 1 from accounts.account_anonymization_task t where t.account_id = _account_id) then
        return;  -- its supervisor is at work, or has ended
    end if;
    insert into accounts.account_anonymization_task (account_id) values (_account_id)
    on conflict (account_id) do nothing
    returning account_anonymization_task_id into _task_id;
    if _task_id is not null then
        perform queues.enqueue(
            'db_function', jsonb_build_object(
                'task_type', 'db_function', 'db_function', 'accounts.account_anonymization_supervisor',
                'account_anonymization_task_id', _task_id),
            _scheduled_at, 'accounts.account_anonymization/' || _task_id);
    end if;
end $$;
