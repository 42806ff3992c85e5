-- name: select_jobs
-- One row per job, with its place; {source} is read first. Columns as in _RECORD of queries.py, and more.
SELECT {record_columns},
       CASE WHEN f.job_id IS NOT NULL THEN f.state
            WHEN l.job_id IS NOT NULL THEN 'running'
            WHEN r.job_id IS NOT NULL THEN 'ready'
            WHEN s.job_id IS NOT NULL THEN 'scheduled'
            WHEN b.job_id IS NOT NULL THEN 'blocked'
       END                                                             AS state,
       coalesce(f.attempt, l.attempt, r.attempt, s.attempt, b.attempt) AS attempt,
       coalesce(f.crashes, l.crashes, r.crashes, s.crashes, b.crashes) AS crashes,
       coalesce(s.run_at, b.run_at, j.run_at)                          AS run_at,
       coalesce(f.claimed_at, l.claimed_at)                            AS started_at,
       f.finished_at, l.expires_at, l.cancel_requested_at,
       coalesce(f.worker_id, l.worker_id)                              AS worker_id,
       f.result, f.errors, b.gate,
       CASE WHEN b.gate <> 'dependency' THEN b.key END                 AS gate_key, t.stale_at,
       CASE WHEN f.job_id IS NULL THEN
           (SELECT a.error FROM dutiful_attempt a INDEXED BY dutiful_attempt_job
            WHERE a.job_id = j.id AND a.error IS NOT NULL ORDER BY a.id DESC LIMIT 1)
       END                                                             AS last_error,
       (SELECT d.backend_job_id FROM dutiful_delivery d WHERE d.job_id = j.id) AS backend_job_id,
       g.phase, g.percent, g.overall, g.message, g.items, g.updated_at,
       j.correlation_id, t.sent_at,
       coalesce(f.claim_id, l.claim_id)                                AS claim_id
FROM {source}
LEFT JOIN dutiful_finished f ON f.job_id = j.id
LEFT JOIN dutiful_lease l ON l.job_id = j.id
LEFT JOIN dutiful_ready r ON r.job_id = j.id
LEFT JOIN dutiful_scheduled s ON s.job_id = j.id
LEFT JOIN dutiful_blocked b ON b.job_id = j.id
LEFT JOIN dutiful_progress g ON g.job_id = j.id
LEFT JOIN dutiful_stale t ON t.job_id = j.id;

-- name: needs_of
SELECT needs_id FROM dutiful_dependency WHERE job_id = ? ORDER BY needs_id;

-- name: attempts
SELECT {attempt_columns} FROM dutiful_attempt WHERE job_id = ? ORDER BY id;

-- name: count_finished
SELECT state, count(*)
FROM (SELECT state FROM dutiful_finished INDEXED BY dutiful_finished_time WHERE finished_at >= :since LIMIT :limit)
GROUP BY state;

-- name: ended_by_tenant
SELECT j.tenant, f.state, count(*)
FROM (SELECT job_id, state FROM dutiful_finished INDEXED BY dutiful_finished_time
      WHERE finished_at >= :since LIMIT :limit) f
CROSS JOIN dutiful_job j ON j.id = f.job_id
GROUP BY j.tenant, f.state
ORDER BY j.tenant IS NULL, j.tenant, f.state;

-- name: count_finished_of_tenant
-- Among the tenant's newest jobs; also returns how many those are.
SELECT f.state, count(*)
FROM (SELECT id FROM dutiful_job INDEXED BY dutiful_job_tenant WHERE tenant = :tenant ORDER BY id DESC LIMIT :limit) j
LEFT JOIN dutiful_finished f ON f.job_id = j.id AND f.finished_at >= :since
GROUP BY f.state;
