-- name: ended_attempts
        -- An attempt whose job has ended without a record: its work was rolled back with it, so it may be repeated.
        for _ended in
            select a.{attempt_id} as attempt_id, j.state,
                   coalesce(j.errors -> -1, j.last_error) ->> 'message' as message
            from {attempt} a left join lateral {dutiful}.look_up_job(a.job_id) j on true
            where a.{task_id} = _task_id
              and not exists (
                  select 1 from {failed} f
                  where f.{attempt_id} = a.{attempt_id})
              -- One that succeeded a moment ago has a job that ended, too; a statement sees both or neither.
              and not exists (
                  select 1 from {succeeded} s
                  where s.{attempt_id} = a.{attempt_id})
        loop
            continue when _ended.state in ('scheduled', 'ready', 'blocked', 'running');
            insert into {failed} ({attempt_id}, error_message)
            values (_ended.attempt_id, coalesce(
                'its job ended as ' || _ended.state || coalesce(': ' || _ended.message, ''), 'its job is gone'))
            on conflict do nothing;
        end loop;

-- name: own_functions
-- The work, which is yours: it is made only if there is none of its name. What it raises is the attempt's failure.

do $do$
begin
    if to_regprocedure({work_signature_text}) is null then
        create function {work}({key_parameters}) returns void
        language plpgsql set search_path = pg_catalog, pg_temp as $$
        begin
            raise exception 'not filled in';
        end $$;
    end if;
end $do$;

-- One attempt. The work and its success are committed together; a failure takes back what the work wrote, and stays.
create or replace function {run_attempt}(_payload jsonb) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    _attempt_id    bigint := substring(_payload ->> {attempt_id_text} from '^[0-9]{1,18}$');
    _task          record;
    _error_message text;
begin
    select t.* into _task
    from {attempt} a join {task} t using ({task_id})
    where a.{attempt_id} = _attempt_id
    for update of a;
    if not found then
        return jsonb_build_object('status', {attempt_not_found_text});
    end if;
    -- An attempt that has an outcome is not run again.
    if exists (select 1 from {succeeded} s where s.{attempt_id} = _attempt_id) then
        return jsonb_build_object('status', 'succeeded');
    end if;
    select f.error_message into _error_message
    from {failed} f where f.{attempt_id} = _attempt_id;
    if not found then
        begin
            perform {work}({work_arguments});
            insert into {succeeded} ({attempt_id}) values (_attempt_id);
            return jsonb_build_object('status', 'succeeded');
        exception when others then
            _error_message := sqlerrm;
            insert into {failed} ({attempt_id}, error_message)
            values (_attempt_id, _error_message);
        end;
    end if;
    return jsonb_build_object(
        'status', 'attempt_failed', 'payload', jsonb_build_object('error_message', _error_message));
end $$;
