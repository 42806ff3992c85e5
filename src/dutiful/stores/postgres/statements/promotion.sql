-- name: stopped_kinds
-- `settled`: transactions that did not see the pause have ended by now.
select name, since, coalesce($1, clock_timestamp()) - since > interval '1 minute' as settled
from {schema}.pause where scope in ('kind', 'breaker');

-- name: next_due
select min(s.run_at) - clock_timestamp()
from (select run_at from {schema}.scheduled where run_at > $1 order by run_at limit 1) s;
