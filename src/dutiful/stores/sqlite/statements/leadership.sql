-- name: note_survey
INSERT INTO dutiful_survey (id, next_by, rescue_from) VALUES (1, :now + :gap, :now + :hold)
ON CONFLICT (id) DO UPDATE
SET next_by = excluded.next_by,
    rescue_from = CASE WHEN next_by < :now THEN excluded.rescue_from ELSE rescue_from END;

-- name: tell_resigned
-- A row has to change, or there is no commit.
UPDATE dutiful_worker SET seen_at = ? WHERE id = ?;

-- name: any_lease
SELECT EXISTS (SELECT 1 FROM dutiful_lease);

-- name: last_survey
SELECT next_by, rescue_from FROM dutiful_survey;

-- name: survey
SELECT (SELECT min(run_at) FROM dutiful_scheduled)                     AS next_run_at,
       (SELECT min(next_at) FROM dutiful_schedule WHERE enabled = 1)   AS next_fire_at,
       (SELECT min(expires_at) FROM dutiful_lease)                     AS next_expiry,
       (SELECT min(next_at) FROM dutiful_webhook_post WHERE state = 'pending') AS next_post_at,
       EXISTS (SELECT 1 FROM dutiful_blocked)                          AS blocked,
       EXISTS (SELECT 1 FROM dutiful_bulk_run WHERE state = 'running')
           OR EXISTS (SELECT 1 FROM dutiful_dead_letter WHERE status = 'reprocessing') AS reviewing,
       EXISTS (SELECT 1 FROM dutiful_audit_unsealed)                   AS unsealed,
       EXISTS (SELECT 1 FROM dutiful_limit_rule)                       AS limited,
       EXISTS (SELECT 1 FROM dutiful_sent_event WHERE delivered = 0)
           OR EXISTS (SELECT 1 FROM dutiful_blocked WHERE gate = 'event' AND run_at <= :now) AS waits;
