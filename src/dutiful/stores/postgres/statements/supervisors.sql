-- Reads supervised processes. {task}, {attempt} and so on are the tables of one process, filled in when it is known.

-- name: supervisors
-- Found by their comments, which any role can write. So an owner who may not enqueue has no supervisor, and views are not
-- read in the place of tables, because they would run functions with the reader's rights.
select n.nspname::text as schema, p.proname::text as function, obj_description(p.oid, 'pg_proc') as comment,
       has_schema_privilege(n.oid, 'usage') as usage,
       array(select c.relname::text from pg_class c
             where c.relnamespace = n.oid and c.relkind in ('r', 'p') and not c.relrowsecurity
               and c.relowner = p.proowner) as tables,
       array(select c.relname::text from pg_class c
             where c.relnamespace = n.oid and c.relkind in ('r', 'p') and not c.relrowsecurity
               and c.relowner = p.proowner and has_table_privilege(c.oid, 'select')) as readable
from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where p.prokind = 'f' and p.pronargs = 1 and p.proargtypes[0] = 'jsonb'::regtype and p.prorettype = 'jsonb'::regtype
  and right(p.proname::text, length('_supervisor')) = '_supervisor'
  and starts_with(obj_description(p.oid, 'pg_proc'), $1)
  and has_function_privilege(p.proowner, '{schema}.insert_jobs(jsonb, timestamptz, boolean, boolean)', 'execute')
order by 1, 2;

-- name: count_processes
-- $1: how many of the newest to count, $2: the most attempts.
select count(*) as counted, count(*) filter (where c.succeeded) as succeeded,
       count(*) filter (where (c.failed or c.failures >= $2) and not c.succeeded) as failed
from (select exists (select 1 from {attempt} a join {succeeded} s using ({attempt_id})
                     where a.{task_id} = t.{task_id}) as succeeded,
             exists (select 1 from {final} f where f.{task_id} = t.{task_id}) as failed,
             (select count(*) from {attempt} a join {failed} f using ({attempt_id})
              where a.{task_id} = t.{task_id}) as failures
      from (select t.{task_id} from {task} t order by t.{task_id} desc limit $1) t) c;

-- name: list_processes
-- $1: how many of the newest to look at, $2: how many to return, $3: only stuck ones, $4: the most attempts.
-- $5: what comes before the id in the correlation id, $6: the supervisor.
-- Those that succeeded are left out before the limit counts: any number of them may be newer than one that is stuck. One
-- row more than to look at shows that there are more; a row without a task carries that if there is nothing to return.
with looked_at as materialized (
    select t.* from {task} t
    where not $3 or not exists (select 1 from {attempt} a join {succeeded} s using ({attempt_id})
                                where a.{task_id} = t.{task_id})
    order by t.{task_id} desc
    limit $1::bigint + 1
)
select (select count(*) from looked_at) <= $1 as complete, p.*
from (values (1)) one (row)
left join (
    select p.*
    from (select t.{task_id} as task_id, {key_object} as keys, t.created_at,
                 (select count(*) from {attempt} a where a.{task_id} = t.{task_id}) as attempts,
                 (select count(*) from {attempt} a join {failed} f using ({attempt_id})
                  where a.{task_id} = t.{task_id}) as failures,
                 exists (select 1 from {attempt} a join {succeeded} s using ({attempt_id})
                         where a.{task_id} = t.{task_id}) as succeeded,
                 (select f.error_message from {final} f where f.{task_id} = t.{task_id}) as final_error,
                 exists (select 1 from {schema}.job j
                         where j.correlation_id collate "C" = $5::text || t.{task_id}::text and j.correlation_id is not null
                           and j.kind = 'db_function' and j.payload ->> 'db_function' = $6::text
                           and not exists (select 1 from {schema}.finished f where f.job_id = j.id)) as checked
          from (select t.* from looked_at t order by t.{task_id} desc limit $1) t
          order by t.{task_id} desc) p
    where not $3 or (not p.succeeded and (p.final_error is not null or p.failures >= $4 or not p.checked))
    limit $2
) p on true
order by p.task_id desc;

-- name: find_process
select t.{task_id} as task_id, {key_object} as keys, t.created_at, f.error_message as final_error,
       f.created_at as final_at
from {task} t left join {final} f using ({task_id})
where t.{task_id} = $1;

-- name: process_attempts
select a.{attempt_id} as attempt_id, a.job_id, a.created_at, s.created_at as succeeded_at, f.created_at as failed_at,
       f.error_message, j.state as job_state, coalesce(j.errors -> -1, j.last_error) ->> 'message' as job_error
from {attempt} a
left join {succeeded} s using ({attempt_id})
left join {failed} f using ({attempt_id})
left join lateral {schema}.look_up_job(a.job_id) j on true
where a.{task_id} = $1
order by a.{attempt_id};

-- name: process_checks
-- Those that have not ended, and the last that has.
with checks as materialized (
    select j.id, exists (select 1 from {schema}.finished f where f.job_id = j.id) as ended
    from {schema}.job j
    where j.correlation_id collate "C" = $1::text and j.correlation_id is not null
      and j.kind = 'db_function' and j.payload ->> 'db_function' = $2::text
)
select v.job_id, v.state, v.run_at, coalesce(v.errors -> -1, v.last_error) ->> 'message' as error
from (select c.id from checks c where not c.ended
      union all
      (select c.id from checks c where c.ended order by c.id desc limit 1)) c
cross join lateral {schema}.look_up_job(c.id) v
order by v.job_id;
