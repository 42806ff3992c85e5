-- Isolation of tenants by row-level security. It is off, and costs nothing, until tenants_on() is called.
--
-- Login roles belong to three groups: {schema}_operator sees the tenant that its transaction has named in the
-- setting dutiful.tenant, with '*' all of them, without it none; {schema}_worker sees all; {schema}_member sees the
-- tenants that its session's user is bound to, independent of settings.

-- Returns every table, and how its rows belong to a tenant: by a column, by a job that is kept as JSON, by their job;
-- 'fleet': not at all. The columns decide, so that later tables are covered.
create or replace function {schema}.tenant_rules() returns table (name text, rule text)
language sql stable as $$
    select c.relname::text,
           case when c.relname = 'tenant_role' then 'fleet'
                when 'tenant' = any (a.names) then 'column'
                when 'job' = any (a.names) then 'json'
                when 'job_id' = any (a.names) then 'job'
                else 'fleet' end
    from pg_class c
    cross join lateral (
        select array_agg(x.attname::text) as names from pg_attribute x
        where x.attrelid = c.oid and x.attnum > 0 and not x.attisdropped) a
    where c.relnamespace = '{schema}'::regnamespace and c.relkind in ('r', 'p')
$$;

-- Returns the tenants of the role that has logged in.
create or replace function {schema}.own_tenants() returns text[]
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(array_agg(t.tenant), '{}')
    from {schema}.tenant_role t
    where t.role = (select r.oid from pg_roles r where r.rolname = session_user)
$$;

revoke execute on function {schema}.own_tenants() from public;

-- Returns which rows a role of this group sees. Settings and tenants are read in sub-selects of their own, which a
-- statement evaluates once. A job is looked up by a sub-select with a limit, which cannot become a hash of all jobs.
create or replace function {schema}.tenant_condition(p_group text, p_table text, p_rule text) returns text
language sql stable as $$
    select case p_group
        when 'worker' then 'true'
        when 'operator' then format(
            '((select current_setting(''dutiful.tenant'', true)) = ''*'' or %s)',
            case p_rule
                when 'column' then 'tenant = (select nullif(current_setting(''dutiful.tenant'', true), ''''))'
                when 'json' then 'job ->> ''tenant'' = (select nullif(current_setting(''dutiful.tenant'', true), ''''))'
                else by_job end)
        when 'member' then
            case p_rule
                when 'column' then 'tenant = any ((select {schema}.own_tenants())::text[])'
                when 'json' then 'job ->> ''tenant'' = any ((select {schema}.own_tenants())::text[])'
                else by_job end
        end
    from format('coalesce((select true from {schema}.job j where j.id = %I.job_id limit 1), false)', p_table) by_job
$$;

-- Returns the tables that a member may read, beside views that are made of nothing else. Policies show its own rows.
create or replace function {schema}.member_tables() returns text[]
language sql immutable as $$
    select array['job', 'ready', 'scheduled', 'blocked', 'lease', 'finished', 'attempt', 'phase', 'progress', 'stale',
                 'dependency', 'delivery', 'dead_letter', 'deleted_jobs', 'step']
$$;

create or replace function {schema}.tenants_enabled() returns boolean
language sql stable as $$
    select relrowsecurity from pg_class where oid = '{schema}.job'::regclass
$$;

-- Raises if the schema holds anything but p_ours, the names of what its files make, because rights and policies are set
-- on all that it holds. A sequence goes with the table that owns it.
create or replace function {schema}.check_alone(p_ours text[]) returns void
language plpgsql stable as $$
declare
    v_foreign text := (
        select string_agg(f.what, ', ' order by f.what)
        from (select c.relname::text as what from pg_class c
              where c.relnamespace = '{schema}'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
                and c.relname <> all (p_ours)
                and not exists (select 1 from pg_depend d
                                where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('a', 'i')
                                  and d.refclassid = 'pg_class'::regclass and c.relkind = 'S')
              union
              select p.proname || '()' from pg_proc p
              where p.pronamespace = '{schema}'::regnamespace and p.proname || '()' <> all (p_ours)) f);
begin
    if v_foreign is not null then
        raise exception 'the schema {schema} holds what is not Dutiful''s, and would be taken over: %',
                        case when length(v_foreign) > 500 then left(v_foreign, 500) || ' …' else v_foreign end
            using errcode = 'invalid_parameter_value',
                  hint = 'move that elsewhere, or give Dutiful a schema of its own by the setting schema';
    end if;
