-- Deleting an account: the root of a tree. It waits for the deletion of each file, then for the anonymisation.

create table accounts.account_deletion_task (
    account_deletion_task_id bigserial primary key,
    account_id bigint not null unique references accounts.account,
    created_at timestamptz not null default now()
);
-- The end: one row in one of the two.
create table accounts.account_deletion_task_succeeded (
    account_deletion_task_id bigint primary key references accounts.account_deletion_task,
    created_at timestamptz not null default now()
);
create table accounts.account_deletion_task_failed (
    account_deletion_task_id bigint primary key references accounts.account_deletion_task,
    error_message text not null,
    created_at timestamptz not null default now()
);
create trigger append_only before update or delete on accounts.account_deletion_task
for each row execute function internal.refuse_change();
create trigger append_only before update or delete on accounts.account_deletion_task_succeeded
for each row execute function internal.refuse_change();
create trigger append_only before update or delete on accounts.account_deletion_task_failed
for each row execute function internal.refuse_change();

-- Input: facts of the children.

create function accounts.are_files_deleted(_account_id bigint) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
    select not exists (
        select 1 from files.file f
        left join files.file_deletion_task t using (file_id)
        where f.account_id = _account_id
          and not coalesce(files.has_file_deletion_succeeded_attempt(t.file_deletion_task_id), false))
$$;

create function accounts.is_account_anonymized(_account_id bigint) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
    select exists (select 1 from accounts.account_anonymization_task t
                   where t.account_id = _account_id
                     and accounts.has_account_anonymization_succeeded_attempt(t.account_anonymization_task_id))
$$;

-- Returns why the account cannot be deleted; null if it still can.
create function accounts.why_account_deletion_is_stuck(_account_id bigint) returns text
language sql stable set search_path = pg_catalog, pg_temp as $$
    select format('file %s was not deleted after %s attempts: %s', s.file_id, internal.max_attempts(), s.error_message)
    from (select f.file_id,
                 (select x.error_message from files.file_deletion_task t
                  join files.file_deletion_task_failed x using (file_deletion_task_id)
                  where t.file_id = f.file_id order by x.file_deletion_attempt_id desc limit 1) as error_message
          from files.file f
          where f.account_id = _account_id and files.is_file_deletion_stuck(f.file_id)
          order by f.file_id limit 1) s
    union all
    select format('the account was not anonymised after %s attempts: %s', internal.max_attempts(), (
        select x.error_message from accounts.account_anonymization_task t
        join accounts.account_anonymization_task_failed x using (account_anonymization_task_id)
        where t.account_id = _account_id order by x.account_anonymization_attempt_id desc limit 1))
    where accounts.is_account_anonymization_stuck(_account_id)
    limit 1
$$;

-- Returns how often the children have failed, at most: the root looks as often as the slowest of them.
create function accounts.count_account_deletion_failures(_account_id bigint) returns int
language sql stable set search_path = pg_catalog, pg_temp as $$
    select coalesce(max(c.failures), 0) from (
        select files.count_file_deletion_failed_attempts(t.file_deletion_task_id) as failures
        from files.file f join files.file_deletion_task t using (file_id)
        where f.account_id = _account_id
        union all
        select accounts.count_account_anonymization_failed_attempts(t.account_anonymization_task_id)
        from accounts.account_anonymization_task t
        where t.account_id = _account_id) c
$$;

-- Compute and output: one check. It begins what can begin, and ends the process if it is done or stuck.
create function accounts.account_deletion_supervisor(_payload jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    _deletion_task_id bigint := internal.read_id(_payload, 'account_deletion_task_id');
    _account_id       bigint;
    _stuck            text;
    _next_check_at    timestamptz;
begin
    if _deletion_task_id is null then
        return '{"status": "missing_account_deletion_task_id"}';
    end if;
    select t.account_id into _account_id from accounts.account_deletion_task t
    where t.account_deletion_task_id = _deletion_task_id for update;
    if not found then
        return '{"status": "account_deletion_task_not_found"}';
    end if;

    if exists (select 1 from accounts.account_deletion_task_succeeded s
               where s.account_deletion_task_id = _deletion_task_id) then
        return '{"status": "succeeded"}';
    end if;
    if exists (select 1 from accounts.account_deletion_task_failed f
               where f.account_deletion_task_id = _deletion_task_id) then
        return '{"status": "max_attempts_reached"}';
    end if;
    if accounts.is_account_anonymized(_account_id) then
        insert into accounts.account_deletion_task_succeeded (account_deletion_task_id) values (_deletion_task_id);
        return '{"status": "succeeded"}';
    end if;
    _stuck := accounts.why_account_deletion_is_stuck(_account_id);
    if _stuck is not null then
        insert into accounts.account_deletion_task_failed (account_deletion_task_id, error_message)
        values (_deletion_task_id, _stuck);
        return jsonb_build_object('status', 'max_attempts_reached', 'error', _stuck);
    end if;

    if accounts.are_files_deleted(_account_id) then
        perform accounts.kickoff_account_anonymization(_account_id);
    else
        perform files.kickoff_file_deletion(f.file_id) from files.file f where f.account_id = _account_id;
    end if;
    _next_check_at := internal.next_check_at(accounts.count_account_deletion_failures(_account_id));
    perform queues.enqueue(
        'db_function', jsonb_build_object(
            'task_type', 'db_function', 'db_function', 'accounts.account_deletion_supervisor',
            'account_deletion_task_id', _deletion_task_id),
        _next_check_at, 'accounts.account_deletion/' || _deletion_task_id);
    return jsonb_build_object('status', 'succeeded', 'payload', jsonb_build_object('next_check_at', _next_check_at));
end $$;

-- Begins to delete an account, once. A request that makes no sense is answered with a message.
create function accounts.kickoff_account_deletion(
    _account_id bigint, _scheduled_at timestamptz default now(), out validation_failure_message text
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare _deletion_task_id bigint;
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
    if exists (select 1 from accounts.account_deletion_task t where t.account_id = _account_id) then
        return;  -- its supervisor is at work, or has ended
    end if;
    insert into accounts.account_deletion_task (account_id) values (_account_id)
    on conflict (account_id) do nothing
    returning account_deletion_task_id into _deletion_task_id;
    if _deletion_task_id is not null then
        perform queues.enqueue(
            'db_function', jsonb_build_object(
                'task_type', 'db_function', 'db_function', 'accounts.account_deletion_supervisor',
                'account_deletion_task_id', _deletion_task_id),
            _scheduled_at, 'accounts.account_deletion/' || _deletion_task_id);
    end if;
end $$;
