-- name: resign
update {schema}.leader set expires_at = '-infinity' where holder = $1;

-- name: put_schedule
-- A known schedule keeps its next time, unless it is due at other times now.
insert into {schema}.schedule as s (name, kind, expression, timezone, catch_up, job, next_at)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (name) do update
set kind = excluded.kind, expression = excluded.expression, timezone = excluded.timezone,
    catch_up = excluded.catch_up, job = excluded.job,
    next_at = case when (s.expression, s.timezone) = (excluded.expression, excluded.timezone)
                   then s.next_at else excluded.next_at end
where row(s.kind, s.expression, s.timezone, s.catch_up, s.job) is distinct from
      row(excluded.kind, excluded.expression, excluded.timezone, excluded.catch_up, excluded.job);

-- name: fire
-- Compare and set: whoever moves next_at on enqueues the jobs. In one statement, for a leader that was stopped between
-- two would hold the row's lock, and so hold up the one that took its place.
with won as (
    update {schema}.schedule
    set next_at = $3, last_at = $4, last_job_id = coalesce($5, last_job_id)
    where name = $1 and next_at = $2 and enabled
    returning name
)
select won.name, count(made.job_id)
from won left join lateral {schema}.insert_jobs($6::text::jsonb, $7) made on true
group by won.name;

-- name: beat
insert into {schema}.worker
       (id, name, host, pid, process_started, started_at, seen_at, expires_at, lanes, kinds, locks)
select $1, $2, $3, $4, $5, $6, n.now, n.now + $7, $8, $9, $10
from (select coalesce($11::timestamptz, clock_timestamp()) as now) n
on conflict (id) do update
set seen_at = excluded.seen_at, expires_at = excluded.expires_at, lanes = excluded.lanes, kinds = excluded.kinds,
    locks = excluded.locks;

-- name: leave
delete from {schema}.worker where id = $1;

-- name: pause
insert into {schema}.pause (scope, name, since, by, reason)
values ($1, $2, coalesce($3, clock_timestamp()), $4, $5)
on conflict do nothing
returning name;

-- name: resume
delete from {schema}.pause where scope = $1 and name = $2 returning name;

-- name: remove_schedule
delete from {schema}.schedule where name = $1 returning name;

-- name: enable_schedule
update {schema}.schedule set enabled = $2 where name = $1 returning name;
