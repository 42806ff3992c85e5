-- name: clock
select clock_timestamp();

-- name: find
select * from {schema}.jobs where id = $1;

-- name: outcomes
select * from {schema}.jobs
where id = any (array(select job_id from {schema}.finished where job_id = any ($1)));

-- name: jobs
-- {where}: the conditions that were asked for. Newest first, which is the order of the ids.
select * from {schema}.jobs where {where} order by id desc limit $1;

-- name: attempts
select job_id, claim_id, attempt, outcome, worker_id, claimed_at, ended_at, error
from {schema}.attempt where job_id = $1 order by id;

-- name: dependencies
select * from {schema}.jobs
where id in (select needs_id from {schema}.dependency where job_id = $1)
order by id;

-- name: queues
select h.queue, h.scheduled, h.ready, h.blocked, h.running,
       (select min(j.created_at)
        from (select r.job_id from {schema}.ready r where r.queue = h.queue order by r.priority, r.seq limit 1) f
        join {schema}.job j on j.id = f.job_id) as oldest_ready_at,
       exists (select 1 from {schema}.pause p where p.scope = 'queue' and p.name = h.queue) as paused
from {schema}.queue_health h
union all
select p.name, 0, 0, 0, 0, null, true
from {schema}.pause p
where p.scope = 'queue' and not exists (select 1 from {schema}.queue_health h where h.queue = p.name)
order by 1;

-- name: live_counts
select 'scheduled' as state, count(*) from {schema}.scheduled
union all select 'ready', count(*) from {schema}.ready
union all select 'blocked', count(*) from {schema}.blocked
union all select 'running', count(*) from {schema}.lease;

-- name: finished_counts
select state, count(*) from {schema}.finished where finished_at >= $1 group by state;

-- name: other_counts
select (select min(j.created_at) from (select job_id from {schema}.ready order by seq limit 1) f
        join {schema}.job j on j.id = f.job_id),
       (select count(*) from {schema}.dead_letter where status = 'pending_review'),
       (select count(*) from {schema}.worker where expires_at > coalesce($1::timestamptz, clock_timestamp()));

-- name: workers
select w.id, w.name, w.host, w.pid, w.started_at, w.seen_at, w.lanes, w.kinds, w.locks,
       w.expires_at > clock_timestamp() as alive,
       exists (select 1 from {schema}.leader l
               where l.holder = w.id and l.expires_at > clock_timestamp()) as "leading"
from {schema}.worker w
order by w.started_at;

-- name: schedules
select name, kind, expression, timezone, catch_up, job, next_at, last_at, last_job_id, enabled
from {schema}.schedule order by name;

-- name: pauses
select scope, name, since, by, reason from {schema}.pause order by scope, name;

-- name: misplaced
select breach from {schema}.misplaced limit 1000;

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
