-- name: alerts
select rule, series, state, value, since, calm_since, fired_at, cleared_at, summary
from {schema}.alert order by rule, series;

-- name: change_alerts
select rule, series from {schema}.change_alerts($1::text::jsonb, $2);

-- name: forget_alerts
delete from {schema}.alert a
using unnest($1::text[], $2::text[], $3::timestamptz[]) g (rule, series, since)
where a.rule = g.rule and a.series = g.series and a.since = g.since and a.state = 'ok';
