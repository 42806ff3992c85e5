-- name: put_webhooks
-- A disabled webhook stays disabled, unless its URL has changed.
insert into {schema}.webhook as w (name, url, kinds, states, alerts, enabled)
select g.name, g.url, g.kinds, g.states, g.alerts, g.enabled
from jsonb_populate_recordset(null::{schema}.webhook, $1) g
order by g.name
on conflict (name) do update
set url = excluded.url, kinds = excluded.kinds, states = excluded.states, alerts = excluded.alerts,
    enabled = case when w.url = excluded.url then w.enabled else excluded.enabled end,
    disabled_at = case when w.url = excluded.url then w.disabled_at end,
    reason = case when w.url = excluded.url then w.reason end
where row(w.url, w.kinds, w.states, w.alerts)
      is distinct from row(excluded.url, excluded.kinds, excluded.states, excluded.alerts);

-- name: enable_webhook
update {schema}.webhook set enabled = true, disabled_at = null, reason = null
where name = $1 and not enabled
returning name;

-- name: redeliver_post
update {schema}.webhook_post p
set state = 'pending', attempts = 0, next_at = n.now, ended_at = null, updated_at = n.now,
    url = coalesce((select w.url from {schema}.webhook w where w.name = p.webhook), p.url)
from (select coalesce($2::timestamptz, clock_timestamp()) as now) n
where p.id = $1 and p.state <> 'pending'
returning p.id;

-- name: webhooks
select name, url, kinds, states, alerts, enabled, disabled_at, reason from {schema}.webhook order by name;

-- name: posts
-- {where}: the conditions that were asked for. Newest first, which is the order of the ids.
select {post} from {schema}.webhook_post where {where} order by id desc limit $1;
