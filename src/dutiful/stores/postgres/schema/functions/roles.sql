-- Groups of login roles, and their rights. `dutiful roles` gives them; with tenants on there are policies besides.
--
-- {schema}_operator: processes that enqueue, read and act; {schema}_worker: workers in Python; {schema}_member: people
-- and services that log in themselves, where tenants are on. Others may be missing, because `dutiful tenants on` does not
-- make them: {schema}_client, processes that enqueue and read; {schema}_sql_worker, workers that may execute a few functions
-- and touch no table; {schema}_reader, who reads. {schema}_owner owns the schema.

create or replace function {schema}.check_groups() returns void
language plpgsql stable as $$
declare v_group text;
begin
    foreach v_group in array array['{schema}_operator', '{schema}_worker', '{schema}_member'] loop
        if not exists (select 1 from pg_roles where rolname = v_group) then
            raise exception 'the group % does not exist', v_group
                using errcode = 'undefined_object', hint = 'run `dutiful tenants on`, which makes it';
        end if;
    end loop;
end $$;

create or replace function {schema}.group_exists(p_group text) returns boolean
language sql stable as $$
    select exists (select 1 from pg_roles where rolname = '{schema}_' || p_group)
$$;

-- Returns whether the rights of roles have been given, so that `migrate` gives them for what it makes.
create or replace function {schema}.roles_enabled() returns boolean
language sql stable as $$
    select exists (select 1 from pg_roles r
                   where r.rolname = '{schema}_sql_worker' and has_schema_privilege(r.oid, '{schema}', 'usage'))
$$;

-- Returns what a group may do with a table: what its processes need, and no more; null: nothing.
create or replace function {schema}.group_rights(p_group text, p_table text) returns text
language sql immutable as $$
    select case
        when p_group = 'reader' then
            -- Neither secrets and hashes, nor who did what.
            case when p_table in ('meta', 'lock_secret', 'api_token', 'tenant_role') or p_table like 'audit\_%' then null
                 else 'select' end
        when p_group = 'client' then
            -- It reads; it enqueues and cancels by functions with their owner's rights.
            case when p_table in ('lock_secret', 'api_token', 'tenant_role', 'bulk_run') then null
                 when p_table = 'audit_event' then 'insert, select (id)'  -- what it cancels is on record, see check_audit_client
                 when p_table like 'audit\_%' then null
                 else 'select' end
        when p_table in ('meta', 'lock_secret', 'migration', 'tenant_role') then 'select'
        -- Events stay on record: neither group can change them.
        when p_table = 'audit_event' then 'select, insert'
        when p_table like 'audit\_%' then 'select'
        -- A token is an admin's way in: workers, which run the code of all handlers, make, change and restore none.
        -- Those that serve the API, too, note when one was used.
        when p_table = 'api_token' and p_group = 'worker' then 'select, update (last_used_at)'
        when p_table = 'api_token' then 'select, insert, update'
        -- Never changed; a job's row is locked before it is deleted, which takes the right to update a column.
        when p_table = 'job' then 'select, insert, delete, update (id)'
        when p_table in ('attempt', 'finished') then 'select, insert, delete'
        else 'select, insert, update, delete' end
$$;

-- Returns whether a group may execute a function. A definer lends its owner's rights.
create or replace function {schema}.may_execute(p_group text, p_name text, p_definer boolean, p_volatile boolean)
returns boolean
language sql immutable as $$
    select case
        when p_group = 'worker' then true
        -- Most of what a client may execute has its caller's rights, and fails.
        when p_group in ('operator', 'client') then not p_definer or p_name in (
            'insert_one', 'insert_plain', 'insert_jobs', 'cancel', 'put_event', 'record_deliveries', 'listen', 'unlisten',
            'has_live_job')
        -- What views call, too; it cannot write.
        when p_group = 'reader' then not p_definer and not p_volatile
        when p_group = 'sql_worker' then p_name in (
            'dequeue', 'renew_job', 'renew_jobs', 'complete_job', 'fail_job', 'release_job', 'run_function',
            'maintain_jobs', 'report_worker')
        end
$$;

-- Takes all rights from everyone but the owner, and gives the groups theirs, but members, who have none without policies.
create or replace function {schema}.grant_groups() returns void
language plpgsql volatile set lock_timeout = '10s' as $$
declare
    v_group text;
    v_one   record;
    v_right text;
