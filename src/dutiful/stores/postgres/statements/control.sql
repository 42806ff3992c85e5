-- name: pause
insert into {schema}.pause (scope, name, since, by, reason)
values ($1, $2, coalesce($3, clock_timestamp()), $4, $5)
on conflict do nothing
returning name;

-- name: resume
delete from {schema}.pause where scope = $1 and name = $2 returning name;

-- name: pauses
-- Pauses by people; breakers have their own.
select scope, name, since, by, reason
from {schema}.pause
where scope in ('queue', 'kind', 'lane')
order by scope, name;
