-- name: promote
select queue, priority, moved, last_run_at, ready from {schema}.promote($1, $2, $3);

-- name: stopped_kinds
-- `settled`: transactions that did not see the pause have ended by now.
select name, since, coalesce($1, clock_timestamp()) - since > interval '1 minute' as settled
from {schema}.pause where scope in ('kind', 'breaker');

-- name: unblock_resumed
select queue, priority, moved from {schema}.unblock_resumed($1, $2);

-- name: unblock_dependents
select queue, priority, moved from {schema}.unblock_dependents($1, $2);
