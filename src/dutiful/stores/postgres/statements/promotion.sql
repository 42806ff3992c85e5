-- name: stopped_kinds
-- `oldest_open`: all transactions before it have ended.
select name, since, coalesce($1, clock_timestamp()) - since <= interval '1 minute' as is_new,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint as oldest_open
from {schema}.pause where scope in ('kind', 'breaker', 'limited');

-- name: transaction_id
select pg_current_xact_id()::text::bigint;

-- name: next_due
select min(s.run_at) - clock_timestamp()
from (select run_at from {schema}.scheduled where run_at > $1 order by run_at limit 1) s;
