-- What all processes share: their settings, the function runner, and the rule that facts never change.

create table internal.setting (
    one_row boolean primary key default true check (one_row),
    base_delay interval not null default '10 seconds' check (base_delay > interval '0'),
    max_attempts int not null default 3 check (max_attempts >= 1),
    lease interval not null default '5 minutes' check (lease > interval '0')
);
insert into internal.setting default values;

create function internal.max_attempts() returns int
language sql stable set search_path = pg_catalog, pg_temp as $$
    select s.max_attempts from internal.setting s
$$;

-- Returns when a supervisor looks again: after the base delay, doubled by each failure.
create function internal.next_check_at(_failures int) returns timestamptz
language sql stable set search_path = pg_catalog, pg_temp as $$
    select clock_timestamp() + s.base_delay * 2 ^ least(_failures, 20) from internal.setting s
$$;

-- Runs the function that a payload names. It has its caller's rights: what was not granted is denied.
create function internal.run_function(function_name text, payload jsonb) returns jsonb
language sql volatile security invoker set search_path = pg_catalog, pg_temp as $$
    select dutiful.run_function(function_name, payload)
$$;

-- Reads an id; null if it is missing or is no number, so that a supervisor answers instead of raising.
create function internal.read_id(_payload jsonb, _name text) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as $$
    select case when _payload ->> _name ~ '^[0-9]{1,18}$' then (_payload ->> _name)::bigint end
$$;

-- Returns whether the queue can store a time; null, which means now, if there is none.
create function internal.is_possible_time(_at timestamptz) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
    select _at >= '0001-01-01 00:00+00' and _at < '10000-01-01 00:00+00'
$$;

-- Returns how the task of an attempt has ended, and whether a provider has accepted it, or may have; no row while it
-- waits or runs. Stable, so that it sees the same moment as the query around it: a worker commits an attempt's fact and
-- the end of its task together.
create function internal.ended_task(_task_id uuid) returns table (accepted boolean, error_message text)
language sql stable set search_path = pg_catalog, pg_temp as $$
    select case when j.result ? 'accepted' then (j.result ->> 'accepted')::boolean
                -- It failed by its worker's own word, or never ran: no worker died, and none was running it.
                when j.state = 'failed' then j.crashes > 0
                when j.state = 'cancelled' then j.crashes > 0 or j.started_at is not null
                -- It was completed by a worker that says nothing of its provider.
                else true end,
           coalesce(j.errors -> 0 ->> 'message', 'the task ended without a fact')
    from dutiful.look_up_job(_task_id) j
    where j.finished_at is not null
    union all
    select true, 'the task no longer exists' where not exists (select 1 from dutiful.look_up_job(_task_id))
$$;

-- Facts are appended, never changed.
create function internal.refuse_change() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception '%.% is append-only', tg_table_schema, tg_table_name using errcode = 'insufficient_privilege';
end $$;
