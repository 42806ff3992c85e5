-- Views for people. Times are the database's, durations are in the unit of their names.

-- One row per job, with its state: a union over the places; no state is inferred from a missing row.
create or replace view {schema}.jobs as
select j.id, j.kind::text, j.queue::text, p.state, j.payload::jsonb, j.priority::int, p.attempt, p.crashes,
       j.max_attempts::int, j.created_at, coalesce(p.run_at, j.run_at) as run_at, p.started_at, p.finished_at,
       p.expires_at, p.cancel_requested_at, p.worker_id, p.result, p.errors, p.gate,
       case p.gate when 'dependency' then null else p.gate_key end as gate_key,
       j.tenant::text, coalesce(j.correlation_id, j.id::text) as correlation_id, j.parent_id, j.retry_of,
       j.subject::jsonb, j.created_by, case jsonb_typeof(j.options) when 'object' then j.options end as options,
       (select to_jsonb(g) - 'job_id' from {schema}.progress g where g.job_id = j.id) as progress,
       (select s.stale_at from {schema}.stale s where s.job_id = j.id) as stale_at,
       -- Ordered by a sum, which no index has, because along the primary key every attempt of every job might be read.
       case when p.finished_at is null then
           (select a.error from {schema}.attempt a
            where a.job_id = j.id and a.error is not null order by a.id + 0 desc limit 1)
       end as last_error,
       (select d.backend_job_id from {schema}.delivery d where d.job_id = j.id) as backend_job_id
from (
    select job_id, 'ready' as state, attempt, crashes, null::timestamptz as run_at, null::timestamptz as started_at,
           null::timestamptz as finished_at, null::timestamptz as expires_at, null::timestamptz as cancel_requested_at,
           null::uuid as worker_id, null::jsonb as result, null::jsonb as errors, null as gate, null as gate_key
    from {schema}.ready
    union all
    select job_id, 'scheduled', attempt, crashes, run_at, null, null, null, null, null, null, null, null, null
    from {schema}.scheduled
    union all
    select job_id, 'blocked', attempt, crashes, run_at, null, null, null, null, null, null, null, gate, key
    from {schema}.blocked
    union all
    select job_id, 'running', attempt, crashes, null, claimed_at, null, expires_at, cancel_requested_at, worker_id,
           null, null, null, null
    from {schema}.lease
    union all
    select job_id, state, attempt, crashes, null, claimed_at, finished_at, null, null, worker_id, result, errors,
           null, null
    from {schema}.finished
) p
join {schema}.job j on j.id = p.job_id;

create or replace view {schema}.queue_health as
select q.queue,
       sum(q.scheduled)::bigint as scheduled, sum(q.ready)::bigint as ready, sum(q.blocked)::bigint as blocked,
       sum(q.running)::bigint as running
from (
    select queue::text, 1 as scheduled, 0 as ready, 0 as blocked, 0 as running from {schema}.scheduled
    union all select queue::text, 0, 1, 0, 0 from {schema}.ready
    union all select queue::text, 0, 0, 1, 0 from {schema}.blocked
    union all select j.queue, 0, 0, 0, 1 from {schema}.lease l join {schema}.job j on j.id = l.job_id
) q
group by q.queue;

-- How long jobs waited and ran, by kind and hour of their end; those that retention has deleted are included.
create or replace view {schema}.job_metrics as
select e.kind, e.state, e.hour, sum(e.jobs)::bigint as jobs,
       sum(e.wait_microseconds) / nullif(sum(e.claimed), 0) / 1000000 as mean_wait_s,
       sum(e.run_microseconds) / nullif(sum(e.claimed), 0) / 1000000 as mean_run_s,
       case when sum(e.claimed) > 0 then max(e.run_most)::numeric / 1000000 end as longest_run_s
from (
    select j.kind::text as kind, f.state, date_trunc('hour', f.finished_at, 'UTC') as hour, {ended_summed}
    from {schema}.finished f
    join {schema}.job j on j.id = f.job_id
    group by 1, 2, 3
    union all
    select d.kind, d.state, d.hour, d.jobs, d.claimed, d.wait_microseconds, d.run_microseconds, d.run_most
    from {schema}.deleted_jobs d
) e
group by e.kind, e.state, e.hour;

-- Every violation of the invariants of storage; no row if there is none.
create or replace view {schema}.misplaced as
with place as (
    select job_id, 'ready' as place from {schema}.ready
    union all select job_id, 'scheduled' from {schema}.scheduled
    union all select job_id, 'blocked' from {schema}.blocked
    union all select job_id, 'lease' from {schema}.lease
    union all select job_id, 'finished' from {schema}.finished
), stood as (
    select job_id, count(*) as places, string_agg(place, ', ' order by place) as names from place group by job_id
)
select 'job ' || j.id || ' stands in no place' as violation
from {schema}.job j where not exists (select 1 from stood s where s.job_id = j.id)
union all
select 'job ' || s.job_id || ' stands in ' || s.places || ' places: ' || s.names from stood s where s.places > 1
union all
select 'place ' || s.names || ' has no job ' || s.job_id
from stood s where not exists (select 1 from {schema}.job j where j.id = s.job_id)
union all
select 'unique key ' || u.key || ' (' || u.scope || ') is held by job ' || u.job_id || ', which is final or gone'
from {schema}.unique_key u
where u.scope in ('queued', 'active')
  and not exists (select 1 from place p where p.job_id = u.job_id and p.place <> 'finished')
