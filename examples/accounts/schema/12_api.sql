-- What the web server calls.

create function api.request_account_deletion(_account_id bigint, out validation_failure_message text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    validation_failure_message := accounts.kickoff_account_deletion(_account_id);
    if validation_failure_message is null then
        insert into accounts.account_flag (account_id, flag) values (_account_id, 'deleted') on conflict do nothing;
    end if;
end $$;
