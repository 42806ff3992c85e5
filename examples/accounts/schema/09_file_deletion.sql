-- Deleting a file from the object store: the supervisor owns retries, backoff and the end.

create table files.file_deletion_task (
    file_deletion_task_id bigserial primary key,
    file_id bigint not null unique references files.file,
    created_at timestamptz not null default now()
);
create table files.file_deletion_attempt (
    file_deletion_attempt_id bigserial primary key,
    file_deletion_task_id bigint not null references files.file_deletion_task,
    task_id uuid not null,  -- of the queue
    created_at timestamptz not null default now()
);
create index file_deletion_attempt_task on files.file_deletion_attempt (file_deletion_task_id);
create table files.file_deletion_attempt_succeeded (
    file_deletion_attempt_id bigint primary key references files.file_deletion_attempt,
    created_at timestamptz not null default now()
);
create table files.file_deletion_attempt_failed (
    file_deletion_attempt_id bigint primary key references files.file_deletion_attempt,
    error_message text not null,
    created_at timestamptz not null default now()
);
create trigger append_only before update or delete on files.file_deletion_task
for each row execute function internal.refuse_change();
create trigger append_only before update or delete on files.file_deletion_attempt
for each row execute function internal.refuse_change();
create trigger append_only before update or delete on files.file_deletion_attempt_succeeded
for each row execute function internal.refuse_change();
create trigger append_only before update or delete on files.file_deletion_attempt_failed
for each row execute function internal.refuse_change();

-- The outcomes by task: every failed attempt, and the one that succeeded.
create view files.file_deletion_task_failed as
select a.file_deletion_task_id, f.file_deletion_attempt_id, f.error_message, f.created_at
from files.file_deletion_attempt_failed f
join files.file_deletion_attempt a using (file_deletion_attempt_id);

create view files.file_deletion_task_succeeded as
select a.file_deletion_task_id, s.file_deletion_attempt_id, s.created_at
from files.file_deletion_attempt_succeeded s
join files.file_deletion_attempt a using (file_deletion_attempt_id);

-- Input: facts.

create function files.has_file_deletion_succeeded_attempt(_file_deletion_task_id bigint) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
    select exists (select 1 from files.file_deletion_task_succeeded s
                   where s.file_deletion_task_id = _file_deletion_task_id)
$$;

create function files.count_file_deletion_failed_attempts(_file_deletion_task_id bigint) returns int
language sql stable set search_path = pg_catalog, pg_temp as $$
    select count(*)::int from files.file_deletion_task_failed f
    where f.file_deletion_task_id = _file_deletion_task_id
$$;

create function files.count_file_deletion_attempts(_file_deletion_task_id bigint) returns int
language sql stable set search_path = pg_catalog, pg_temp as $$
    select count(*)::int from files.file_deletion_attempt a
    where a.file_deletion_task_id = _file_deletion_task_id
$$;

-- Returns whether a file was not deleted in as many attempts as there may be.
create function files.is_file_deletion_stuck(_file_id bigint) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
    select exists (
        select 1 from files.file_deletion_task t
        where t.file_id = _file_id
          and not files.has_file_deletion_succeeded_attempt(t.file_deletion_task_id)
          and files.count_file_deletion_failed_attempts(t.file_deletion_task_id) >= internal.max_attempts())
$$;

