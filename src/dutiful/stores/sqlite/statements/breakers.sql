-- name: select_breakers
SELECT {breaker_columns}, failures_allowed, open_for, probes FROM dutiful_breaker b;

-- name: breaker
{select_breakers} WHERE name = ?;

-- name: breakers
{select_breakers} ORDER BY name;

-- name: any_breaker_due
SELECT 1 FROM dutiful_breaker b
WHERE state = 'open' AND open_until <= ? AND EXISTS (SELECT 1 FROM dutiful_breaker_kind k WHERE k.breaker = b.name)
LIMIT 1;

-- name: put_breaker
REPLACE INTO dutiful_breaker ({breaker_columns}, failures_allowed, open_for, probes, updated_at)
VALUES ({breaker_values}, ?, ?, ?, ?);

-- name: is_probe
SELECT 1 FROM dutiful_breaker_probe WHERE breaker = ? AND job_id = ? AND round = ? AND claim_id = ?;

-- name: count_probes
SELECT count(*) FROM dutiful_breaker_probe p
CROSS JOIN dutiful_lease l ON l.job_id = p.job_id AND l.claim_id = p.claim_id
WHERE p.breaker = ? AND p.round = ? AND l.expires_at > ?;

-- name: probes_under_way
SELECT p.breaker, count(*) FROM dutiful_breaker b
CROSS JOIN dutiful_breaker_probe p ON p.breaker = b.name AND p.round = b.round
CROSS JOIN dutiful_lease l ON l.job_id = p.job_id AND l.claim_id = p.claim_id
WHERE l.expires_at > ?
GROUP BY p.breaker;

-- name: put_probe
REPLACE INTO dutiful_breaker_probe (breaker, job_id, round, claim_id, since) VALUES (?, ?, ?, ?, ?);

-- name: end_probe
DELETE FROM dutiful_breaker_probe WHERE breaker = ? AND job_id = ? AND round = ? AND claim_id = ?;

-- name: end_probes
DELETE FROM dutiful_breaker_probe WHERE breaker = ?;

-- name: forfeit_probes
-- Another claim is about to replace them as a probe, so a late renewal of their leases must not make them probes again.
DELETE FROM dutiful_breaker_probe AS p WHERE breaker = ? AND claim_id IS NOT NULL
  AND NOT EXISTS (
      SELECT 1 FROM dutiful_lease l WHERE l.job_id = p.job_id AND l.claim_id = p.claim_id AND l.expires_at > ?
  );

-- name: breaker_kinds
SELECT kind, breaker FROM dutiful_breaker_kind ORDER BY breaker, kind;

-- name: kinds_of_breaker
SELECT kind FROM dutiful_breaker_kind WHERE breaker = ? ORDER BY kind;

-- name: put_breaker_kind
REPLACE INTO dutiful_breaker_kind (kind, breaker) VALUES (?, ?);

-- name: delete_breaker_kind
DELETE FROM dutiful_breaker_kind WHERE kind = ?;

-- name: delete_gates
DELETE FROM dutiful_pause WHERE scope IN ('breaker', 'probing') AND name = ?;

-- name: count_waiting
SELECT count(*)
FROM (
    SELECT 1
    FROM dutiful_breaker_kind k
    CROSS JOIN dutiful_blocked b ON b.gate = 'paused' AND b.key = k.kind
    WHERE k.breaker = :breaker
    UNION ALL
    SELECT 1 FROM dutiful_blocked WHERE gate = 'breaker' AND key = :breaker
    LIMIT :counted
);

-- name: unused_breakers
-- Breakers that no kind declares, that reject no calls, and that were not used for long.
SELECT name FROM dutiful_breaker b
WHERE updated_at < :cutoff AND (state = 'closed' OR open_until <= :now)
  AND NOT EXISTS (SELECT 1 FROM dutiful_breaker_kind k WHERE k.breaker = b.name)
  AND NOT EXISTS (SELECT 1 FROM dutiful_blocked w WHERE w.gate = 'breaker' AND w.key = b.name)
  AND NOT EXISTS (
      SELECT 1 FROM dutiful_breaker_probe p CROSS JOIN dutiful_lease l ON l.job_id = p.job_id WHERE p.breaker = b.name
  )
LIMIT :limit;

-- name: delete_breaker
DELETE FROM dutiful_breaker WHERE name = ?;
