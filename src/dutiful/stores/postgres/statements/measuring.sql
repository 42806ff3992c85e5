-- name: add_tallies
select {schema}.add_tallies($1, $2, $3::text::jsonb, $4);

-- name: fold_tallies
select {schema}.fold_tallies($1, $2, $3);

-- name: tallied
-- In one statement, so that what is folded meanwhile counts once.
with since as materialized (
    select date_trunc('minute', coalesce($2::timestamptz, clock_timestamp()) - $1::interval, 'UTC') as at
)
select kind, outcome, count, run, wait, run_seconds, wait_seconds, payload_bytes, payload_most
from {schema}.tally_minute where minute >= (select at from since)
union all
select kind, outcome, count, run, wait, run_seconds, wait_seconds, payload_bytes, payload_most
from {schema}.tally where at >= (select at from since);

-- name: totals
select kind, outcome, count, run, wait, run_seconds, wait_seconds, payload_bytes, payload_most
from {schema}.tally_total
union all
select kind, outcome, count, run, wait, run_seconds, wait_seconds, payload_bytes, payload_most
from {schema}.tally;

-- name: count_stuck
select {schema}.count_stuck($1, $2);