-- Compute and output: one check. An early or a double one makes no extra attempt.
create function files.file_deletion_supervisor(_payload jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    _file_deletion_task_id bigint := internal.read_id(_payload, 'file_deletion_task_id');
    _process               text := 'files.file_deletion/' || _file_deletion_task_id;
    _file_id               bigint;
    _failures              int;
    _next_check_at         timestamptz;
    _attempt_id            bigint;
    _task_id               uuid := dutiful.new_id();
begin
    if _file_deletion_task_id is null then
        return '{"status": "missing_file_deletion_task_id"}';
    end if;
    select t.file_id into _file_id from files.file_deletion_task t
    where t.file_deletion_task_id = _file_deletion_task_id for update;
    if not found then
        return '{"status": "file_deletion_task_not_found"}';
    end if;

    -- An attempt whose task has ended without a fact has failed. To delete a file a second time does no harm.
    insert into files.file_deletion_attempt_failed (file_deletion_attempt_id, error_message)
    select a.file_deletion_attempt_id, e.error_message
    from files.file_deletion_attempt a
    cross join lateral internal.ended_task(a.task_id) e
    where a.file_deletion_task_id = _file_deletion_task_id
      and not exists (select 1 from files.file_deletion_attempt_succeeded s
                      where s.file_deletion_attempt_id = a.file_deletion_attempt_id)
    on conflict do nothing;
    if files.has_file_deletion_succeeded_attempt(_file_deletion_task_id) then
        return '{"status": "succeeded"}';
    end if;
    if files.is_file_deletion_stuck(_file_id) then
        return '{"status": "max_attempts_reached"}';
    end if;
    _failures := files.count_file_deletion_failed_attempts(_file_deletion_task_id);
    _next_check_at := internal.next_check_at(_failures);

    if files.count_file_deletion_attempts(_file_deletion_task_id) = _failures then
        insert into files.file_deletion_attempt (file_deletion_task_id, task_id)
        values (_file_deletion_task_id, _task_id)
        returning file_deletion_attempt_id into _attempt_id;
        perform queues.enqueue(
            'file_delete', jsonb_build_object(
                'task_type', 'file_delete', 'file_deletion_task_id', _file_deletion_task_id,
                'file_deletion_attempt_id', _attempt_id, 'file_id', _file_id,
                'before_handler', 'files.get_file_delete_payload',
                'success_handler', 'files.record_file_delete_success',
                'error_handler', 'files.record_file_delete_failure'),
            _process => _process, _task_id => _task_id);
    end if;
    perform queues.enqueue(
        'db_function', jsonb_build_object(
            'task_type', 'db_function', 'db_function', 'files.file_deletion_supervisor',
            'file_deletion_task_id', _file_deletion_task_id),
        _next_check_at, _process);
    return jsonb_build_object('status', 'succeeded', 'payload', jsonb_build_object(
        'file_deletion_attempt_id', _attempt_id, 'next_check_at', _next_check_at));
end $$;

-- Begins to delete a file, once. A request that makes no sense is answered with a message.
create function files.kickoff_file_deletion(
    _file_id bigint, _scheduled_at timestamptz default now(), out validation_failure_message text
)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare _file_deletion_task_id bigint;
begin
    if _file_id is null then
        validation_failure_message := 'a file id is required';
        return;
    end if;
    if not exists (select 1 from files.file f where f.file_id = _file_id) then
        validation_failure_message := format('there is no file %s', _file_id);
        return;
    end if;
    if not internal.is_possible_time(_scheduled_at) then
        validation_failure_message := 'the time must be of the years 1 to 9999';
        return;
    end if;
    if exists (select 1 from files.file_deletion_task t where t.file_id = _file_id) then
        return;  -- its supervisor is at work, or has ended
    end if;
    insert into files.file_deletion_task (file_id) values (_file_id)
    on conflict (file_id) do nothing
    returning file_deletion_task_id into _file_deletion_task_id;
    if _file_deletion_task_id is not null then
        perform queues.enqueue(
            'db_function', jsonb_build_object(
                'task_type', 'db_function', 'db_function', 'files.file_deletion_supervisor',
                'file_deletion_task_id', _file_deletion_task_id),
            _scheduled_at, 'files.file_deletion/' || _file_deletion_task_id);
    end if;
end $$;

-- Before the provider: where the file is.
create function files.get_file_delete_payload(_payload jsonb) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    _file_id bigint := internal.read_id(_payload, 'file_id');
    _answer  jsonb;
begin
    if _file_id is null then
        return '{"status": "missing_file_id"}';
    end if;
    select jsonb_build_object('status', 'succeeded', 'payload', jsonb_build_object(
        'bucket', f.bucket, 'object_key', f.object_key))
    into _answer
    from files.file f where f.file_id = _file_id;
    return coalesce(_answer, '{"status": "file_not_found"}');
end $$;

-- After the object was deleted: the success of the attempt, and the file's mark. A repeat changes nothing.
create function files.record_file_delete_success(_payload jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    _attempt_id bigint := internal.read_id(_payload -> 'original_payload', 'file_deletion_attempt_id');
    _file_id    bigint;
begin
    if _attempt_id is null then
        return '{"status": "missing_attempt_id"}';
    end if;
    select t.file_id into _file_id
    from files.file_deletion_attempt a join files.file_deletion_task t using (file_deletion_task_id)
    where a.file_deletion_attempt_id = _attempt_id;
    if not found then
        return '{"status": "attempt_not_found"}';
    end if;
    insert into files.file_deletion_attempt_succeeded (file_deletion_attempt_id) values (_attempt_id)
    on conflict do nothing;
    perform files.mark_file_deleted(_file_id);
    return '{"status": "succeeded"}';
end $$;

-- After a failure. A repeat changes nothing, and an attempt that has succeeded does not fail.
create function files.record_file_delete_failure(_payload jsonb) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare _attempt_id bigint := internal.read_id(_payload -> 'original_payload', 'file_deletion_attempt_id');
begin
    if _attempt_id is null then
        return '{"status": "missing_attempt_id"}';
    end if;
    if not exists (select 1 from files.file_deletion_attempt a where a.file_deletion_attempt_id = _attempt_id) then
        return '{"status": "attempt_not_found"}';
    end if;
    insert into files.file_deletion_attempt_failed (file_deletion_attempt_id, error_message)
    select _attempt_id, coalesce(_payload ->> 'error', 'unknown error')
    where not exists (select 1 from files.file_deletion_attempt_succeeded s
                      where s.file_deletion_attempt_id = _attempt_id)
    on conflict do nothing;
    return '{"status": "succeeded"}';
end $$;
