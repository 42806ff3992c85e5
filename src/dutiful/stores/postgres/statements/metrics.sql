-- name: counted
-- In one statement, so that what is rolled up meanwhile counts once. The other rows were counted just now, also if a
-- clock was ahead.
with {counted_since}
select true as lately, false as ever, {stats} from {schema}.counter_minute
where $1 and minute between (select since from asked) and (select now from asked)
union all
select true, false, {stats} from {schema}.counter_hour
where not $1 and hour between (select since from asked) and (select now from asked)
union all
select false, true, {stats} from {schema}.counter_total where $4::boolean
union all
select at >= (select since from asked), true, {stats} from {schema}.counter;

-- name: last
-- In one statement, as `counted`.
with asked as materialized (select coalesce($1::timestamptz, clock_timestamp()) as now)
select s.kind, s.minute, sum(s.count)::bigint, sum(s.failed)::bigint
from (
    select l.kind, l.minute, l.count, l.failed from {schema}.counter_last l
    union all
    select t.kind, date_trunc('minute', least(t.at, (select now from asked)), 'UTC') as minute, {last_summed}
    from {schema}.counter t where t.outcome in ({ends}) group by 1, 2
) s
group by s.kind, s.minute
order by s.kind, s.minute desc;

-- name: counted_by_hour
-- What `counted` finds lately, added up here: there may be many more rows than fit into a client's memory.
with {counted_since}
select {counters_summed} from (
    select {stats} from {schema}.counter_hour
    where hour between (select since from asked) and (select now from asked)
    union all
    select {stats} from {schema}.counter where at >= (select since from asked)
) t
group by t.kind, t.outcome;

-- name: count_ended
with {counted_since}
select e.outcome, sum(e.count)::bigint
from (
    select outcome, count from {schema}.counter_minute
    where $1 and minute between (select since from asked) and (select now from asked)
    union all
    select outcome, count from {schema}.counter_hour
    where not $1 and hour between (select since from asked) and (select now from asked)
    union all
    select outcome, count from {schema}.counter where at >= (select since from asked)
) e
group by e.outcome;

-- name: queue_level_heads
select queue, min(due_at) from {schema}.queue_level_heads($1, $2, $3) group by queue;
