-- Runs functions by names that come out of payloads.

-- Calls a function of the caller's own that takes and returns jsonb, by its name with its schema. It has its caller's
-- rights, and the list of what may be called is what was granted: to this role, and not to everyone, as every new
-- function is by default.
create or replace function {schema}.run_function(p_name text, p_payload jsonb) returns jsonb
language plpgsql volatile security invoker set search_path = pg_catalog, pg_temp as $$
declare
    v_parts  text[];
    v_answer jsonb;
begin
    begin
        v_parts := parse_ident(p_name);
    exception when invalid_parameter_value then
        v_parts := null;
    end;
    -- The parts are compared with the catalog and quoted, so that nothing of the name is ever read as SQL.
    if cardinality(v_parts) = 2 and exists (
        select 1
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = v_parts[1] and p.proname = v_parts[2]
          and n.nspname not like 'pg\_%' and n.nspname not in ('information_schema', '{schema}')
          and p.prokind = 'f' and not p.proretset and p.provariadic = 0
          and p.pronargs = 1 and p.proargtypes[0] = 'jsonb'::regtype and p.prorettype = 'jsonb'::regtype
          and has_schema_privilege(n.oid, 'usage') and has_function_privilege(p.oid, 'execute')
          and not exists (
              select 1 from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
              where a.grantee = 0 and a.privilege_type = 'EXECUTE')
    ) then
        execute format('select %I.%I($1)', v_parts[1], v_parts[2]) into v_answer using p_payload;
        return v_answer;
    end if;
    -- One answer for all, so that a caller does not learn which functions there are.
    raise exception 'the role "%" may not run the function %', current_user, coalesce(left(quote_literal(p_name), 200), 'null')
        using errcode = 'insufficient_privilege',
              hint = 'name it with its schema; it has to take and return one jsonb, and execute has to be granted to this '
                     'role and revoked from public';
end $$;
