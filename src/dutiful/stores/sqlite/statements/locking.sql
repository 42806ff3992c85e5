-- name: lock_holder
-- Whoever has the lock, and until when his claim is good: NULL if it is over.
SELECT k.job_id, k.claim_id, l.expires_at
FROM dutiful_lock k
LEFT JOIN dutiful_lease l ON l.job_id = k.job_id AND l.claim_id = k.claim_id
WHERE k.namespace = ? AND k.key = ?;

-- name: lock_place
SELECT seq FROM dutiful_lock_wait WHERE namespace = ? AND key = ? AND job_id = ? AND claim_id = ?;

-- name: lock_line
SELECT w.seq, w.job_id, w.claim_id, l.expires_at
FROM dutiful_lock_wait w
LEFT JOIN dutiful_lease l ON l.job_id = w.job_id AND l.claim_id = w.claim_id
WHERE w.namespace = ? AND w.key = ?
ORDER BY w.seq;

-- name: lease_end
SELECT expires_at FROM dutiful_lease WHERE job_id = ? AND claim_id = ?;

-- name: take_lock
INSERT INTO dutiful_lock (namespace, key, job_id, claim_id) VALUES (?, ?, ?, ?)
ON CONFLICT (namespace, key) DO UPDATE SET job_id = excluded.job_id, claim_id = excluded.claim_id;

-- name: next_lock_wait
UPDATE dutiful_counter SET value = value + 1 WHERE name = 'lock_wait' RETURNING value;

-- name: stand_in_line
INSERT INTO dutiful_lock_wait (namespace, key, seq, job_id, claim_id) VALUES (?, ?, ?, ?, ?);

-- name: drop_from_line
DELETE FROM dutiful_lock_wait WHERE namespace = ? AND key = ? AND seq = ?;

-- name: forfeit
UPDATE dutiful_lease SET claim_id = ?3 WHERE job_id = ?1 AND claim_id = ?2;

-- name: free_lock
DELETE FROM dutiful_lock WHERE namespace = ? AND key = ? AND job_id = ? AND claim_id = ?;

-- name: leave_line
DELETE FROM dutiful_lock_wait WHERE namespace = ? AND key = ? AND job_id = ? AND claim_id = ?;

-- name: delete_dead_locks
DELETE FROM dutiful_lock AS k
WHERE NOT EXISTS (SELECT 1 FROM dutiful_lease l WHERE l.job_id = k.job_id AND l.claim_id = k.claim_id);

-- name: delete_dead_waits
DELETE FROM dutiful_lock_wait AS w
WHERE NOT EXISTS (SELECT 1 FROM dutiful_lease l WHERE l.job_id = w.job_id AND l.claim_id = w.claim_id);
