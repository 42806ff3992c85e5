-- name: tree_ids
-- The newest first.
SELECT id FROM (
    SELECT id, tenant FROM dutiful_job INDEXED BY dutiful_job_correlation WHERE correlation_id = :correlation
    UNION ALL
    SELECT id, tenant FROM dutiful_job WHERE id = :root AND correlation_id IS NULL
)
WHERE (:before IS NULL OR id < :before) AND (:tenant IS NULL OR tenant = :tenant)
ORDER BY id DESC LIMIT :limit;

-- name: oldest_of_tree
-- With :failed, the oldest of those that failed.
SELECT id FROM (
    SELECT id, tenant FROM dutiful_job WHERE id = :root AND correlation_id IS NULL
    UNION ALL
    SELECT id, tenant FROM dutiful_job INDEXED BY dutiful_job_correlation WHERE correlation_id = :correlation
)
WHERE (:tenant IS NULL OR tenant = :tenant)
  AND (NOT :failed OR EXISTS (SELECT 1 FROM dutiful_finished f WHERE f.job_id = id AND f.state = 'failed'))
ORDER BY id LIMIT :limit;

-- name: tree_progress
-- A row for each state that a job of the tree is in.
SELECT CASE WHEN f.job_id IS NOT NULL THEN f.state
            WHEN l.job_id IS NOT NULL THEN 'running'
            WHEN r.job_id IS NOT NULL THEN 'ready'
            WHEN s.job_id IS NOT NULL THEN 'scheduled'
            ELSE 'blocked' END                                  AS state,
       count(*), min(j.created_at), min(coalesce(f.claimed_at, l.claimed_at)), max(f.finished_at)
FROM (
    SELECT id, tenant, created_at FROM dutiful_job INDEXED BY dutiful_job_correlation
    WHERE correlation_id = :correlation
    UNION ALL
    SELECT id, tenant, created_at FROM dutiful_job WHERE id = :root AND correlation_id IS NULL
) j
LEFT JOIN dutiful_finished f ON f.job_id = j.id
LEFT JOIN dutiful_lease l ON l.job_id = j.id
LEFT JOIN dutiful_ready r ON r.job_id = j.id
LEFT JOIN dutiful_scheduled s ON s.job_id = j.id
WHERE :tenant IS NULL OR j.tenant = :tenant
GROUP BY 1
ORDER BY 1;
