-- name: alerts
select {alert} from {schema}.alert order by rule, series;

-- name: delete_alerts
delete from {schema}.alert a
using unnest($1::text[], $2::text[], $3::timestamptz[]) g (rule, series, since)
where a.rule = g.rule and a.series = g.series and a.since = g.since and a.state = 'ok';

-- name: record_alert_check
insert into {schema}.alert_check (at, until)
select v.now, v.now + $1::interval from (select coalesce($2, clock_timestamp()) as now) v
on conflict (only_one) do update set at = excluded.at, until = excluded.until;

-- name: last_alert_check
select at from {schema}.alert_check where until > coalesce($1, clock_timestamp());
