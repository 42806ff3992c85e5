-- name: first_line
SELECT queue, priority FROM dutiful_ready ORDER BY queue, priority LIMIT 1;

-- name: next_line_of_queue
SELECT queue, priority FROM dutiful_ready WHERE queue = ? AND priority > ? ORDER BY priority LIMIT 1;

-- name: next_line_beyond_queue
SELECT queue, priority FROM dutiful_ready WHERE queue > ? ORDER BY queue, priority LIMIT 1;

-- name: first_of_line
SELECT seq
FROM dutiful_ready
WHERE queue = ? AND priority = ? AND kind IN (SELECT value FROM json_each(?))
ORDER BY seq
LIMIT 1;

-- name: pauses_for_claim
SELECT scope, name FROM dutiful_pause;

-- name: pick_line
-- CROSS JOIN keeps the order of the loops: along the line first, then the job of each row.
SELECT r.queue, r.priority, r.seq, r.job_id, r.attempt, r.crashes,
       j.kind, j.payload, j.max_attempts, j.tenant, j.correlation_id, j.parent_id, j.subject, j.options,
       max(j.created_at, coalesce(j.run_at, 0)) AS due_at
FROM dutiful_ready r
CROSS JOIN dutiful_job j ON j.id = r.job_id
WHERE r.queue = ? AND r.priority = ? AND r.seq > ? AND r.crashes = 0
  AND r.kind IN (SELECT value FROM json_each(?))
ORDER BY r.seq
LIMIT ?;

-- name: pick_line_of_tenant
-- By an index of its own, so that the jobs of others before it, however many, are not walked over.
SELECT r.queue, r.priority, r.seq, r.job_id, r.attempt, r.crashes,
       j.kind, j.payload, j.max_attempts, j.tenant, j.correlation_id, j.parent_id, j.subject, j.options,
       max(j.created_at, coalesce(j.run_at, 0)) AS due_at
FROM dutiful_ready r INDEXED BY dutiful_ready_tenant
CROSS JOIN dutiful_job j ON j.id = r.job_id
WHERE r.tenant = ? AND r.queue = ? AND r.priority = ? AND r.seq > ? AND r.crashes = 0
  AND r.kind IN (SELECT value FROM json_each(?))
ORDER BY r.seq
LIMIT ?;

-- name: any_suspect
SELECT 1 FROM dutiful_ready INDEXED BY dutiful_ready_suspect WHERE crashes > 0 LIMIT 1;

-- name: pick_suspects
-- :tenants: null for those of anybody.
SELECT r.queue, r.priority, r.seq, r.job_id, r.attempt, r.crashes,
       j.kind, j.payload, j.max_attempts, j.tenant, j.correlation_id, j.parent_id, j.subject, j.options,
       max(j.created_at, coalesce(j.run_at, 0)) AS due_at
FROM dutiful_ready r INDEXED BY dutiful_ready_suspect
CROSS JOIN dutiful_job j ON j.id = r.job_id
WHERE r.queue = :queue AND r.priority = :priority AND r.crashes > 0
  AND r.kind IN (SELECT value FROM json_each(:kinds))
  AND (:tenants IS NULL OR r.tenant IN (SELECT value FROM json_each(:tenants)))
ORDER BY r.seq
LIMIT :limit;

-- name: take_ready
DELETE FROM dutiful_ready WHERE queue = ? AND priority = ? AND seq = ?;

-- name: insert_lease
INSERT INTO dutiful_lease (job_id, claim_id, worker_id, attempt, crashes, seq, claimed_at, expires_at)
VALUES                    (?,      ?,        ?,         ?,       ?,       ?,   ?,          ?);

-- name: any_queued_key
SELECT 1 FROM dutiful_unique_key WHERE scope = 'queued' LIMIT 1;

-- name: any_active_key
SELECT 1 FROM dutiful_unique_key WHERE scope = 'active' LIMIT 1;

-- name: free_queued_key
DELETE FROM dutiful_unique_key WHERE scope = 'queued' AND job_id = ?;

-- name: free_active_key
DELETE FROM dutiful_unique_key WHERE scope = 'active' AND job_id = ?;

-- name: finish_completed
-- The lease is deleted afterwards, so that what was not held can be told from what was.
INSERT INTO dutiful_finished
       (job_id, claim_id, state, attempt, crashes, worker_id, claimed_at, finished_at, result)
SELECT job_id, claim_id, 'completed', attempt, crashes, worker_id, claimed_at, ?3, ?4
FROM dutiful_lease
WHERE job_id = ?1 AND claim_id = ?2
ON CONFLICT (job_id) DO NOTHING;

-- name: end_lease
DELETE FROM dutiful_lease WHERE job_id = ? AND claim_id = ?;

-- name: held
SELECT attempt, crashes, worker_id, claimed_at, seq, expires_at, cancel_requested_at, cancel_reason
FROM dutiful_lease
WHERE job_id = ? AND claim_id = ?;

-- name: insert_finished
INSERT INTO dutiful_finished
       (job_id, claim_id, state, attempt, crashes, worker_id, claimed_at, finished_at, result, errors)
VALUES (?,      ?,        ?,     ?,       ?,       ?,         ?,          ?,           ?,      ?);

-- name: insert_attempt
INSERT INTO dutiful_attempt (job_id, claim_id, attempt, outcome, worker_id, claimed_at, ended_at, next_at, error)
VALUES                      (?,      ?,        ?,       ?,       ?,         ?,          ?,        ?,       ?);

-- name: forget_barred
DELETE FROM dutiful_attempt
WHERE id = (SELECT max(id) FROM dutiful_attempt WHERE job_id = ?1)
  AND outcome = 'snoozed' AND json_extract(error, '$.breaker') = ?2;

-- name: where_to
SELECT queue, priority, kind, tenant FROM dutiful_job WHERE id = ?;

-- name: job_row
SELECT id, kind, queue, payload, priority, max_attempts, run_at, tenant, correlation_id, parent_id, retry_of, subject,
       created_by, options, created_at
FROM dutiful_job
WHERE id = ?;

-- name: insert_dead_letter
INSERT INTO dutiful_dead_letter
       (job_id, died_at, kind, queue, tenant, correlation_id, unique_key, created_at, attempt, max_attempts,
        error_class, error_type, fingerprint, message)
VALUES (?,      ?,       ?,    ?,     ?,      ?,              ?,          ?,          ?,       ?,
        ?,           ?,          ?,           ?)
ON CONFLICT (job_id) DO NOTHING;

-- name: insert_dead_letter_body
INSERT INTO dutiful_dead_letter_body (job_id, job, errors, history) VALUES (?, ?, ?, ?)
ON CONFLICT (job_id) DO NOTHING;

-- name: ended_by
SELECT state FROM dutiful_finished WHERE job_id = ? AND claim_id = ?;

-- name: outcomes_of_claim
SELECT outcome, attempt FROM dutiful_attempt WHERE job_id = ? AND claim_id = ?;

-- name: renew
UPDATE dutiful_lease SET expires_at = ?3 WHERE job_id = ?1 AND claim_id = ?2 RETURNING cancel_requested_at;

-- name: is_held
SELECT cancel_requested_at FROM dutiful_lease WHERE job_id = ? AND claim_id = ?;
