-- The queue in the words of its users: views over Dutiful's tables, and thin functions over its published functions.

-- What may be asked for. A new channel is a row here, and a provider in the worker.
create table queues.task_type (
    task_type text primary key,
    created_at timestamptz not null default now()
);
insert into queues.task_type (task_type) values ('db_function'), ('email'), ('sms'), ('file_delete');

-- What was asked for. It never changes: a view with a join cannot be written to.
create view queues.task as
select j.id as task_id, j.kind as task_type, j.payload, j.created_at as enqueued_at,
       coalesce(j.run_at, j.created_at) as scheduled_at
from dutiful.job j
join queues.task_type t on t.task_type = j.kind;

-- Every claim: the one that is held, those that were lost, and the last. expires_at of a claim that has ended is when.
create view queues.task_lease as
select l.claim_id as task_lease_id, l.job_id as task_id, l.claimed_at as leased_at, l.expires_at
from dutiful.lease l
union all
select a.claim_id, a.job_id, a.claimed_at, a.ended_at
from dutiful.attempt a
where a.outcome <> 'refused'  -- a late outcome of a claim that has its row already
union all
select f.claim_id, f.job_id, f.claimed_at, f.finished_at
from dutiful.finished f
where f.claim_id is not null;

-- Tasks that never run again: completed, with or without errors, or given up after crashes, or cancelled.
create view queues.task_completed as
select f.job_id as task_id, f.finished_at as completed_at
from dutiful.finished f;

-- What workers have reported by queues.fail_task.
create table queues.reported_error (
    error_id bigserial primary key,
    task_id uuid not null,
    error_message text not null,
    created_at timestamptz not null default clock_timestamp()
);
create index reported_error_task on queues.reported_error (task_id);
create trigger append_only before update or delete on queues.reported_error
for each row execute function internal.refuse_change();

create view queues.error as
select e.task_id, e.error_message, e.created_at
from queues.reported_error e
union all
select a.job_id, a.error ->> 'message', a.ended_at
from dutiful.attempt a
where a.error is not null and a.outcome <> 'refused'
union all
select f.job_id, e.value ->> 'message', f.finished_at
from dutiful.finished f
cross join lateral jsonb_array_elements(f.errors) e
where e.value ->> 'type' <> 'queues.fail_task';  -- copied from reported_error at the end

-- Asks for a task, in the caller's transaction. _process names the process that the task belongs to, such as
-- comms.send_email/7: its tasks are found by it, and of each of its db_functions only one waits at a time, so that early
-- and double runs of a supervisor do not multiply its checks.
create function queues.enqueue(
    _task_type text, _payload jsonb, _scheduled_at timestamptz default now(), _process text default null,
    _task_id uuid default null
) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if not exists (select 1 from queues.task_type t where t.task_type = _task_type) then
        raise exception 'task type % is not known', quote_nullable(_task_type)
            using errcode = 'invalid_parameter_value', hint = 'a new channel is a row of queues.task_type';
    end if;
    perform dutiful.enqueue(
        _task_type, _payload, p_run_at => coalesce(_scheduled_at, now()), p_id => _task_id,
        p_correlation_id => _process, p_unique => _process || ' ' || (_payload ->> 'db_function'),
        p_unique_scope => 'queued');
end $$;

-- Claims the next task that is due, by scheduled_at, then by task_id; a null row if there is none. Tasks whose lease has
-- ended are available again; no other process has to see to that.
create function queues.dequeue_next_available_task() returns queues.task
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    _types text[] := array(select t.task_type from queues.task_type t);
    _lease interval := (select s.lease from internal.setting s);
    _task  queues.task;
begin
    perform dutiful.maintain_jobs(_types);
    select t.task_id, t.task_type, t.payload, t.enqueued_at, t.scheduled_at into _task
    from dutiful.dequeue(_types, p_lease => _lease) d
    join queues.task t on t.task_id = d.job_id;
    return _task;
end $$;

-- Returns the claim of a task that this session has dequeued and still holds.
create function queues.held_claim(_task_id uuid) returns bigint
language sql volatile set search_path = pg_catalog, pg_temp as $$
    select l.claim_id from dutiful.lease l
    where l.job_id = _task_id and l.worker_id::text = current_setting('dutiful.worker', true)
$$;

-- Completes a task that this session holds, with the errors that were reported. A repeat does nothing. It raises if
-- another worker may have the task, so that the caller's transaction takes back what it wrote.
create function queues.complete_task(_task_id uuid) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    _claim  bigint := queues.held_claim(_task_id);
    _errors jsonb;
begin
    if _claim is null and exists (select 1 from queues.task_completed c where c.task_id = _task_id) then
        return;
    end if;
    -- Dutiful refuses errors without bounds. All of them, as they were reported, are in queues.error.
    select jsonb_agg(jsonb_build_object('type', 'queues.fail_task', 'message', e.message) order by e.error_id)
    into _errors
    from (select r.error_id, left(r.error_message, 500) as message from queues.reported_error r
          where r.task_id = _task_id order by r.error_id desc limit 20) e;
    if _claim is null or dutiful.complete_job(_task_id, _claim, p_errors => _errors) = 'lost' then
        raise exception 'task % is not held by this session', _task_id
            using errcode = 'object_not_in_prerequisite_state',
                  hint = 'its lease has ended, and another worker may have it: roll back, and dequeue again';
    end if;
end $$;

-- Reports an error of a task. It does not end the task: complete it afterwards.
create function queues.fail_task(_task_id uuid, _error_message text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    if not exists (select 1 from queues.task t where t.task_id = _task_id) then
        raise exception 'there is no task %', _task_id using errcode = 'no_data_found';
    end if;
    insert into queues.reported_error (task_id, error_message) values (_task_id, coalesce(_error_message, ''));
end $$;
