-- name: alerts
SELECT rule, series, state, value, since, calm_since, fired_at, cleared_at, summary
FROM dutiful_alert
ORDER BY rule, series;

-- name: insert_alert
INSERT INTO dutiful_alert (rule,  series,  state,  value,  since,  calm_since,  fired_at,  cleared_at,  summary)
VALUES                    (:rule, :series, :state, :value, :since, :calm_since, :fired_at, :cleared_at, :summary)
ON CONFLICT DO NOTHING;

-- name: update_alert
-- :was_…: as it was seen.
UPDATE dutiful_alert
SET state = :state, value = :value, since = :since, calm_since = :calm_since, fired_at = :fired_at,
    cleared_at = :cleared_at, summary = :summary
WHERE rule = :rule AND series = :series AND state = :was_state AND since = :was_since
  AND value IS :was_value AND calm_since IS :was_calm_since;

-- name: delete_alert
DELETE FROM dutiful_alert WHERE rule = ? AND series = ? AND since = ? AND state = 'ok';

-- name: note_look
INSERT INTO dutiful_alert_look (only_one, at, until) VALUES (1, ?, ?)
ON CONFLICT (only_one) DO UPDATE SET at = excluded.at, until = excluded.until;

-- name: last_look
SELECT at FROM dutiful_alert_look WHERE until > ?;
