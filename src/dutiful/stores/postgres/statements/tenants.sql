-- name: tenancy
-- `everywhere`: the role sees all tenants, so no tenant has to be named. `works`: it may do what only workers and the
-- owner may.
select {schema}.tenants_enabled() as enabled,
       exists (select 1 from pg_roles r
               where r.rolname = '{schema}_worker' and pg_has_role(current_user, r.oid, 'usage')) as everywhere,
       has_function_privilege('{schema}.seal_audit(bigint[], uuid[], text[])', 'execute') as works,
       current_user::text as role;

-- name: make_groups
-- {groups}: a list of literals. Groups belong to the server: another database of it may have created them, or do so now.
do $$
declare
    v_group text;
begin
    foreach v_group in array array[{groups}] loop
        begin
            if not exists (select 1 from pg_roles where rolname = v_group) then
                execute format('create role %I nologin', v_group);
            end if;
        exception when duplicate_object or unique_violation then
            null;
        end;
    end loop;
end $$;

-- name: grant_owner_binding
-- The creator of a group may add members; where that is a DBA, the owner may not yet.
do $$
declare
    v_owner oid := (select n.nspowner from pg_namespace n where n.nspname = '{schema}');
begin
    if not pg_has_role(v_owner, '{schema}_member', 'member with admin option') then
        execute format(
            'grant {schema}_member to %I with admin true, inherit false, set false', pg_get_userbyid(v_owner));
    end if;
end $$;

-- name: check_alone
-- {ours}: the names of all that the files of schema/ make.
select {schema}.check_alone('{ours}');

-- name: tenants_on
select {schema}.tenants_on();

-- name: bind_owner
-- Functions with the rights of a superuser would pass by the policies.
select {schema}.hand_over() from pg_namespace n join pg_roles r on r.oid = n.nspowner
where n.nspname = '{schema}' and (r.rolsuper or r.rolbypassrls);

-- name: hand_over
select {schema}.hand_over();

-- name: login_owner
-- The owner of the schema, if it can log in.
select r.rolname::text from pg_namespace n join pg_roles r on r.oid = n.nspowner
where n.nspname = '{schema}' and (r.rolcanlogin or r.rolsuper);

-- name: roles_on
select {schema}.roles_on();

-- name: record_roles_on
select set_config('dutiful.tenant', '*', true),
       {schema}.append_audit(json_build_array(json_build_object(
           'id', i.id, 'act', i.id, 'at', clock_timestamp(), 'principal', session_user, 'origin', 'sql',
           'action', 'roles.on', 'outcome', 'succeeded')))
from {schema}.new_id() i (id);

-- name: record_tenants_on
-- The script records the act itself, because no operator runs it.
select set_config('dutiful.tenant', '*', true),
       {schema}.append_audit(json_build_array(json_build_object(
           'id', i.id, 'act', i.id, 'at', clock_timestamp(), 'principal', session_user, 'origin', 'sql',
           'action', 'tenants.on', 'outcome', 'succeeded')))
from {schema}.new_id() i (id);

-- name: tenants_off
select {schema}.tenants_off();

-- name: unbind_tenant
-- Returns the tenants; $2 null: all of them.
delete from {schema}.tenant_role t
where t.role = (select r.oid from pg_roles r where r.rolname = $1) and ($2::text is null or t.tenant = $2)
returning t.tenant;

-- name: tenant_status
select {schema}.tenants_enabled() as enabled, current_user::text as role,
       (select array_agg(r.name order by r.name)
        from {schema}.tenant_rules() r
        join pg_class c on c.relname = r.name and c.relnamespace = '{schema}'::regnamespace
        where c.relrowsecurity) as isolated;

-- name: tenant_members
-- The members of each group, direct and indirect, and the tenants that a member is bound to.
select m.rolname::text as role, substr(g.rolname, length('{schema}_') + 1) as group,
       array(select t.tenant from {schema}.tenant_role t where t.role = m.oid order by t.tenant) as tenants
from pg_roles g
join pg_roles m on m.oid <> g.oid and not m.rolsuper
     and (pg_has_role(m.oid, g.oid, 'usage') or pg_has_role(m.oid, g.oid, 'set'))
where g.rolname in ('{schema}_operator', '{schema}_client', '{schema}_worker', '{schema}_member',
                    '{schema}_sql_worker', '{schema}_reader')
  and m.rolname not like 'pg\_%'
order by 1, 2;

-- name: definers
-- Functions with their owner's rights that resolve names by the caller's search_path.
select p.oid::regprocedure::text as what
from pg_proc p
where p.pronamespace = '{schema}'::regnamespace and p.prosecdef
  and not exists (select 1 from unnest(p.proconfig) c where c like 'search\_path=%')
order by 1;

-- name: tenant_gaps
-- Where the isolation has gaps, while tenants are on.
select 'superuser' as gap, r.rolname::text as what
from pg_roles r where r.rolname = current_user and (r.rolsuper or r.rolbypassrls)
union all
select 'owner', r.rolname::text
from pg_namespace n join pg_roles r on r.oid = n.nspowner
where n.nspname = '{schema}' and (r.rolsuper or r.rolbypassrls)
union all
select 'table', t.name
from {schema}.tenant_rules() t
join pg_class c on c.relname = t.name and c.relnamespace = '{schema}'::regnamespace
where t.rule <> 'fleet'
  and (not c.relrowsecurity or not c.relforcerowsecurity
       or (select count(*) from pg_policy p where p.polrelid = c.oid)
          <> case when t.name = any ({schema}.member_tables()) then 4 else 3 end
       or not exists (select 1 from pg_policy p where p.polrelid = c.oid and p.polname = 'operator')
       or not exists (select 1 from pg_policy p where p.polrelid = c.oid and p.polname = 'worker')
       or not exists (select 1 from pg_policy p where p.polrelid = c.oid and p.polname = 'owner'))
union all
select 'view', c.relname::text
from pg_class c
where c.relnamespace = '{schema}'::regnamespace and c.relkind = 'v'
  and not coalesce(c.reloptions, '{}') && array['security_invoker=true', 'security_invoker=on', 'security_invoker=1']
union all
select 'member', r.rolname::text
from pg_roles r
where exists (select 1 from {schema}.tenant_role t where t.role = r.oid)
  and (r.rolsuper or r.rolbypassrls or exists (
      select 1 from pg_roles g
      where g.rolname in ('{schema}_operator', '{schema}_client', '{schema}_worker', '{schema}_sql_worker',
                          '{schema}_reader')
        and pg_has_role(r.oid, g.oid, 'member')))
order by 1, 2;
