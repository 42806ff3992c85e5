-- name: finished_between
-- Finished jobs by id, each with whether it is old, whether another one needs it, and when the notice of its stale mark
-- was sent; 0 stands for an unsent one.
SELECT f.job_id,
       f.finished_at < :cutoff                                                        AS old,
       EXISTS (SELECT 1 FROM dutiful_dependency d WHERE d.needs_id = f.job_id)        AS needed,
       (SELECT coalesce(s.sent_at, 0) FROM dutiful_stale s WHERE s.job_id = f.job_id) AS stale
FROM dutiful_finished f
WHERE f.job_id > :after AND f.job_id < :bound
ORDER BY f.job_id LIMIT :limit;

-- name: delete_job
DELETE FROM dutiful_job WHERE id = ?;

-- name: delete_finished_unneeded
DELETE FROM dutiful_finished
WHERE job_id = ?1 AND NOT EXISTS (SELECT 1 FROM dutiful_dependency d WHERE d.needs_id = ?1);

-- name: delete_expired_keys
DELETE FROM dutiful_unique_key WHERE (tenant, kind, key) IN (
    SELECT tenant, kind, key FROM dutiful_unique_key WHERE expires_at IS NOT NULL AND expires_at <= ? LIMIT ?
);

-- name: mark_stale
INSERT INTO dutiful_stale (job_id, stale_at, sent_at)
SELECT job_id, ?2, ?3 FROM dutiful_finished WHERE job_id = ?1
ON CONFLICT (job_id) DO NOTHING;

-- name: put_tombstone
REPLACE INTO dutiful_tombstone (job_id, job, deleted_at, sent_at) VALUES (?, ?, ?, ?);

-- name: delete_old_tombstones
DELETE FROM dutiful_tombstone WHERE job_id IN (SELECT job_id FROM dutiful_tombstone WHERE sent_at < ? LIMIT ?);

-- name: unsent_stale
SELECT job_id FROM dutiful_stale WHERE sent_at IS NULL ORDER BY stale_at, job_id LIMIT ?;

-- name: unsent_tombstones
SELECT job FROM dutiful_tombstone WHERE sent_at IS NULL ORDER BY deleted_at, job_id LIMIT ?;

-- name: mark_each_sent
-- each: stale tombstone
UPDATE dutiful_{each} SET sent_at = ?2 WHERE job_id = ?1 AND sent_at IS NULL;
