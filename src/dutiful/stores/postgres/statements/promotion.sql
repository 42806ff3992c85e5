-- name: stopped_kinds
-- `settled`: transactions that did not see the pause have ended by now.
select name, since, coalesce($1, clock_timestamp()) - since > interval '1 minute' as settled
from {schema}.pause where scope in ('kind', 'breaker');
