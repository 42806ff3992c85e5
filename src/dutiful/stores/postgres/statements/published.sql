-- name: published_rights
-- Which of the functions that a worker in SQL calls exist, and which of them it may execute.
select n.nspname is not null as schema_exists, p.proname as name,
       has_schema_privilege(n.oid, 'usage') and has_function_privilege(p.oid, 'execute') as allowed
from (select 1) one
left join pg_namespace n on n.nspname = '{schema}'
left join pg_proc p on p.pronamespace = n.oid
    and p.proname = any ($1::text[]);

-- name: published_started
select pg_postmaster_start_time();

-- name: published_read_only
select current_setting('transaction_read_only')::boolean;

-- name: published_dequeue
select job_id, claim_id, kind, payload, attempt, crashes, tenant, correlation_id
from {schema}.dequeue($1, $2, $3, $4, $5, p_suspects => $6);

-- name: published_renew
select claim_id, answer from {schema}.renew_jobs($1, $2, $3);

-- name: published_renew_one
select {schema}.renew_job($1, $2, $3);

-- name: published_run
select {schema}.run_function($1, $2);

-- name: published_complete
select {schema}.complete_job($1, $2, $3, $4);

-- name: published_release
select {schema}.release_job($1, $2);

-- name: published_report
select {schema}.report_worker($1, $2, $3, $4, $5, $6, p_host => $7, p_pid => $8, p_process => $9);

-- name: published_maintain
select promoted, rescued, next_at - clock_timestamp() as due_in, seen_at
from {schema}.maintain_jobs($1, $2, p_seen => $3, p_within => $4);
