-- name: request_cancel
UPDATE dutiful_lease SET cancel_requested_at = ?2, cancel_reason = ?3
WHERE job_id = ?1 AND cancel_requested_at IS NULL;

-- name: scheduled_job
SELECT {carried_columns} FROM dutiful_scheduled WHERE job_id = ?;

-- name: rejected_job
SELECT {carried_columns} FROM dutiful_blocked WHERE job_id = ? AND gate = 'breaker';

-- name: due_of_waiting
SELECT run_at FROM dutiful_scheduled WHERE job_id = ?1
UNION ALL
SELECT run_at FROM dutiful_blocked WHERE job_id = ?1;

-- name: count_dependent_attempt
UPDATE dutiful_blocked SET attempt = ?2 WHERE job_id = ?1 AND gate = 'dependency';

-- name: take_each_job
-- each: scheduled blocked
DELETE FROM dutiful_{each} WHERE job_id = ?;

-- name: pause
INSERT INTO dutiful_pause (scope, name, by, reason, since) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (scope, name) DO NOTHING;

-- name: resume
DELETE FROM dutiful_pause WHERE scope = ? AND name = ?;

-- name: pauses
-- Pauses by people; breakers have their own.
SELECT scope, name, since, by, reason FROM dutiful_pause
WHERE scope IN ('queue', 'kind', 'lane')
ORDER BY scope, name;
