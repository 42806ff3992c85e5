-- name: job_records
select {record} from {schema}.job_records($1);

-- name: outcomes
select {record} from {schema}.job_records({schema}.finished_among($1));

-- name: dependencies
select {record} from {schema}.job_records({schema}.dependency_ids($1)) order by id;

-- name: kind_queue_pairs
select kind, queue from {schema}.kind_queue_pairs($1, $2);

-- name: walk_ids
select ids from {schema}.walk_ids($1, $2, $3, $4, $5, $6) order by branch;

-- name: filter_ids
select id from {schema}.filter_ids($1, $2, $3, $4, $5, $6, $7, lower($8)) as id;

-- name: attempts
select job_id, claim_id, attempt, outcome, worker_id, claimed_at, ended_at, error from {schema}.attempts($1);

-- name: paused_queues
select name from {schema}.pause where scope = 'queue';

-- name: count_finished
select state, jobs from {schema}.count_finished($1, $2, $3);

-- name: other_counts
-- Separate statements, so that those of a tenant use its index.
select case when $2::text is null
            then (select count(*)
                  from (select 1 from {schema}.dead_letter where kind <> '' and status = 'pending_review' limit $3) d)
            else (select count(*)
                  from (select 1 from {schema}.dead_letter where tenant = $2 and status = 'pending_review' limit $3) d)
       end,
       (select count(*) from {schema}.worker where expires_at > coalesce($1::timestamptz, clock_timestamp()));

-- name: misplaced_jobs
select misplaced_jobs from {schema}.misplaced_jobs(1000);

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
