-- name: insert_dependency
INSERT INTO dutiful_dependency (job_id, needs_id, policy) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: join_dependents
INSERT INTO dutiful_dependency (job_id, needs_id, policy)
SELECT d.job_id, ?1, d.policy
FROM dutiful_dependency d
CROSS JOIN dutiful_blocked b ON b.job_id = d.job_id AND b.gate = 'dependency'
WHERE d.needs_id = ?2 AND b.tenant IS ?3
ON CONFLICT DO NOTHING;

-- name: edges_of
-- The newest first; as many as asked for, -1: all.
SELECT needs_id, policy FROM dutiful_dependency WHERE job_id = ? ORDER BY needs_id DESC LIMIT ?;

-- name: watchers_of_ended
-- The jobs that wait for this one, if it has ended.
SELECT b.job_id
FROM dutiful_finished f
CROSS JOIN dutiful_blocked b ON b.gate = 'dependency' AND b.key = lower(hex(f.job_id))
WHERE f.job_id = ?
ORDER BY b.job_id LIMIT ?;

-- name: dependents_of_dead
-- The jobs that a policy ends, if this one has failed or was cancelled.
SELECT d.job_id
FROM dutiful_finished f
CROSS JOIN dutiful_dependency d ON d.needs_id = f.job_id
CROSS JOIN dutiful_blocked b ON b.job_id = d.job_id
WHERE f.job_id = ? AND f.state IN ('failed', 'cancelled') AND d.policy <> 'run' AND b.gate = 'dependency'
ORDER BY d.job_id LIMIT ?;

-- name: dependents_decided
-- Jobs whose watched one has ended, or of which one has failed that was to complete; reads all that wait.
SELECT b.job_id FROM dutiful_blocked b
WHERE b.gate = 'dependency'
  AND EXISTS (
      SELECT 1
      FROM dutiful_dependency d
      CROSS JOIN dutiful_finished f ON f.job_id = d.needs_id
      WHERE d.job_id = b.job_id
        AND (lower(hex(d.needs_id)) = b.key OR (d.policy <> 'run' AND f.state IN ('failed', 'cancelled')))
  )
ORDER BY b.since, b.job_id LIMIT ?;

-- name: unended_need_below
SELECT d.needs_id FROM dutiful_dependency d
WHERE d.job_id = ?1 AND d.needs_id <= ?2
  AND NOT EXISTS (SELECT 1 FROM dutiful_finished f WHERE f.job_id = d.needs_id)
ORDER BY d.needs_id DESC LIMIT 1;

-- name: unended_need
SELECT d.needs_id FROM dutiful_dependency d
WHERE d.job_id = ? AND NOT EXISTS (SELECT 1 FROM dutiful_finished f WHERE f.job_id = d.needs_id)
ORDER BY d.needs_id DESC LIMIT 1;

-- name: failed_need
-- To fail is more than to be cancelled.
SELECT d.needs_id, f.state, d.policy FROM dutiful_dependency d
CROSS JOIN dutiful_finished f ON f.job_id = d.needs_id
WHERE d.job_id = ? AND d.policy <> 'run' AND f.state IN ('failed', 'cancelled')
ORDER BY d.policy DESC, d.needs_id LIMIT 1;

-- name: watch_need
UPDATE dutiful_blocked SET key = ? WHERE job_id = ?;
