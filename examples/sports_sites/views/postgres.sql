-- The queue in the register's own terms: views over the tables of Dutiful ({dutiful}), in a schema of their own
-- ({views}). A view of one table begins with `with`, because Postgres would let people update it otherwise.

create schema if not exists {views};

-- `failed` has failed and will be tried again, `dead` has failed for good. A job that was cancelled was taken back, so it
-- is not here.
create or replace view {views}.jobs as
select j.id, j.kind as type, j.payload, p.status, j.priority, p.attempt as attempts, j.max_attempts,
       coalesce(j.run_at, j.created_at) as scheduled_at, coalesce(p.run_at, j.run_at, j.created_at) as run_at,
       p.started_at, case p.status when 'completed' then p.finished_at end as completed_at,
       case when p.status in ('failed', 'dead') then coalesce(p.error, e.error) ->> 'message' end as error_message,
       coalesce(p.error, e.error) ->> 'message' as last_error,
       case when p.error is null then e.ended_at else p.finished_at end as last_error_at,
       coalesce(j.correlation_id, j.id::text) as correlation_id,
       (select o.id from {dutiful}.job o where o.id = j.parent_id) as parent_job_id,
       j.created_by, j.options ->> 'unique' as dedup_key, j.created_at,
       greatest(j.created_at, e.changed_at, p.since, p.started_at, p.finished_at) as updated_at
from {dutiful}.job j
join lateral (
    select s.state, s.attempt, s.since, s.run_at, s.started_at, s.finished_at, s.error,
           case s.state
               when 'running' then 'processing'
               when 'completed' then 'completed'
               when 'completed_with_errors' then 'completed'
               when 'failed' then 'dead'
               -- Given back, it waits as if it had not been tried.
               else case when s.tried and (
                   select a.outcome from {dutiful}.attempt a where a.job_id = j.id and a.outcome <> 'refused'
                   order by a.id desc limit 1
               ) is distinct from 'released' then 'failed' else 'pending' end
           end as status
    from (
        select 'waiting' as state, attempt, attempt + crashes > 0 as tried, null::timestamptz as since,
               null::timestamptz as run_at, null::timestamptz as started_at, null::timestamptz as finished_at,
               null::jsonb as error
        from {dutiful}.ready where job_id = j.id
        union all
        select 'waiting', attempt, attempt + crashes > 0, null, run_at, null, null, null
        from {dutiful}.scheduled where job_id = j.id
        union all
        select 'waiting', attempt, attempt + crashes > 0, since, run_at, null, null, null
        from {dutiful}.blocked where job_id = j.id
        union all
        select 'running', attempt, true, null, null, claimed_at, null, null from {dutiful}.lease where job_id = j.id
        union all
        select state, attempt, true, null, null, claimed_at, finished_at, case state when 'failed' then errors -> 0 end
        from {dutiful}.finished where job_id = j.id and state <> 'cancelled'
    ) s
) p on true
left join lateral (
    select (array_agg(a.error order by a.id desc) filter (where a.bad))[1] as error,
           max(a.ended_at) filter (where a.bad) as ended_at, max(a.ended_at) as changed_at
    from (
        select id, error, ended_at, outcome in ('failed', 'timed_out', 'lost') as bad
        from {dutiful}.attempt where job_id = j.id and outcome <> 'refused'
    ) a
) e on true;

create or replace view {views}.dead_letter_jobs as
with letter as (
    select d.job_id as id,
           d.job || jsonb_build_object('type', d.kind, 'correlation_id', d.correlation_id) as original_job,
           coalesce(d.message, '') as error_message,
           jsonb_build_object('errors', d.errors, 'history', coalesce(d.history, '[]')) as error_details, d.died_at,
           d.acknowledged_at is not null as acknowledged, d.acknowledged_by, d.acknowledged_at
    from {dutiful}.dead_letter d
)
select * from letter;

create or replace view {views}.circuit_breakers as
with service as (
    select b.name as service_name, b.state, b.failures as failure_count, b.successes as success_count,
           b.last_failure_at, b.opened_at, b.half_opened_at, b.updated_at
    from {dutiful}.breaker b
)
select * from service;

-- One row for each attempt that ended; only a job's first one says how long it had waited.
create or replace view {views}.attempt_metrics as
select r.job_id, j.kind as job_type, r.status,
       round(extract(epoch from r.ended_at - r.claimed_at) * 1000)::bigint as duration_ms,
       case when r.attempt = 1
            then greatest(round(extract(epoch from r.claimed_at - greatest(j.created_at, j.run_at)) * 1000)::bigint, 0)
       end as queue_time_ms,
       r.ended_at as recorded_at
from (
    select job_id, claimed_at, finished_at as ended_at, attempt,
           case state when 'failed' then 'dead' else 'completed' end as status
    from {dutiful}.finished where claimed_at is not null and state <> 'cancelled'
    union all
    select job_id, claimed_at, ended_at, attempt, 'failed'
    from {dutiful}.attempt where claimed_at is not null and outcome in ('failed', 'timed_out', 'lost')
) r
join {dutiful}.job j on j.id = r.job_id;

-- What is known of jobs that were deleted, for {days} days.
create table if not exists {views}.kept_metrics (
    job_type text not null, status text not null, duration_ms bigint, queue_time_ms bigint,
    recorded_at timestamptz not null
);
create index if not exists kept_metrics_time on {views}.kept_metrics (recorded_at);

-- A job's finished row is deleted first, so that the rest is still there.
create or replace function {views}.keep_metrics() returns trigger language plpgsql as $$
begin
    insert into {views}.kept_metrics (job_type, status, duration_ms, queue_time_ms, recorded_at)
    select m.job_type, m.status, m.duration_ms, m.queue_time_ms, m.recorded_at
    from {views}.attempt_metrics m where m.job_id = old.job_id;
    return old;
end $$;

create or replace trigger sports_keep_metrics before delete on {dutiful}.finished
for each row execute function {views}.keep_metrics();

-- Rows come only when jobs are deleted, so that is when old ones go: once a statement, in bounded steps, and without
-- waiting for another transaction that deletes some.
create or replace function {views}.trim_metrics() returns trigger language plpgsql as $$
begin
    delete from {views}.kept_metrics k using (
        select o.ctid from {views}.kept_metrics o where o.recorded_at < now() - interval '{days} days'
        order by o.recorded_at limit 10000 for update skip locked
    ) late
    where k.ctid = late.ctid;
    return null;
end $$;

create or replace trigger sports_trim_metrics after delete on {dutiful}.finished
for each statement execute function {views}.trim_metrics();

create or replace view {views}.job_metrics as
select job_type, status, duration_ms, queue_time_ms, recorded_at from {views}.attempt_metrics
union all
select job_type, status, duration_ms, queue_time_ms, recorded_at from {views}.kept_metrics;

create or replace view {views}.job_queue_health as
select type, status, count(*) as jobs, min(created_at) as oldest, max(created_at) as newest,
       round(avg(attempts), 1) as mean_attempts
from {views}.jobs
group by type, status;

create or replace view {views}.job_queue_stats as
select count(*) filter (where status = 'pending') as pending, count(*) filter (where status = 'processing') as processing,
       count(*) filter (where status = 'failed') as failed,
       coalesce(floor(extract(epoch from now() - min(run_at) filter (
           where status = 'pending' and run_at <= now())) / 60), 0)::int as oldest_pending_minutes
from {views}.jobs;
