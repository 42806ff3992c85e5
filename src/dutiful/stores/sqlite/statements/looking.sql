-- name: select_jobs
-- One row a job with where it stands; the text in braces is where to look for it first.
SELECT j.id, j.kind, j.queue, j.payload, j.priority, j.max_attempts, j.created_at, j.run_at, j.tenant,
       j.correlation_id, j.parent_id, j.retry_of, j.subject, j.created_by, j.options,
       CASE WHEN f.job_id IS NOT NULL THEN f.state
            WHEN l.job_id IS NOT NULL THEN 'running'
            WHEN r.job_id IS NOT NULL THEN 'ready'
            WHEN s.job_id IS NOT NULL THEN 'scheduled'
            WHEN b.job_id IS NOT NULL THEN 'blocked'
       END                                                             AS state,
       coalesce(f.attempt, l.attempt, r.attempt, s.attempt, b.attempt) AS attempt,
       coalesce(f.crashes, l.crashes, r.crashes, s.crashes, b.crashes) AS crashes,
       coalesce(s.run_at, b.run_at)                                    AS due_at,
       coalesce(f.claimed_at, l.claimed_at)                            AS started_at,
       f.finished_at, l.expires_at, l.cancel_requested_at,
       coalesce(f.worker_id, l.worker_id)                              AS worker_id,
       f.result, f.errors, b.gate, b.key,
       g.phase, g.percent, g.overall, g.message, g.items, g.updated_at,
       t.stale_at,
       CASE WHEN f.job_id IS NULL THEN
           (SELECT a.error FROM dutiful_attempt a INDEXED BY dutiful_attempt_job
            WHERE a.job_id = j.id AND a.error IS NOT NULL ORDER BY a.id DESC LIMIT 1)
       END                                                             AS last_error,
       t.told_at,
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
SELECT job_id, claim_id, attempt, outcome, worker_id, claimed_at, ended_at, error
FROM dutiful_attempt
WHERE job_id = ?
ORDER BY id;

-- name: workers
SELECT id, name, host, pid, process_started, started_at, seen_at, expires_at, leading, lanes, kinds, locks
FROM dutiful_worker
ORDER BY started_at, id;

-- name: schedules
SELECT name, kind, expression, timezone, catch_up, job, next_at, last_at, last_job_id, enabled
FROM dutiful_schedule
ORDER BY name;

-- name: pauses
-- Those of people; breakers have theirs.
SELECT scope, name, since, by, reason
FROM dutiful_pause
WHERE scope IN ('queue', 'kind', 'lane')
ORDER BY scope, name;
