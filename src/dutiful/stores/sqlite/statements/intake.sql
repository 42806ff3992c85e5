-- name: insert_job
INSERT INTO dutiful_job
       (id, kind, queue, payload, priority, max_attempts, run_at, tenant, correlation_id, parent_id, retry_of,
        subject, created_by, options, created_at)
VALUES (?,  ?,    ?,     ?,       ?,        ?,            ?,      ?,      ?,              ?,         ?,
        ?,       ?,          ?,       ?)
ON CONFLICT (id) DO NOTHING;

-- name: insert_ready
INSERT INTO dutiful_ready (queue, priority, seq, job_id, attempt, crashes, kind, tenant)
VALUES                    (?,     ?,        ?,   ?,      ?,       ?,       ?,    ?);

-- name: insert_scheduled
INSERT INTO dutiful_scheduled (run_at, job_id, queue, priority, kind, tenant, attempt, crashes)
VALUES                        (?,      ?,      ?,     ?,        ?,    ?,      ?,       ?);

-- name: insert_blocked
INSERT INTO dutiful_blocked (job_id, gate, key, queue, priority, kind, tenant, attempt, crashes, run_at, since, seq)
VALUES                      (?,      ?,    ?,   ?,     ?,        ?,    ?,      ?,       ?,       ?,      ?,     ?);

-- name: insert_dependency
INSERT INTO dutiful_dependency (job_id, needs_id) VALUES (?, ?)
ON CONFLICT DO NOTHING;

-- name: next_seq
-- The last of the numbers taken; they are never given twice.
UPDATE dutiful_counter SET value = value + ? WHERE name = 'seq' RETURNING value;

-- name: next_claim
UPDATE dutiful_counter SET value = value + ? WHERE name = 'claim' RETURNING value;

-- name: paused_kinds
SELECT name FROM dutiful_pause WHERE scope IN ('kind', 'breaker', 'probing');

-- name: job_exists
SELECT 1 FROM dutiful_job WHERE id = ?;

-- name: final_state
-- One row if the job exists; its state is NULL while it lives.
SELECT f.state, j.tenant
FROM dutiful_job j
LEFT JOIN dutiful_finished f ON f.job_id = j.id
WHERE j.id = ?;

-- name: place_of
-- Where a job stands: at most one row. Every act by id begins here.
SELECT 'finished' AS place, state, attempt, crashes, NULL AS cancel_requested_at
  FROM dutiful_finished WHERE job_id = :id
UNION ALL
SELECT 'lease', 'running', attempt, crashes, cancel_requested_at FROM dutiful_lease WHERE job_id = :id
UNION ALL
SELECT 'ready', 'ready', attempt, crashes, NULL FROM dutiful_ready WHERE job_id = :id
UNION ALL
SELECT 'scheduled', 'scheduled', attempt, crashes, NULL FROM dutiful_scheduled WHERE job_id = :id
UNION ALL
SELECT 'blocked', 'blocked', attempt, crashes, NULL FROM dutiful_blocked WHERE job_id = :id;

-- name: unique_holder
-- A key whose holder has moved on is free, even if it was left behind.
SELECT scope, job_id, expires_at
FROM dutiful_unique_key AS k
WHERE tenant = ? AND kind = ? AND key = ?
  AND NOT (scope IN ('queued', 'active') AND EXISTS (SELECT 1 FROM dutiful_finished WHERE job_id = k.job_id))
  AND NOT (scope = 'queued' AND EXISTS (SELECT 1 FROM dutiful_lease WHERE job_id = k.job_id));

-- name: put_unique
INSERT INTO dutiful_unique_key (tenant, kind, key, scope, job_id, expires_at)
VALUES                         (?,      ?,    ?,   ?,     ?,      ?)
ON CONFLICT (tenant, kind, key) DO UPDATE
SET scope = excluded.scope, job_id = excluded.job_id, expires_at = excluded.expires_at;