union all
select 'unique key ' || u.key || ' (queued) is held by job ' || u.job_id || ', which is running'
from {schema}.unique_key u
where u.scope = 'queued' and exists (select 1 from {schema}.lease l where l.job_id = u.job_id)
union all
select 'job ' || d.job_id || ', which depends on ' || d.needs_id || ', is gone'
from {schema}.dependency d
where not exists (select 1 from {schema}.job j where j.id = d.job_id)
union all
select 'job ' || b.job_id || ' waits for other jobs, but for none in particular'
from {schema}.blocked b
where b.gate = 'dependency'
  and not exists (select 1 from {schema}.dependency d where d.job_id = b.job_id and d.needs_id::text = b.key)
union all
select 'job ' || b.job_id || ' waits for job ' || d.needs_id || ', which does not exist'
from {schema}.blocked b
join {schema}.dependency d on d.job_id = b.job_id
where b.gate = 'dependency' and not exists (select 1 from {schema}.job j where j.id = d.needs_id)
union all
select 'dead letter ' || d.job_id || ' belongs to a job that did not fail'
from {schema}.dead_letter d
where exists (select 1 from {schema}.job j where j.id = d.job_id)
  and not exists (select 1 from {schema}.finished f where f.job_id = d.job_id and f.state = 'failed')
union all
select 'failed job ' || f.job_id || ' has no dead letter'
from {schema}.finished f
where f.state = 'failed' and not exists (select 1 from {schema}.dead_letter d where d.job_id = f.job_id)
union all
select 'phase ' || p.name || ' belongs to job ' || p.job_id || ', which is gone'
from {schema}.phase p where not exists (select 1 from {schema}.job j where j.id = p.job_id)
union all
select 'progress is kept of job ' || g.job_id || ', which is gone'
from {schema}.progress g where not exists (select 1 from {schema}.job j where j.id = g.job_id)
union all
select 'a delivery is kept of job ' || d.job_id || ', which is gone'
from {schema}.delivery d where not exists (select 1 from {schema}.job j where j.id = d.job_id)
union all
select 'job ' || s.job_id || ' is marked stale, but it is not finished'
from {schema}.stale s where not exists (select 1 from {schema}.finished f where f.job_id = s.job_id);

-- Returns some of them. Nested loops are off because the planner believes these tables to be empty, and would read all
-- of one for each row of another.
create or replace function {schema}.misplaced_jobs(p_limit int) returns setof text
language plpgsql stable set enable_nestloop = off as $$
begin
    return query select m.violation from {schema}.misplaced m limit p_limit;
end $$;

-- Every job that has ended, with how long its last attempt ran, and how long it had been due when it was claimed for
-- its first attempt. As in the metrics, a claim that was given back does not count; a job that was run before its time waited 0.
create or replace view {schema}.job_runs as
select j.id, j.kind::text, j.queue::text, f.state, f.attempt,
       round(extract(epoch from f.finished_at - f.claimed_at) * 1000)::bigint as duration_ms,
       round(extract(epoch from c.at - least(c.at, greatest(j.created_at, j.run_at))) * 1000)::bigint as queue_time_ms,
       f.finished_at as recorded_at
from {schema}.finished f
join {schema}.job j on j.id = f.job_id
cross join lateral (
    select coalesce((select min(a.claimed_at) from {schema}.attempt a
                     where a.job_id = f.job_id and a.outcome not in ('snoozed', 'released')), f.claimed_at) as at
) c;

-- How many jobs of each kind wait and run, and how many have ended within a day.
create or replace view {schema}.kind_health as
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
create or replace view {schema}.stuck_jobs as
select j.id, j.kind::text, j.queue::text, 'running' as state, l.attempt, j.created_at, l.claimed_at as started_at,
       l.worker_id
from {schema}.lease l
join {schema}.job j on j.id = l.job_id
where l.claimed_at < now() - interval '1 hour';

-- Jobs that wait to be tried again after an error of the last hour.
create or replace view {schema}.failing_kinds as
select j.kind::text, count(*) as jobs, max(e.ended_at) as latest_error_at
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
create or replace view {schema}.kind_metrics as
with lately as (
    select m.kind, m.outcome, m.count, m.run, m.wait from {schema}.counter_minute m
    where m.minute between date_trunc('minute', now() - interval '1 hour', 'UTC') and now()
    union all
    select t.kind, t.outcome, t.count, t.run, t.wait from {schema}.counter t
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
    -- The middle of each bucket. Four buckets divide each power of two of microseconds.
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
create or replace view {schema}.lane_utilisation as
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
create or replace view {schema}.breaker_status as
select b.name, b.state, b.failures, b.successes, b.trips, b.last_failure_at, b.opened_at, b.open_until,
       b.half_opened_at, b.updated_at
from {schema}.breaker b;
