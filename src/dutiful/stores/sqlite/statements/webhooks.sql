-- name: job_webhooks
SELECT name, url, kinds, states FROM dutiful_webhook WHERE enabled = 1 AND states <> '[]';

-- name: alert_webhooks
SELECT name, url FROM dutiful_webhook WHERE enabled = 1 AND alerts = 1 ORDER BY name;

-- name: finished_job
SELECT j.id, j.kind, j.queue, f.state, f.attempt, f.result, f.errors, j.tenant, j.correlation_id, j.parent_id,
       j.subject, j.created_at, f.claimed_at, f.finished_at, j.options
FROM dutiful_finished f
CROSS JOIN dutiful_job j ON j.id = f.job_id
WHERE f.job_id = ?;

-- name: insert_post
-- ?9: why it cannot be posted; such a post is failed at once.
INSERT INTO dutiful_webhook_post
       (id, job_id, webhook, url, event, data, attempts, created_at, updated_at, tenant, error,
        state, next_at, ended_at)
VALUES (?1, ?2,     ?3,      ?4,  ?5,    ?6,   0,        ?7,         ?7,         ?8,     ?9,
        iif(?9 IS NULL, 'pending', 'failed'), iif(?9 IS NULL, ?7, NULL), iif(?9 IS NULL, NULL, ?7));

-- name: webhooks
SELECT {webhook_columns} FROM dutiful_webhook ORDER BY name;

-- name: put_webhook
-- A disabled webhook stays disabled, unless its URL has changed.
INSERT INTO dutiful_webhook ({webhook_columns}) VALUES ({webhook_values})
ON CONFLICT (name) DO UPDATE
SET enabled     = CASE WHEN url = excluded.url THEN enabled ELSE excluded.enabled END,
    disabled_at = CASE WHEN url = excluded.url THEN disabled_at ELSE excluded.disabled_at END,
    reason      = CASE WHEN url = excluded.url THEN reason ELSE excluded.reason END,
    url         = excluded.url,
    kinds       = excluded.kinds,
    states      = excluded.states,
    alerts      = excluded.alerts;

-- name: delete_webhook
DELETE FROM dutiful_webhook WHERE name = ?;

-- name: disable_webhook
UPDATE dutiful_webhook SET enabled = 0, disabled_at = ?3, reason = ?2
WHERE name = ?1 AND enabled = 1 AND (?4 IS NULL OR url = ?4);

-- name: give_up_posts
UPDATE dutiful_webhook_post SET state = 'failed', error = ?2, ended_at = ?3, updated_at = ?3, next_at = NULL
WHERE state = 'pending' AND webhook = ?1;

-- name: enable_webhook
UPDATE dutiful_webhook SET enabled = 1, disabled_at = NULL, reason = NULL WHERE name = ? AND enabled = 0;

-- name: due_posts
-- :names: endpoints, besides jobs' own URLs; null: all. :again: whether posts that were tried before, or new ones.
SELECT p.next_at, p.id FROM dutiful_webhook_post p
WHERE p.state = 'pending' AND p.next_at <= :now AND (p.attempts > 0) = :again
  AND (:names IS NULL OR p.webhook IS NULL OR p.webhook IN (SELECT n.value FROM json_each(:names) n))
  AND NOT EXISTS (SELECT 1 FROM json_each(:avoid) a WHERE substr(p.url || '/', 1, length(a.value)) = a.value)
ORDER BY p.next_at, p.id LIMIT :limit;

-- name: take_post
UPDATE dutiful_webhook_post SET attempts = attempts + 1, next_at = ?2
WHERE id = ?1;

-- name: taken_post
-- By itself, because what RETURNING returns cannot be read again if a driver refuses it.
SELECT {post_columns} FROM dutiful_webhook_post WHERE id = ?;

-- name: settle_post
UPDATE dutiful_webhook_post SET state = ?3, next_at = ?4, ended_at = ?5, updated_at = ?6, status = ?7, error = ?8
WHERE id = ?1 AND attempts = ?2 AND state = 'pending';

-- name: post_state
SELECT state FROM dutiful_webhook_post WHERE id = ? AND attempts = ?;

-- name: redeliver_post
UPDATE dutiful_webhook_post
SET state = 'pending', attempts = 0, next_at = ?2, ended_at = NULL, updated_at = ?2,
    url = coalesce((SELECT w.url FROM dutiful_webhook w WHERE w.name = webhook), url)
WHERE id = ?1 AND state <> 'pending';

-- name: select_posts
SELECT {post_columns} FROM dutiful_webhook_post;

-- name: delete_ended_posts
DELETE FROM dutiful_webhook_post
WHERE id IN (SELECT id FROM dutiful_webhook_post WHERE ended_at IS NOT NULL AND ended_at < ? LIMIT ?);
