-- name: first_level
SELECT queue, priority FROM dutiful_ready ORDER BY queue, priority LIMIT 1;

-- name: next_level_of_queue
SELECT queue, priority FROM dutiful_ready WHERE queue = CAST(? AS TEXT) AND priority > ?
ORDER BY priority LIMIT 1;

-- name: next_level_beyond_queue
SELECT queue, priority FROM dutiful_ready WHERE queue > CAST(? AS TEXT) ORDER BY queue, priority LIMIT 1;

-- name: first_of_level
SELECT seq FROM dutiful_ready
WHERE queue = ? AND priority = ? AND kind IN (SELECT value FROM json_each(?))
ORDER BY seq LIMIT 1;

-- name: first_near
SELECT x.seq
FROM (SELECT seq, kind FROM dutiful_ready WHERE queue = ? AND priority = ? AND seq > ? ORDER BY seq LIMIT ?) x
WHERE x.kind IN (SELECT value FROM json_each(?))
ORDER BY x.seq LIMIT 1;

-- name: pauses_for_claim
SELECT scope, name FROM dutiful_pause;

-- name: pick_level
-- CROSS JOIN keeps the order of the loops: along the queue level first, then the job of each row.
SELECT {claim_columns} FROM dutiful_ready r
CROSS JOIN dutiful_job j ON j.id = r.job_id
WHERE r.queue = :queue AND r.priority = :priority AND r.seq > :seq AND r.crashes = 0
  AND r.kind IN (SELECT value FROM json_each(:kinds))
ORDER BY r.seq, r.job_id LIMIT :limit;

-- name: pick_level_of_tenant
-- By the tenant's index, so that jobs of other tenants are not read.
SELECT {claim_columns} FROM dutiful_ready r INDEXED BY dutiful_ready_tenant
CROSS JOIN dutiful_job j ON j.id = r.job_id
WHERE r.tenant = :tenant AND r.queue = :queue AND r.priority = :priority AND r.seq > :seq AND r.crashes = 0
  AND r.kind IN (SELECT value FROM json_each(:kinds))
ORDER BY r.seq, r.job_id LIMIT :limit;

-- name: any_suspect
SELECT 1 FROM dutiful_ready INDEXED BY dutiful_ready_suspect WHERE crashes > 0 LIMIT 1;

-- name: pick_suspects
-- :tenants: null for any.
SELECT {claim_columns} FROM dutiful_ready r INDEXED BY dutiful_ready_suspect
CROSS JOIN dutiful_job j ON j.id = r.job_id
WHERE r.queue = :queue AND r.priority = :priority AND r.crashes > 0
  AND r.kind IN (SELECT value FROM json_each(:kinds))
  AND (:tenants IS NULL OR r.tenant IN (SELECT value FROM json_each(:tenants)))
ORDER BY r.seq, r.job_id LIMIT :limit;

-- name: pick_job
-- :tenants: null for any.
SELECT {claim_columns} FROM dutiful_ready r
CROSS JOIN dutiful_job j ON j.id = r.job_id
WHERE r.job_id = :id AND r.kind IN (SELECT value FROM json_each(:kinds))
  AND (:tenants IS NULL OR r.tenant IN (SELECT value FROM json_each(:tenants)));

-- name: take_ready
DELETE FROM dutiful_ready WHERE queue = ? AND priority = ? AND seq = ? AND job_id = ?;

-- name: insert_lease
INSERT INTO dutiful_lease (job_id, claim_id, worker_id, attempt, crashes, seq, claimed_at, expires_at)
VALUES                    (?,      ?,        ?,         ?,       ?,       ?,   ?,          ?);

-- name: renew
UPDATE dutiful_lease SET expires_at = ?3 WHERE job_id = ?1 AND claim_id = ?2 RETURNING cancel_requested_at;

-- name: is_held
SELECT cancel_requested_at FROM dutiful_lease WHERE job_id = ? AND claim_id = ?;

-- name: select_claims
SELECT l.job_id, l.claim_id, l.attempt, l.crashes, j.kind, l.worker_id, l.cancel_requested_at IS NOT NULL,
       j.tenant, j.correlation_id
FROM dutiful_lease l
CROSS JOIN dutiful_job j ON j.id = l.job_id;

-- name: expired_claims
{select_claims} WHERE l.expires_at <= ? ORDER BY l.expires_at LIMIT ?;

-- name: claims_of_worker
-- A scan: there are only as many leases as slots in all workers, and it runs only after a worker has died.
{select_claims} WHERE l.worker_id = ? ORDER BY l.job_id;

-- name: held_claims
{select_claims} WHERE l.job_id = ?;

-- name: claiming_workers
SELECT id, host, pid, process_started FROM dutiful_worker
WHERE id IN (SELECT worker_id FROM dutiful_lease)
ORDER BY id;

-- name: finish_completed
-- The lease is deleted afterwards, so that claims that were not held can be distinguished. One whose cancellation was
-- requested is left alone: its job ends as cancelled.
INSERT INTO dutiful_finished
       (job_id, claim_id, state, attempt, crashes, worker_id, claimed_at, finished_at, result)
SELECT job_id, claim_id, 'completed', attempt, crashes, worker_id, claimed_at, ?3, ?4
FROM dutiful_lease
WHERE job_id = ?1 AND claim_id = ?2 AND cancel_requested_at IS NULL
ON CONFLICT (job_id) DO NOTHING;

-- name: end_lease
DELETE FROM dutiful_lease WHERE job_id = ? AND claim_id = ?;

-- name: held_lease
SELECT {held_lease_columns} FROM dutiful_lease WHERE job_id = ? AND claim_id = ?;

-- name: insert_attempt
INSERT INTO dutiful_attempt (job_id, claim_id, attempt, outcome, worker_id, claimed_at, ended_at, next_at, error)
VALUES                      (?,      ?,        ?,       ?,       ?,         ?,          ?,        ?,       ?);

-- name: delete_last_rejection
DELETE FROM dutiful_attempt WHERE id = (SELECT max(id) FROM dutiful_attempt WHERE job_id = ?1)
  AND outcome = 'snoozed' AND json_extract(error, '$.breaker') = ?2;

-- name: carried_by_job
-- What a job carries from its lease to its next place: its route, and the counts that it has then.
SELECT {route_columns}, ?2 AS attempt, ?3 AS crashes FROM dutiful_job WHERE id = ?1;

-- name: ended_by
SELECT state FROM dutiful_finished WHERE job_id = ? AND claim_id = ?;

-- name: outcomes_of_claim
SELECT outcome, attempt FROM dutiful_attempt WHERE job_id = ? AND claim_id = ?;
