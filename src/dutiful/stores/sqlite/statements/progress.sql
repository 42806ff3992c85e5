-- name: begin_phase
-- A mark that is repeated, because its reply was lost, changes nothing; nor does a repeated end.
INSERT INTO dutiful_phase (job_id, name, position, state, attempt, started_at, ended_at, result, error)
VALUES (:job_id, :name, :position, 'running', 1, :now, NULL, NULL, NULL)
ON CONFLICT (job_id, name) DO UPDATE
SET position = excluded.position, state = 'running', attempt = attempt + 1, started_at = excluded.started_at,
    ended_at = NULL, result = NULL, error = NULL, progress = NULL
WHERE state <> 'running';

-- name: end_phase
-- A phase that never began, such as a skipped one, has no attempt.
INSERT INTO dutiful_phase (job_id, name, position, state, attempt, started_at, ended_at, result, error, progress)
VALUES (:job_id, :name, :position, :state, 0, NULL, :now, :result, :error, :progress)
ON CONFLICT (job_id, name) DO UPDATE
SET position = excluded.position, state = excluded.state, ended_at = excluded.ended_at, result = excluded.result,
    error = excluded.error, progress = excluded.progress
WHERE state <> excluded.state;

-- name: complete_phase
UPDATE dutiful_phase SET state = 'completed', ended_at = :now, result = :result
WHERE job_id = :job_id AND state = 'running';

-- name: complete_progress
UPDATE dutiful_progress SET percent = 100, overall = 100, updated_at = ?2 WHERE job_id = ?1;

-- name: put_progress
REPLACE INTO dutiful_progress (job_id, phase, percent, overall, message, items, updated_at)
VALUES                        (?,      ?,     ?,       ?,       ?,       ?,     ?);

-- name: progress_of_phase
SELECT percent, overall, message, items, updated_at FROM dutiful_progress WHERE job_id = ? AND phase = ?;

-- name: phases
SELECT {phase_columns} FROM dutiful_phase WHERE job_id = ? ORDER BY position, name;

-- name: small_phases
SELECT {phase_columns} FROM (
    SELECT job_id, name, position, state, attempt, started_at, ended_at, error, progress,
           CASE WHEN length(CAST(result AS BLOB)) <= :largest THEN result END AS result
    FROM dutiful_phase
)
WHERE job_id = :job_id ORDER BY position, name;

-- name: stop_phase
-- An interruption is not the phase's fault, so it spends no attempt.
UPDATE dutiful_phase
SET state    = :state,
    ended_at = :now,
    error    = :error,
    attempt  = CASE WHEN :state = 'interrupted' THEN max(attempt - 1, 0) ELSE attempt END
WHERE job_id = :job_id AND state = 'running';

-- name: phases_of_job
SELECT json_extract(options, '$.phases') FROM dutiful_job WHERE id = ? AND options IS NOT NULL;

-- name: cancel_phase
INSERT INTO dutiful_phase (job_id, name, position, state, attempt, ended_at)
VALUES (?, ?, ?, 'cancelled', 0, ?)
ON CONFLICT (job_id, name) DO UPDATE
SET state = 'cancelled', ended_at = excluded.ended_at
-- A failed phase was to be retried, unless the pipeline had continued without it.
WHERE state NOT IN ('completed', 'skipped', 'cancelled')
  AND (state <> 'failed' OR json_extract(error, '$.given_up') IS NULL);
