-- name: gated_breakers
-- Breakers that jobs may wait for.
{select_breakers} WHERE state <> 'closed' AND EXISTS (SELECT 1 FROM dutiful_breaker_kind k WHERE k.breaker = b.name)
ORDER BY name;

-- name: delete_gone_probes
-- Probes of jobs that were admitted and have ended, or wait again.
DELETE FROM dutiful_breaker_probe AS p WHERE breaker = ?
  AND NOT EXISTS (SELECT 1 FROM dutiful_ready r WHERE r.job_id = p.job_id)
  AND NOT EXISTS (SELECT 1 FROM dutiful_lease l WHERE l.job_id = p.job_id);

-- name: breaker_probes
-- For each probe, whether it runs, since when it is admitted, and its kind, queue and tenant while it is ready. A claim
-- that was given back probes no more, and its job has no turn.
SELECT p.job_id, p.since,
       coalesce(l.expires_at > :now AND (p.claim_id IS NULL OR p.claim_id = l.claim_id), 0) AS runs,
       r.kind, r.queue, r.tenant
FROM dutiful_breaker_probe p
LEFT JOIN dutiful_lease l ON l.job_id = p.job_id
LEFT JOIN dutiful_ready r ON r.job_id = p.job_id AND p.claim_id IS NULL
WHERE p.breaker = :breaker;

-- name: first_waiting_queue
-- The next queue after :beyond in which due jobs of the kind wait, and the position of its first job.
SELECT queue, priority, seq FROM dutiful_blocked INDEXED BY dutiful_blocked_level
WHERE gate = 'paused' AND seq IS NOT NULL AND key = :kind AND queue > CAST(:beyond AS TEXT)
ORDER BY queue, priority, seq LIMIT 1;

-- name: probe_candidates
SELECT priority, seq, job_id FROM dutiful_blocked INDEXED BY dutiful_blocked_level
WHERE gate = 'paused' AND seq IS NOT NULL AND key = :kind AND queue = :queue
ORDER BY priority, seq LIMIT :limit;

-- name: probe_candidates_of_tenant
SELECT priority, seq, job_id FROM dutiful_blocked INDEXED BY dutiful_blocked_level_tenant
WHERE tenant = :tenant AND gate = 'paused' AND seq IS NOT NULL AND key = :kind AND queue = :queue
ORDER BY priority, seq LIMIT :limit;

-- name: awaited_breakers
-- Breakers for which jobs wait that were rejected inside their handlers; steps from one to the next.
WITH RECURSIVE waits (name) AS (
    SELECT min(key) FROM dutiful_blocked WHERE gate = 'breaker'
    UNION ALL
    SELECT (SELECT min(b.key) FROM dutiful_blocked b WHERE b.gate = 'breaker' AND b.key > w.name)
    FROM waits w
    WHERE w.name IS NOT NULL
)
SELECT name FROM waits WHERE name IS NOT NULL;

-- name: rejected_jobs
SELECT job_id, kind, queue, tenant, priority FROM dutiful_blocked
WHERE gate = 'breaker' AND key = ?
ORDER BY seq LIMIT ?;