end $$;

-- Drops all policies of a table, because a row is seen if any policy shows it, also one that is not ours.
create or replace function {schema}.drop_policies(p_table text) returns void
language plpgsql volatile as $$
declare v_policy name;
begin
    for v_policy in select p.polname from pg_policy p where p.polrelid = format('{schema}.%I', p_table)::regclass loop
        execute format('drop policy %I on {schema}.%I', v_policy, p_table);
    end loop;
end $$;

-- Isolates tenants in every table, and gives the groups, three of which have to exist, their rights. `migrate` repeats it.
create or replace function {schema}.tenants_on() returns void
language plpgsql volatile set lock_timeout = '10s' as $$
declare
    v_owner oid := (select n.nspowner from pg_namespace n where n.nspname = '{schema}');
    v_table record;
    v_name  text;
    v_group text;
begin
    perform {schema}.grant_groups();
    -- Policies also bind the owner, so that it sees nothing by mistake; as a member it sees the tenant that it names.
    if not pg_has_role(v_owner, '{schema}_operator', 'usage') then
        execute format('grant {schema}_operator to %I', pg_get_userbyid(v_owner));
    end if;
    for v_table in select r.name, r.rule from {schema}.tenant_rules() r where r.rule <> 'fleet' order by r.name loop
        execute format('alter table {schema}.%I enable row level security, force row level security', v_table.name);
        perform {schema}.drop_policies(v_table.name);
        foreach v_group in array array['operator', 'worker', 'member'] loop
            continue when v_group = 'member' and v_table.name <> all ({schema}.member_tables());
            execute format('create policy %I on {schema}.%I for %s to {schema}_%s using (%s)', v_group, v_table.name,
                           case v_group when 'member' then 'select' else 'all' end,
                           -- Clients and readers name their tenant as an operator does.
                           case when v_group = 'operator' and {schema}.group_exists('reader')
                                then 'operator, {schema}_client, {schema}_reader' else v_group end,
                           {schema}.tenant_condition(v_group, v_table.name, v_table.rule));
        end loop;
        -- Functions with the owner's rights, too, act for all tenants in the session of a worker, if it names none.
        execute format(
            'create policy owner on {schema}.%I to %I using ('
            '(select nullif(current_setting(''dutiful.tenant'', true), '''') is null and (%s)))',
            v_table.name, pg_get_userbyid(v_owner), (
            select string_agg(format('pg_has_role(session_user, ''{schema}_%s'', ''usage'')', g), ' or ')
            from unnest(array['worker', 'sql_worker']) g where {schema}.group_exists(g)));
    end loop;
    grant usage on schema {schema} to {schema}_member;
    foreach v_name in array {schema}.member_tables()
                            || array['jobs', 'queue_health', 'job_metrics', 'job_runs', 'kind_health', 'stuck_jobs',
                                     'failing_kinds'] loop
        execute format('grant select on {schema}.%I to {schema}_member', v_name);
    end loop;
    -- A view with its owner's rights would bypass the policies.
    for v_name in select c.relname from pg_class c
                  where c.relnamespace = '{schema}'::regnamespace and c.relkind = 'v' loop
        execute format('alter view {schema}.%I set (security_invoker = true)', v_name);
    end loop;
    grant execute on function {schema}.own_tenants() to {schema}_member;
    grant execute on function {schema}.tenant_enqueue to {schema}_member;
    grant execute on function {schema}.tenant_cancel(uuid, text) to {schema}_member;
end $$;

-- Reverts that. Members lose their rights, because nothing would isolate them; the other groups keep theirs.
create or replace function {schema}.tenants_off() returns void
language plpgsql volatile set lock_timeout = '10s' as $$
declare
    v_name     text;
    v_function regprocedure;
begin
    for v_name in select r.name from {schema}.tenant_rules() r where r.rule <> 'fleet' order by r.name loop
        execute format('alter table {schema}.%I no force row level security, disable row level security', v_name);
        perform {schema}.drop_policies(v_name);
    end loop;
    for v_name in select c.relname from pg_class c
                  where c.relnamespace = '{schema}'::regnamespace and c.relkind = 'v' loop
        execute format('alter view {schema}.%I reset (security_invoker)', v_name);
    end loop;
    for v_function in select p.oid from pg_proc p
                      where p.pronamespace = '{schema}'::regnamespace and p.prokind = 'f' and not p.prosecdef loop
        -- As it is for every new function, unless rights were given to roles.
        continue when {schema}.roles_enabled();
        execute format('grant execute on function %s to public', v_function);
    end loop;
    if exists (select 1 from pg_roles where rolname = '{schema}_member') then
        revoke all on all tables in schema {schema} from {schema}_member;
        revoke all on all functions in schema {schema} from {schema}_member;
        revoke usage on schema {schema} from {schema}_member;
    end if;
end $$;

-- Lets a login role see a tenant, and nothing but what it is bound to. False: it was bound to it already.
create or replace function {schema}.bind_tenant(p_role text, p_tenant text) returns boolean
language plpgsql volatile as $$
declare v_role oid := (select r.oid from pg_roles r where r.rolname = p_role);
begin
    perform {schema}.check_groups();
    if v_role is null then
        raise exception 'there is no role "%"', p_role
            using errcode = 'undefined_object',
                  hint = format('create it first, as in: create role %I login', p_role);
    end if;
    if exists (select 1 from pg_roles g
               where g.rolname in ('{schema}_operator', '{schema}_client', '{schema}_worker', '{schema}_sql_worker',
                                   '{schema}_reader')
                 and pg_has_role(v_role, g.oid, 'member')) then
        raise exception 'the role "%" can see every tenant: it is a superuser, or in {schema}_operator or '
                        '{schema}_worker, or another such group', p_role
            using errcode = 'invalid_parameter_value', hint = 'bind a login role of its own';
    end if;
    if not pg_has_role(v_role, '{schema}_member', 'usage') then
        execute format('grant {schema}_member to %I', p_role);
    end if;
    insert into {schema}.tenant_role (role, tenant) values (v_role, p_tenant) on conflict do nothing;
    return found;
end $$;

-- Stores jobs as insert_jobs does, each under its own tenant, or all of them under p_tenant, if that is not '*'.
-- Restores the transaction's tenant afterwards.
create or replace function {schema}.insert_for(
    p_jobs jsonb, p_now timestamptz, p_notify boolean, p_checked boolean, p_tenant text
) returns table (ord bigint, job_id uuid, insertion text)
language plpgsql volatile as $$ #variable_conflict use_column
declare
    v_before text := coalesce(current_setting('dutiful.tenant', true), '');
    v_group  record;
begin
    -- In sorted order, as insert_jobs takes unique keys.
    for v_group in
        select coalesce(e.v ->> 'tenant', '*') as tenant, jsonb_agg(e.v order by e.o) as jobs,
               array_agg(e.o order by e.o) as ords
        from jsonb_array_elements(p_jobs) with ordinality e (v, o)
        group by 1
        order by 1
    loop
        perform set_config('dutiful.tenant', case p_tenant when '*' then v_group.tenant else p_tenant end, true);
        return query
        select v_group.ords[i.ord], i.job_id, i.insertion
        from {schema}.insert_jobs(v_group.jobs, p_now, p_notify, p_checked) i;
    end loop;
    perform set_config('dutiful.tenant', v_before, true);
end $$;

-- Completes a job in a transaction of the user's own, on behalf of p_tenant.
create or replace function {schema}.complete_for(
    p_job uuid, p_claim bigint, p_result text, p_errors text, p_tenant text
) returns setof uuid
language plpgsql volatile as $$
declare v_before text := coalesce(current_setting('dutiful.tenant', true), '');
begin
    perform set_config('dutiful.tenant', p_tenant, true);
    return query select c from {schema}.complete_one(p_job, p_claim, p_result, p_errors) c;
    perform set_config('dutiful.tenant', v_before, true);
end $$;

-- Members write through the two functions below, which have their owner's rights, so each checks the tenant first.

-- Without the options that came later; a second function of this name would make calls ambiguous.
drop function if exists {schema}.tenant_enqueue(
    text, text, jsonb, text, int, timestamptz, int, text, jsonb, text);

-- Enqueues as enqueue does, with the same options. A job that it names has to be the tenant's, too.
create or replace function {schema}.tenant_enqueue(
    p_tenant text, p_kind text, p_payload jsonb default '{}', p_queue text default null,
    p_priority int default null, p_run_at timestamptz default null, p_max_attempts int default null,
    p_correlation_id text default null, p_subject jsonb default null, p_traceparent text default null,
    p_id uuid default null, p_notify boolean default true, p_delay interval default null,
    p_unique text default null, p_unique_scope text default 'active', p_on_conflict text default 'return',
    p_unique_window interval default null, p_across_kinds boolean default false, p_depends_on uuid[] default null,
    p_webhook text default null, p_webhook_states text[] default null, p_parent_id uuid default null,
    p_retry_of uuid default null, p_on_failure text default 'cancel'
) returns uuid
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_before  text := coalesce(current_setting('dutiful.tenant', true), '');
    v_foreign uuid;
    v_job     uuid;
begin
    if p_tenant is null or p_tenant <> all ({schema}.own_tenants()) then
        raise exception 'the role "%" is not bound to the tenant "%"', session_user, p_tenant
            using errcode = 'insufficient_privilege';
    end if;
    -- A worker in SQL runs what payloads name with rights that members lack, and its functions learn of no tenant.
    if p_kind = 'db_function'
       or p_payload ?| array['db_function', 'before_handler', 'success_handler', 'error_handler'] then
        raise exception 'the role "%" may not enqueue jobs that run SQL functions', session_user
            using errcode = 'insufficient_privilege',
                  hint = 'grant it a function of yours with its owner''s rights, which checks what it is asked for and '
                         'enqueues, such as the kickoff of a supervisor';
    end if;
    perform set_config('dutiful.tenant', p_tenant, true);
    select n.id into v_foreign
    from unnest(array[p_parent_id, p_retry_of]) n (id)
    where n.id is not null
      and not exists (select 1 from {schema}.job j where j.id = n.id and j.tenant = p_tenant offset 0)
    limit 1;
    if found then
        raise exception 'the tenant "%" has no job of the id %, which this job is to belong to or repeat',
                        p_tenant, v_foreign
            using errcode = 'foreign_key_violation', detail = v_foreign::text;
    end if;
    v_job := {schema}.enqueue(
        p_kind, p_payload, p_queue, p_priority, p_run_at, p_max_attempts, p_tenant, p_correlation_id, p_subject,
        p_id => p_id, p_notify => p_notify, p_traceparent => p_traceparent, p_delay => p_delay,
        p_unique => p_unique, p_unique_scope => p_unique_scope, p_on_conflict => p_on_conflict,
        p_unique_window => p_unique_window, p_across_kinds => p_across_kinds, p_depends_on => p_depends_on,
        p_webhook => p_webhook, p_webhook_states => p_webhook_states, p_parent_id => p_parent_id,
        p_retry_of => p_retry_of, p_on_failure => p_on_failure);
    -- The id may be that of another tenant's job: then nothing was stored.
    if p_id is not null and not exists (
        select 1 from {schema}.job j where j.id = v_job and j.tenant = p_tenant offset 0) then
        raise exception 'the id % is taken', p_id using errcode = 'unique_violation';
    end if;
    perform set_config('dutiful.tenant', v_before, true);
    return v_job;
end $$;

revoke execute on function {schema}.tenant_enqueue from public;

-- Cancels as cancel does, and leaves an audit event. No row: there is no such job, or it is another tenant's.
create or replace function {schema}.tenant_cancel(p_job uuid, p_reason text default 'cancelled')
returns table (state text, changed boolean, requested boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_before text := coalesce(current_setting('dutiful.tenant', true), '');
    v_reason text := left(p_reason, 2000);
    v_tenant text;
    v_act    uuid := {schema}.new_id();
    v_came   record;
begin
    foreach v_tenant in array {schema}.own_tenants() loop
        perform set_config('dutiful.tenant', v_tenant, true);
        -- A job's tenant never changes.
        if exists (select 1 from {schema}.job j where j.id = p_job and j.tenant = v_tenant) then
            select c.state, c.changed, c.requested into v_came from {schema}.cancel(p_job, v_reason, null) c;
            exit when not found;
            perform {schema}.append_audit(json_build_array(json_build_object(
                'id', v_act, 'act', v_act, 'at', clock_timestamp(), 'principal', session_user, 'origin', 'sql',
                'action', 'job.cancel', 'target', {schema}.public_id(p_job), 'tenant', v_tenant, 'reason', v_reason,
                'outcome', case when v_came.changed or v_came.requested then 'succeeded' else 'failed' end,
                'after', to_json(v_came))));
            return query select v_came.state, v_came.changed, v_came.requested;
            exit;
        end if;
    end loop;
    perform set_config('dutiful.tenant', v_before, true);
end $$;

revoke execute on function {schema}.tenant_cancel(uuid, text) from public;
