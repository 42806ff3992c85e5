-- name: put_schedule
-- A known schedule keeps its next time, unless its expression has changed.
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
-- Compare and set: the caller that advances next_at enqueues the jobs. In one statement, because a leader that is
-- stopped between two would hold the row's lock, and so block its successor. It does not wait for long: the key of a
-- firing can be foreseen, and any client may hold it in an open transaction.
with limited as materialized (
    select set_config('lock_timeout', '2s', true)
), won as (
    update {schema}.schedule
    set next_at = $3, last_at = $4, last_job_id = coalesce($5, last_job_id)
    where name = $1 and next_at = $2 and enabled and (select true from limited)
    returning name
)
select won.name, count(made.job_id)
from won left join lateral {schema}.insert_jobs($6, $7) made on true
group by won.name;

-- name: remove_schedule
delete from {schema}.schedule where name = $1 returning name;

-- name: enable_schedule
update {schema}.schedule set enabled = $2 where name = $1 returning name;

-- name: schedules
select {schedule} from {schema}.schedule order by name;
