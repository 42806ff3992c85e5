-- Views for people who know SQL. Times are the database's, lengths are in the unit of their names.

-- Every job that has ended, with how long it ran the last time, and how long it had been due when it was claimed for its
-- first attempt. As in the metrics, a claim that was snoozed is none; a job that was made due before its time waited for
-- 0.
create view {schema}.job_runs as
select j.id, j.kind, j.queue, f.state, f.attempt,
       round(extract(epoch from f.finished_at - f.claimed_at) * 1000)::bigint as duration_ms,
       round(extract(epoch from c.at - least(c.at, greatest(j.created_at, j.run_at))) * 1000)::bigint as queue_time_ms,
       f.finished_at as recorded_at
from {schema}.finished f
join {schema}.job j on j.id = f.job_id
cross join lateral (
    select coalesce((select min(a.claimed_at) from {schema}.attempt a
                     where a.job_id = f.job_id and a.outcome <> 'snoozed'), f.claimed_at) as at
) c;

-- How many jobs of each kind wait and run, and how many have ended within a day.
create view {schema}.kind_health as
select p.kind, p.state, count(*) as jobs
from (
    select r.kind::text, 'ready' as state from {schema}.ready r
    union all select s.kind::text, 'scheduled' from {schema}.scheduled s
    union all select b.kind::text, 'blocked' from {schema}.blocked b
    union all select j.kind, 'running' from {schema}.lease l join {schema}.job j on j.id = l.job_id
    union all
    select j.kind, f.state from {schema}.finished f join {schema}.job j on j.id = f.job_id
    where f.finished_at > now() - interval '1 day'
) p
group by p.kind, p.state;

-- Jobs that have been running for over an hour.
create view {schema}.stuck_jobs as
select j.id, j.kind, j.queue, 'running' as state, l.attempt, j.created_at, l.claimed_at as started_at, l.worker_id
from {schema}.lease l
join {schema}.job j on j.id = l.job_id
where l.claimed_at < now() - interval '1 hour';

-- Jobs that wait to be tried again after an error of the last hour.
create view {schema}.failing_kinds as
select j.kind, count(*) as jobs, max(e.ended_at) as latest_error_at
from (
    select a.job_id, max(a.ended_at) as ended_at
    from {schema}.attempt a
    where a.ended_at > now() - interval '1 hour' and a.outcome in ('failed', 'timed_out')
    group by a.job_id
) e
join {schema}.job j on j.id = e.job_id
where exists (select 1 from {schema}.scheduled s where s.job_id = e.job_id)
   or exists (select 1 from {schema}.ready r where r.job_id = e.job_id)
   or exists (select 1 from {schema}.blocked b where b.job_id = e.job_id)
group by j.kind;

-- How attempts of the last hour have ended, and how long they took, as workers counted it: each time within an eighth.
create view {schema}.kind_metrics as
with lately as (
    select m.kind, m.outcome, m.count, m.run, m.wait from {schema}.tally_minute m
    where m.minute between date_trunc('minute', now() - interval '1 hour', 'UTC') and now()
    union all
    select t.kind, t.outcome, t.count, t.run, t.wait from {schema}.tally t
    where t.at >= date_trunc('minute', now() - interval '1 hour', 'UTC')
), ended as (
    select l.kind, coalesce(sum(l.count) filter (where l.outcome in ('failed', 'retried')), 0) as failed,
           coalesce(sum(l.count) filter (
               where l.outcome in ('failed', 'retried', 'completed', 'completed_with_errors', 'cancelled')), 0) as ended
    from lately l
    group by l.kind
), bucket as (
    select l.kind, 'run' as what, e.key::int as number, sum(e.value::bigint) as times
    from lately l, jsonb_each_text(l.run) e
    group by l.kind, e.key
    union all
    select l.kind, 'wait', e.key::int, sum(e.value::bigint)
    from lately l, jsonb_each_text(l.wait) e
    group by l.kind, e.key
), timed as (
    -- In the middle of its bucket: of which each is a quarter of a power of two microseconds wide.
    select b.kind, b.what,
           case when b.number < 4 then 2 * b.number + 1
                else (2 * (b.number & 3) + 9) * 2.0 ^ ((b.number >> 2) - 1) end / 2e6 as seconds,
           sum(b.times) over (partition by b.kind, b.what order by b.number)
               / sum(b.times) over (partition by b.kind, b.what) as share
    from bucket b
)
select d.kind, d.ended::bigint as attempts, d.failed::bigint as failed,
       round(100.0 * d.failed / nullif(d.ended, 0), 2)::float8 as error_percent,
       min(t.seconds) filter (where t.what = 'run' and t.share >= 0.50)::float8 as run_p50_s,
       min(t.seconds) filter (where t.what = 'run' and t.share >= 0.95)::float8 as run_p95_s,
       min(t.seconds) filter (where t.what = 'run' and t.share >= 0.99)::float8 as run_p99_s,
       min(t.seconds) filter (where t.what = 'wait' and t.share >= 0.50)::float8 as wait_p50_s,
       min(t.seconds) filter (where t.what = 'wait' and t.share >= 0.95)::float8 as wait_p95_s,
       min(t.seconds) filter (where t.what = 'wait' and t.share >= 0.99)::float8 as wait_p99_s
from ended d
left join timed t on t.kind = d.kind
group by d.kind, d.ended, d.failed;

-- How busy the slots of each lane are, over all workers that are alive.
create view {schema}.lane_utilisation as
select x.lane, count(*) as workers, sum(x.slots) as slots, sum(x.busy) as busy,
       sum(coalesce(x.utilisation, x.busy::float8 / x.slots) * x.slots) / sum(x.slots) as utilisation
from (
    select l.key as lane, (l.value ->> 'slots')::int as slots, coalesce((l.value ->> 'busy')::int, 0) as busy,
           (l.value ->> 'utilisation')::float8 as utilisation
    from {schema}.worker w, jsonb_each(w.lanes) l
    where w.expires_at > now()
) x
group by x.lane;

-- Every breaker that has been used or declared, and how often failures have opened it.
create view {schema}.breaker_status as
select b.name, b.state, b.failures, b.successes, b.trips, b.last_failure_at, b.opened_at, b.open_until,
       b.half_opened_at, b.updated_at
from {schema}.breaker b;
