-- name: alerts
SELECT {alert_columns} FROM dutiful_alert ORDER BY rule, series;

-- name: insert_alert
INSERT INTO dutiful_alert ({alert_columns}) VALUES ({alert_values}) ON CONFLICT DO NOTHING;

-- name: update_alert
-- After the columns: state, since, value and calm_since as the caller has read them.
UPDATE dutiful_alert SET ({alert_columns}) = ({alert_values})
WHERE rule = ?1 AND series = ?2 AND state = ?10 AND since = ?11 AND value IS ?12 AND calm_since IS ?13;

-- name: delete_alert
DELETE FROM dutiful_alert WHERE rule = ? AND series = ? AND since = ? AND state = 'ok';

-- name: record_alert_check
REPLACE INTO dutiful_alert_check (only_one, at, until) VALUES (1, ?, ?);

-- name: last_alert_check
SELECT at FROM dutiful_alert_check WHERE until > ?;
