-- name: outcomes
select {record} from {schema}.job_records({schema}.finished_among($1));

-- name: dependencies
select {summary} from {schema}.job_records({schema}.dependency_ids($1)) order by id;

-- name: walk_ids
select ids from {schema}.walk_ids($1, $2, $3, $4, $5, $6) order by branch;

-- name: filter_ids
select id from {schema}.filter_ids($1, $2, $3, $4, $5, $6, $7, lower($8), $9) as id;

-- name: paused_queues
select name from {schema}.pause where scope = 'queue';

-- name: open_dead_letters
-- Separate statements, so that those of a tenant use its index.
select case when $1::text is null
            then (select count(*)
                  from (select 1 from {schema}.dead_letter where kind <> '' and status = 'pending_review' limit $2) d)
            else (select count(*)
                  from (select 1 from {schema}.dead_letter where tenant = $1 and status = 'pending_review' limit $2) d)
       end;

-- name: health
select current_setting('server_version') as server_version,
       (select value from {schema}.meta where key = 'schema_version') as schema_version,
       pg_size_pretty(pg_database_size(current_database())) as database_size,
       current_setting('fsync') as fsync,
       current_setting('synchronous_commit') as synchronous_commit,
       (select max(clock_timestamp() - xact_start) from pg_stat_activity
        where state <> 'idle' and backend_type = 'client backend') as oldest_transaction,
       (select coalesce(sum(n_dead_tup), 0) from pg_stat_user_tables
        where schemaname = $1 and relname in ('ready', 'lease')) as dead_rows,
       current_user as role;

-- name: notification_queue
-- How full it is, and the oldest transaction of the server: a session that listens reads nothing during its own. A role
-- that does not see those of all others learns of none, because its own are hardly at fault.
select pg_notification_queue_usage() as share, {notify_room} as hinted, a.pid, a.usename::text as role
from (select) one
left join lateral (
    select pid, usename from pg_stat_activity
    where xact_start is not null and backend_type = 'client backend' and pid <> pg_backend_pid()
      and pg_has_role('pg_read_all_stats', 'usage')
    order by xact_start limit 1
) a on true;

-- name: ended_by_tenant
select j.tenant::text, f.state, count(*) as jobs
from (select x.job_id, x.state from {schema}.finished x where x.finished_at >= $1 limit $2) f
join {schema}.job j on j.id = f.job_id
group by j.tenant, f.state
order by j.tenant, f.state;
