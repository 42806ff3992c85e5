-- name: ended_attempts
        -- An attempt whose job has ended, but whose handlers recorded nothing. What a provider may have accepted is
        -- never repeated; a job that retention has deleted may have been accepted, too.
        for _ended in
            select a.{attempt_id} as attempt_id, j.state,
                   coalesce(j.errors -> -1, j.last_error) ->> 'message' as message,
                   case when j.result ? 'accepted' then j.result ->> 'accepted' = 'true'
                        -- It failed by its worker's own word, or never ran: no worker died, and none was running it.
                        when j.state = 'failed' then j.crashes > 0
                        when j.state = 'cancelled' then j.crashes > 0 or j.started_at is not null
                        else true end as accepted
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
            if _ended.accepted then
                insert into {final} ({task_id}, error_message)
                values (_task_id, 'attempt ' || _ended.attempt_id || case when _ended.state is null
                            then ' was not recorded, and its job is gone: it may have been accepted by the provider'
                            when _ended.state in ('failed', 'cancelled')
                            then ' may have been accepted by the provider: its worker died, and its job ended as '
                                 || _ended.state
                            else ' was accepted by the provider, but not recorded' end)
                on conflict do nothing;
            else
                insert into {failed} ({attempt_id}, error_message)
                values (_ended.attempt_id, 'its job ended as ' || _ended.state || coalesce(': ' || _ended.message, ''))
                on conflict do nothing;
            end if;
        end loop;

-- name: own_functions
-- The handlers, which are yours: each is made only if there is none of its name.

do $do$
begin
    if to_regprocedure({before_signature_text}) is null then
        -- Fill it in: it finds what the attempt is about, and returns what the provider is to be asked.
        create function {before}(_payload jsonb) returns jsonb
        language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
        declare
            _attempt_id bigint := substring(_payload ->> {attempt_id_text} from '^[0-9]{1,18}$');
            _task       record;
            _request    jsonb;
        begin
            select t.* into _task
            from {attempt} a join {task} t using ({task_id})
            where a.{attempt_id} = _attempt_id;
            if not found then
                return jsonb_build_object('status', {attempt_not_found_text});
            end if;
            -- _request := jsonb_build_object({request}), from what _task names
            if _request is null then
                return jsonb_build_object('status', 'not_filled_in');
            end if;
            return jsonb_build_object('status', 'succeeded', 'payload', _request);
        end $$;
    end if;
    if to_regprocedure({success_signature_text}) is null then
        -- Records that the provider accepted it; add what follows from that.
        create function {success}(_payload jsonb) returns jsonb
        language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
        declare
            _attempt_id bigint := substring(
                _payload -> 'original_payload' ->> {attempt_id_text} from '^[0-9]{1,18}$');
        begin
            if not exists (
                select 1 from {attempt} a where a.{attempt_id} = _attempt_id) then
                return jsonb_build_object('status', {attempt_not_found_text});
            end if;
            insert into {succeeded} ({attempt_id}) values (_attempt_id)
            on conflict do nothing;
            return jsonb_build_object('status', 'succeeded');
        end $$;
    end if;
    if to_regprocedure({error_signature_text}) is null then
        -- Records that the attempt failed, unless it has succeeded: a run that is repeated may fail after that.
        create function {error}(_payload jsonb) returns jsonb
        language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
        declare
            _attempt_id bigint := substring(
                _payload -> 'original_payload' ->> {attempt_id_text} from '^[0-9]{1,18}$');
        begin
            if not exists (
                select 1 from {attempt} a where a.{attempt_id} = _attempt_id) then
                return jsonb_build_object('status', {attempt_not_found_text});
            end if;
            insert into {failed} ({attempt_id}, error_message)
            select _attempt_id, coalesce(_payload ->> 'error', 'no message was given')
            where not exists (
                select 1 from {succeeded} s where s.{attempt_id} = _attempt_id)
            on conflict do nothing;
            return jsonb_build_object('status', 'succeeded');
        end $$;
    end if;
end $do$;
