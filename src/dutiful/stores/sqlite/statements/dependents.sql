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

-- name: watchers
-- The jobs that wait for this one, whose id is given as text.
SELECT job_id FROM dutiful_blocked WHERE gate = 'dependency' AND key = ? ORDER BY job_id LIMIT ?;

-- name: count_edges
SELECT count(*) FROM dutiful_dependency WHERE job_id = ?;

-- name: waiting_dependents
-- The jobs that a policy ends, if this one fails or is cancelled.
SELECT d.job_id
FROM dutiful_dependency d
CROSS JOIN dutiful_blocked b ON b.job_id = d.job_id
WHERE d.needs_id = ? AND d.policy <> 'run' AND b.gate = 'dependency'
LIMIT ?;

-- name: ended_needs
-- Jobs that have ended and that others wait for still: one that failed and was to complete, or the watched one. Reads all that
-- wait.
SELECT w.needs_id
FROM (
    SELECT b.since, b.job_id,
           (SELECT d.needs_id
            FROM dutiful_dependency d
            CROSS JOIN dutiful_finished f ON f.job_id = d.needs_id
            WHERE d.job_id = b.job_id
              AND (lower(hex(d.needs_id)) = b.key OR (d.policy <> 'run' AND f.state IN ('failed', 'cancelled')))
            ORDER BY d.policy <> 'run' AND f.state IN ('failed', 'cancelled') DESC LIMIT 1) AS needs_id
    FROM dutiful_blocked b
    WHERE b.gate = 'dependency'
) w
WHERE w.needs_id IS NOT NULL
ORDER BY w.since, w.job_id LIMIT ?;

-- name: unended_need_below
SELECT d.needs_id FROM dutiful_dependency d
WHERE d.job_id = ?1 AND d.needs_id <= ?2
  AND NOT EXISTS (SELECT 1 FROM dutiful_finished f WHERE f.job_id = d.needs_id)
ORDER BY d.needs_id DESC LIMIT 1;

-- name: unended_need
SELECT d.needs_id FROM dutiful_dependency d
WHERE d.job_id = ? AND NOT EXISTS (SELECT 1 FROM dutiful_finished f WHERE f.job_id = d.needs_id)
ORDER BY d.needs_id DESC LIMIT 1;

-- name: dead_needs
-- Those that have failed or were cancelled, and those that may end with it; the one that decides is the first of them. To fail
-- is more than to be cancelled.
SELECT d.needs_id, f.state, d.policy FROM dutiful_dependency d
LEFT JOIN dutiful_finished f ON f.job_id = d.needs_id
WHERE d.job_id = ? AND d.policy <> 'run' AND (f.state IS NULL OR f.state IN ('failed', 'cancelled'))
ORDER BY d.policy DESC, d.needs_id;

-- name: watch_need
UPDATE dutiful_blocked SET key = ? WHERE job_id = ?;
