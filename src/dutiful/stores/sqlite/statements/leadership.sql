-- name: survey
SELECT (SELECT min(run_at) FROM dutiful_scheduled)                     AS next_run_at,
       (SELECT min(next_at) FROM dutiful_schedule WHERE enabled = 1)   AS next_fire_at,
       (SELECT min(expires_at) FROM dutiful_lease)                     AS next_expiry,
       (SELECT min(next_at) FROM dutiful_webhook_post WHERE state = 'pending') AS next_post_at,
       EXISTS (SELECT 1 FROM dutiful_blocked)                          AS blocked,
       EXISTS (SELECT 1 FROM dutiful_bulk_run WHERE state = 'running')
           OR EXISTS (SELECT 1 FROM dutiful_dead_letter WHERE status = 'reprocessing') AS reviewing,
       EXISTS (SELECT 1 FROM dutiful_audit_unsealed)                   AS unsealed;
