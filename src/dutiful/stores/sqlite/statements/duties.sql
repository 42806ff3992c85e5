-- name: survey
SELECT (SELECT min(run_at) FROM dutiful_scheduled)                     AS next_run_at,
       (SELECT min(next_at) FROM dutiful_schedule WHERE enabled = 1)   AS next_fire_at,
       (SELECT min(expires_at) FROM dutiful_lease)                     AS next_expiry,
       (SELECT min(next_at) FROM dutiful_webhook_post WHERE state = 'pending') AS next_post_at,
       EXISTS (SELECT 1 FROM dutiful_blocked)                          AS blocked,
       EXISTS (SELECT 1 FROM dutiful_bulk_run WHERE state = 'running')
           OR EXISTS (SELECT 1 FROM dutiful_dead_letter WHERE status = 'reprocessing') AS reviewing,
       EXISTS (SELECT 1 FROM dutiful_audit_unsealed)                   AS unsealed;

-- name: stopped_kinds
SELECT name, since FROM dutiful_pause WHERE scope IN ('kind', 'breaker');

-- name: due
SELECT run_at, job_id, queue, priority, kind, tenant, attempt, crashes
FROM dutiful_scheduled
WHERE run_at <= ?
ORDER BY run_at, job_id
LIMIT ?;

-- name: take_scheduled
DELETE FROM dutiful_scheduled WHERE run_at = ? AND job_id = ?;

-- name: next_run_at
SELECT min(run_at) FROM dutiful_scheduled;

-- name: lapsed
SELECT l.job_id, l.claim_id, l.attempt, l.crashes, j.kind, l.worker_id, l.cancel_requested_at IS NOT NULL,
       j.tenant, j.correlation_id
FROM dutiful_lease l
CROSS JOIN dutiful_job j ON j.id = l.job_id
WHERE l.expires_at <= ?
ORDER BY l.expires_at
LIMIT ?;

-- name: held_by
-- A scan: there are as many leases as slots in all workers, and it is asked only when one of them has died.
SELECT l.job_id, l.claim_id, l.attempt, l.crashes, j.kind, l.worker_id, l.cancel_requested_at IS NOT NULL,
       j.tenant, j.correlation_id
FROM dutiful_lease l
CROSS JOIN dutiful_job j ON j.id = l.job_id
WHERE l.worker_id = ?
ORDER BY l.job_id;

-- name: claim_of_job
SELECT l.job_id, l.claim_id, l.attempt, l.crashes, j.kind, l.worker_id, l.cancel_requested_at IS NOT NULL,
       j.tenant, j.correlation_id
FROM dutiful_lease l
CROSS JOIN dutiful_job j ON j.id = l.job_id
WHERE l.job_id = ?;

-- name: claiming_workers
SELECT id, host, pid, process_started
FROM dutiful_worker
WHERE id IN (SELECT worker_id FROM dutiful_lease)
ORDER BY id;

-- name: put_schedule
-- When it fires next is the store's business, and whether it fires at all its operators'; code decides the rest.
INSERT INTO dutiful_schedule (name, kind, expression, timezone, catch_up, job, next_at, last_at, last_job_id, enabled)
VALUES (:name, :kind, :expression, :timezone, :catch_up, :job, :next_at, :last_at, :last_job_id, :enabled)
ON CONFLICT (name) DO UPDATE
SET kind       = excluded.kind,
    catch_up   = excluded.catch_up,
    job        = excluded.job,
    next_at    = CASE WHEN expression = excluded.expression AND timezone = excluded.timezone
                      THEN next_at ELSE excluded.next_at END,
    expression = excluded.expression,
    timezone   = excluded.timezone;

-- name: move_schedule
UPDATE dutiful_schedule
SET next_at = :next_at, last_at = :at, last_job_id = coalesce(:last_job_id, last_job_id)
WHERE name = :name AND next_at = :expected AND enabled = 1;

-- name: put_worker
INSERT INTO dutiful_worker
       (id, name, host, pid, process_started, started_at, seen_at, expires_at, leading, lanes, kinds, locks)
VALUES (?,  ?,    ?,    ?,   ?,               ?,          ?,       ?,          ?,       ?,     ?,     ?)
ON CONFLICT (id) DO UPDATE
SET name = excluded.name, host = excluded.host, pid = excluded.pid, process_started = excluded.process_started,
    started_at = excluded.started_at, seen_at = excluded.seen_at, expires_at = excluded.expires_at,
    leading = excluded.leading, lanes = excluded.lanes, kinds = excluded.kinds, locks = excluded.locks;

-- name: old_workers
SELECT id, host, pid, process_started, expires_at FROM dutiful_worker WHERE seen_at < ?;

-- name: delete_worker
DELETE FROM dutiful_worker WHERE id = ?;
