-- One row a job, with its state: a union over the places, never a state by absence.
create view {schema}.jobs as
select j.id, j.kind, j.queue, p.state, j.payload, j.priority, p.attempt, p.crashes, j.max_attempts,
       j.created_at, coalesce(p.run_at, j.run_at) as run_at, p.started_at, p.finished_at, p.expires_at,
       p.cancel_requested_at, p.worker_id, p.result, p.errors, p.gate, p.gate_key,
       j.tenant, coalesce(j.correlation_id, j.id::text) as correlation_id, j.parent_id, j.retry_of, j.subject,
       j.created_by, case jsonb_typeof(j.options) when 'object' then j.options end as options,
       (select to_jsonb(g) - 'job_id' from {schema}.progress g where g.job_id = j.id) as progress,
       (select s.stale_at from {schema}.stale s where s.job_id = j.id) as stale_at,
       -- Ordered by a sum, which no index has: along the primary key, it might look at every attempt of every job.
       case when p.finished_at is null then
           (select a.error from {schema}.attempt a
            where a.job_id = j.id and a.error is not null order by a.id + 0 desc limit 1)
       end as last_error
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

create view {schema}.queue_health as
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

-- How long jobs waited and ran, by kind and hour of their end.
create view {schema}.job_metrics as
select j.kind, f.state, date_trunc('hour', f.finished_at) as hour, count(*) as jobs,
       avg(extract(epoch from f.claimed_at - greatest(j.created_at, j.run_at))) as mean_wait_s,
       avg(extract(epoch from f.finished_at - f.claimed_at)) as mean_run_s,
       max(extract(epoch from f.finished_at - f.claimed_at)) as longest_run_s
from {schema}.finished f
join {schema}.job j on j.id = f.job_id
group by j.kind, f.state, date_trunc('hour', f.finished_at);

-- Every breach of the laws of storage; no row when all is well.
create view {schema}.misplaced as
with place as (
    select job_id, 'ready' as place from {schema}.ready
    union all select job_id, 'scheduled' from {schema}.scheduled
    union all select job_id, 'blocked' from {schema}.blocked
    union all select job_id, 'lease' from {schema}.lease
    union all select job_id, 'finished' from {schema}.finished
), stood as (
    select job_id, count(*) as places, string_agg(place, ', ' order by place) as names from place group by job_id
)
select 'job ' || j.id || ' stands in no place' as breach
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
where b.gate = 'dependency' and not exists (select 1 from {schema}.dependency d where d.job_id = b.job_id)
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
select 'job ' || s.job_id || ' is marked stale, but it is not finished'
from {schema}.stale s where not exists (select 1 from {schema}.finished f where f.job_id = s.job_id);

-- Some of them, if there are any. The planner believes these tables to be empty, and would walk all of one for each row of
-- another.
create function {schema}.breaches(p_limit int) returns setof text
language plpgsql stable
set enable_nestloop = off
as $$
begin
    return query select m.breach from {schema}.misplaced m limit p_limit;
end $$;
