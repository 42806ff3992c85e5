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

-- name: depths
select state, view, queue, kind, jobs, squares, seen, windows from {schema}.depths($1);

-- name: line_heads
select queue, min(due_at) from {schema}.line_heads($1) group by queue;

-- name: paused_queues
select name from {schema}.pause where scope = 'queue';

-- name: count_finished
select state, jobs from {schema}.count_finished($1, $2, $3);

-- name: other_counts
-- Apart, so that those of a tenant are found by its index.
select case when $2::text is null
            then (select count(*)
                  from (select 1 from {schema}.dead_letter where kind <> '' and status = 'pending_review' limit $3) d)
            else (select count(*)
                  from (select 1 from {schema}.dead_letter where tenant = $2 and status = 'pending_review' limit $3) d)
       end,
       (select count(*) from {schema}.worker where expires_at > coalesce($1::timestamptz, clock_timestamp()));

-- name: workers
select w.id, w.name, w.host, w.pid, w.process_started, w.started_at, w.seen_at, w.lanes, w.kinds, w.locks,
       w.expires_at > clock_timestamp() as alive,
       exists (select 1 from {schema}.leader l
               where l.holder = w.id and l.expires_at > clock_timestamp()) as "leading"
from {schema}.worker w
order by w.started_at;

-- name: schedules
select name, kind, expression, timezone, catch_up, job, next_at, last_at, last_job_id, enabled
from {schema}.schedule order by name;

-- name: pauses
-- Those of people; breakers have theirs.
select scope, name, since, by, reason
from {schema}.pause
where scope in ('queue', 'kind', 'lane')
order by scope, name;

-- name: misplaced
select breaches from {schema}.breaches(1000);

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
