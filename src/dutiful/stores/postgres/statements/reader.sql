-- name: clock
select clock_timestamp();

-- name: records
select * from {schema}.records($1);

-- name: outcomes
select * from {schema}.records({schema}.ended($1));

-- name: dependencies
select * from {schema}.records({schema}.needs_of($1)) order by id;

-- name: lines
select kind, queue from {schema}.lines($1, $2);

-- name: walk
select ids from {schema}.walk($1, $2, $3, $4, $5, $6) order by branch;

-- name: sift
select id from {schema}.sift($1, $2, $3, $4, $5, $6, $7, lower($8)) as id;

-- name: attempts
select job_id, claim_id, attempt, outcome, worker_id, claimed_at, ended_at, error
from {schema}.attempts_of($1);

-- name: queues
-- Those that are paused and empty too, but for a tenant only those where it has something.
select d.queue, d.scheduled, d.ready, d.blocked, d.running, d.oldest_ready_at,
       exists (select 1 from {schema}.pause p where p.scope = 'queue' and p.name = d.queue) as paused
from {schema}.depths($1) d
union all
select p.name, 0, 0, 0, 0, null, true
from {schema}.pause p
where p.scope = 'queue' and $1 is null and not exists (select 1 from {schema}.depths(null) d where d.queue = p.name)
order by 1;

-- name: counts
select state, jobs from {schema}.tally($1, $2);

-- name: other_counts
select (select j.created_at from (select job_id from {schema}.ready where $2::text is null or tenant = $2
                                  order by seq limit 1) f
        join {schema}.job j on j.id = f.job_id),
       (select count(*) from {schema}.dead_letter where kind <> '' and status = 'pending_review' and ($2 is null or tenant = $2)),
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
