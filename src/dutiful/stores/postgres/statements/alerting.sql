-- name: alerts
select rule, series, state, value, since, calm_since, fired_at, cleared_at, summary
from {schema}.alert order by rule, series;

-- name: change_alerts
select rule, series from {schema}.change_alerts($1::text::jsonb, $2);

-- name: forget_alerts
delete from {schema}.alert a
using unnest($1::text[], $2::text[], $3::timestamptz[]) g (rule, series, since)
where a.rule = g.rule and a.series = g.series and a.since = g.since and a.state = 'ok';

-- name: note_look
insert into {schema}.alert_look (at, until)
select v.now, v.now + $1::interval from (select coalesce($2, clock_timestamp()) as now) v
on conflict (only_one) do update set at = excluded.at, until = excluded.until;

-- name: last_look
select at from {schema}.alert_look where until > coalesce($1, clock_timestamp());
