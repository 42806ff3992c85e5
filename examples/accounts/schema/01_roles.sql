-- Roles and schemas. Applied by a superuser, after `dutiful migrate` and `dutiful roles`; the other files are applied as
-- accounts_owner, who owns everything and cannot log in. worker_service_user logs in, and owns nothing.

do $$
begin
    if not exists (select 1 from pg_roles r where r.rolname = 'accounts_owner') then
        create role accounts_owner nologin;
    end if;
    if not exists (select 1 from pg_roles r where r.rolname = 'worker_service_user') then
        create role worker_service_user login;
    end if;
end $$;

-- Supervisors and handlers enqueue and look jobs up; queues.dequeue_next_available_task and its neighbours claim them.
grant dutiful_client, dutiful_sql_worker to accounts_owner;
grant dutiful_sql_worker to worker_service_user;

create schema queues authorization accounts_owner;
create schema internal authorization accounts_owner;
create schema accounts authorization accounts_owner;
create schema files authorization accounts_owner;
create schema learning authorization accounts_owner;
create schema comms authorization accounts_owner;
create schema api authorization accounts_owner;

-- Postgres lets everyone execute a new function. Here no role may until 13_grants.sql grants it.
alter default privileges for role accounts_owner revoke execute on functions from public;
