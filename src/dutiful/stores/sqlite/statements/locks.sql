-- name: lock_holder
-- The claim that has the lock, and when its lease ends: NULL if the claim is gone.
SELECT k.job_id, k.claim_id, l.expires_at FROM dutiful_lock k
LEFT JOIN dutiful_lease l ON l.job_id = k.job_id AND l.claim_id = k.claim_id
WHERE k.namespace = ? AND k.key = ?;

-- name: lock_wait
SELECT seq FROM dutiful_lock_wait WHERE namespace = ? AND key = ? AND job_id = ? AND claim_id = ?;

-- name: lock_waits
SELECT w.seq, w.job_id, w.claim_id, l.expires_at FROM dutiful_lock_wait w
LEFT JOIN dutiful_lease l ON l.job_id = w.job_id AND l.claim_id = w.claim_id
WHERE w.namespace = ? AND w.key = ?
ORDER BY w.seq;

-- name: lease_end
SELECT expires_at FROM dutiful_lease WHERE job_id = ? AND claim_id = ?;

-- name: take_lock
REPLACE INTO dutiful_lock (namespace, key, job_id, claim_id) VALUES (?, ?, ?, ?);

-- name: wait_for_lock
INSERT INTO dutiful_lock_wait (namespace, key, seq, job_id, claim_id) VALUES (?, ?, ?, ?, ?);

-- name: delete_lock_wait
DELETE FROM dutiful_lock_wait WHERE namespace = ? AND key = ? AND seq = ?;

-- name: fence_expired_claim
UPDATE dutiful_lease SET claim_id = ?3 WHERE job_id = ?1 AND claim_id = ?2;

-- name: leave_each
-- each: lock lock_wait
DELETE FROM dutiful_{each} WHERE namespace = ? AND key = ? AND job_id = ? AND claim_id = ?;

-- name: delete_dead_each
-- each: lock lock_wait
DELETE FROM dutiful_{each} AS k
WHERE NOT EXISTS (SELECT 1 FROM dutiful_lease l WHERE l.job_id = k.job_id AND l.claim_id = k.claim_id);
