-- name: add_tallies
select {schema}.add_tallies($1, $2, $3::text::jsonb, $4);

-- name: fold_tallies
select {schema}.fold_tallies($1, $2, $3, $4);

-- name: counted
-- In one statement, so that what is folded meanwhile counts once. What is not folded was counted just now, whatever a
-- clock that was ahead may say.
with asked as materialized (
    select coalesce($4::timestamptz, clock_timestamp()) as now,
           date_trunc(case when $1::boolean then 'minute' else 'hour' end,
                      coalesce($4::timestamptz, clock_timestamp()) - $2::interval, 'UTC') as since
)
select true as lately, false as ever,
       kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
from {schema}.tally_minute
where $1 and minute between (select since from asked) and (select now from asked)
union all
select true, false, kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
from {schema}.tally_hour
where not $1 and hour between (select since from asked) and (select now from asked)
union all
select false, true, kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
from {schema}.tally_total
where $3::boolean
union all
select at >= (select since from asked), true,
       kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
from {schema}.tally;

-- name: tallied_by_hour
-- What `counted` finds lately, added up here: there may be many more rows than fit into a client's memory.
with asked as materialized (
    select coalesce($2::timestamptz, clock_timestamp()) as now,
           date_trunc('hour', coalesce($2::timestamptz, clock_timestamp()) - $1::interval, 'UTC') as since
)
select f.kind, f.outcome, sum(f.count)::bigint, {schema}.sum_sketches(array_agg(f.run)),
       {schema}.sum_sketches(array_agg(f.wait)), sum(f.run_microseconds)::bigint, sum(f.wait_microseconds)::bigint,
       sum(f.payload_bytes)::bigint, max(f.payload_most)
from (
    select kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
    from {schema}.tally_hour
    where hour between (select since from asked) and (select now from asked)
    union all
    select kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
    from {schema}.tally
    where at >= (select since from asked)
) f
group by f.kind, f.outcome;

-- name: count_ended
with asked as materialized (
    select coalesce($3::timestamptz, clock_timestamp()) as now,
           date_trunc(case when $1::boolean then 'minute' else 'hour' end,
                      coalesce($3::timestamptz, clock_timestamp()) - $2::interval, 'UTC') as since
)
select e.outcome, sum(e.count)::bigint
from (
    select outcome, count from {schema}.tally_minute
    where $1 and minute between (select since from asked) and (select now from asked)
    union all
    select outcome, count from {schema}.tally_hour
    where not $1 and hour between (select since from asked) and (select now from asked)
    union all
    select outcome, count from {schema}.tally where at >= (select since from asked)
) e
group by e.outcome;

-- name: count_stuck
select {schema}.count_stuck($1, $2);