begin
    perform {schema}.check_groups();
    revoke all on all tables in schema {schema} from public;
    revoke all on all functions in schema {schema} from public;
    revoke all on all tables in schema {schema} from {schema}_member;
    revoke all on all functions in schema {schema} from {schema}_member;
    foreach v_group in array array['operator', 'client', 'worker', 'sql_worker', 'reader'] loop
        continue when not {schema}.group_exists(v_group);
        execute format('grant usage on schema {schema} to {schema}_%s', v_group);
        execute format('revoke all on all tables in schema {schema} from {schema}_%s', v_group);
        execute format('revoke all on all functions in schema {schema} from {schema}_%s', v_group);
        for v_one in select p.oid::regprocedure as signature from pg_proc p
                     where p.pronamespace = '{schema}'::regnamespace and p.prokind = 'f'
                       and {schema}.may_execute(v_group, p.proname, p.prosecdef, p.provolatile = 'v') loop
            execute format('grant execute on function %s to {schema}_%s', v_one.signature, v_group);
        end loop;
        continue when v_group = 'sql_worker';
        for v_one in select c.relname as name, c.relkind from pg_class c
                     where c.relnamespace = '{schema}'::regnamespace and c.relkind in ('r', 'p', 'v')
                     order by c.relname loop
            v_right := case v_one.relkind when 'v' then 'select' else {schema}.group_rights(v_group, v_one.name) end;
            continue when v_right is null;
            execute format('grant %s on {schema}.%I to {schema}_%s', v_right, v_one.name, v_group);
        end loop;
    end loop;
    grant usage on all sequences in schema {schema} to {schema}_operator, {schema}_worker;
    if {schema}.group_exists('client') then
        revoke all on all sequences in schema {schema} from {schema}_client;
    end if;
end $$;

-- Gives the schema, and all that it holds, to {schema}_owner, which cannot log in: functions with the owner's rights lend
-- those of no login, least of all a superuser's. The former owner becomes a member, so that it migrates and works as
-- before. Leaves all as it is if the owner cannot log in, or may not add members to its successor, or cannot give it the
-- right to create schemas, which Postgres asks of it: then a DBA does it.
create or replace function {schema}.hand_over() returns void
language plpgsql volatile set lock_timeout = '10s' as $$
declare
    v_before  record;
    v_one     record;
    v_creates boolean := has_database_privilege('{schema}_owner', current_database(), 'create');
begin
    select r.oid, r.rolname, r.rolcanlogin, r.rolsuper into v_before
    from pg_namespace n join pg_roles r on r.oid = n.nspowner where n.nspname = '{schema}';
    if not (v_before.rolcanlogin or v_before.rolsuper)
       or not (v_creates or has_database_privilege(current_database(), 'create with grant option')) then
        return;
    end if;
    -- The right to create roles does not imply the ones to use and to become them.
    if not (pg_has_role(v_before.oid, '{schema}_owner', 'usage') and pg_has_role(v_before.oid, '{schema}_owner', 'set')) then
        begin
            execute format('grant {schema}_owner to %I with inherit true, set true', v_before.rolname);
        exception when insufficient_privilege then
            return;  -- made for another database of this server, by a role that alone may add members
        end;
    end if;
    if not v_creates then
        execute format('grant create on database %I to {schema}_owner', current_database());
    end if;
    alter schema {schema} owner to {schema}_owner;
    for v_one in
        select case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end as what,
               c.oid::regclass::text as name
        from pg_class c
        where c.relnamespace = '{schema}'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
          and not exists (select 1 from pg_depend d  -- goes with its table
                          where c.relkind = 'S' and d.classid = 'pg_class'::regclass and d.objid = c.oid
                            and d.deptype in ('a', 'i'))
        union all
        select 'function', p.oid::regprocedure::text from pg_proc p where p.pronamespace = '{schema}'::regnamespace
        union all
        select 'type', t.oid::regtype::text from pg_type t left join pg_class c on c.oid = t.typrelid
        where t.typnamespace = '{schema}'::regnamespace and (t.typtype in ('d', 'e') or c.relkind = 'c')
    loop
        execute format('alter %s %s owner to {schema}_owner', v_one.what, v_one.name);
    end loop;
    if not v_creates then
        execute format('revoke create on database %I from {schema}_owner', current_database());
    end if;
end $$;

-- Gives all groups their rights, and isolates tenants again if they were. `migrate` repeats it.
create or replace function {schema}.roles_on() returns void
language plpgsql volatile set lock_timeout = '10s' as $$
begin
    if {schema}.tenants_enabled() then
        perform {schema}.tenants_on();
    else
        perform {schema}.grant_groups();
    end if;
end $$;
