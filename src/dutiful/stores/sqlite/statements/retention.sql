-- name: finished_between
-- Finished jobs by id, each with whether it is old, whether another one needs it, and when the notice of its stale mark
-- was sent; 0 stands for an unsent one.
SELECT f.job_id,
       f.finished_at < :cutoff                                                        AS old,
       EXISTS (SELECT 1 FROM dutiful_dependency d
               WHERE d.needs_id = f.job_id
                 AND NOT EXISTS (SELECT 1 FROM dutiful_finished e WHERE e.job_id = d.job_id)) AS needed,
       (SELECT coalesce(s.sent_at, 0) FROM dutiful_stale s WHERE s.job_id = f.job_id) AS stale
FROM dutiful_finished f
WHERE f.job_id > :after AND f.job_id < :bound
ORDER BY f.job_id LIMIT :limit;

-- name: keep_metrics
-- What dutiful_job_metrics shows of a job that is to be deleted.
INSERT INTO dutiful_deleted_jobs
    (hour, kind, state, tenant, jobs, claimed, wait_microseconds, run_microseconds, run_most)
SELECT f.finished_at / 3600000000 * 3600000000, j.kind, f.state, coalesce(j.tenant, ''), 1, f.claimed_at IS NOT NULL,
       coalesce(max(f.claimed_at - max(j.created_at, coalesce(j.run_at, 0)), 0), 0),
       coalesce(f.finished_at - f.claimed_at, 0), coalesce(f.finished_at - f.claimed_at, 0)
FROM dutiful_finished f
CROSS JOIN dutiful_job j ON j.id = f.job_id
WHERE f.job_id = ?1
  AND NOT EXISTS (SELECT 1 FROM dutiful_dependency d
                  WHERE d.needs_id = ?1
                    AND NOT EXISTS (SELECT 1 FROM dutiful_finished e WHERE e.job_id = d.job_id))
ON CONFLICT (hour, kind, state, tenant) DO UPDATE
SET jobs = jobs + 1, claimed = claimed + excluded.claimed,
    wait_microseconds = wait_microseconds + excluded.wait_microseconds,
    run_microseconds = run_microseconds + excluded.run_microseconds, run_most = max(run_most, excluded.run_most);

-- name: delete_old_metrics
DELETE FROM dutiful_deleted_jobs WHERE hour < ?;

-- name: delete_job
DELETE FROM dutiful_job WHERE id = ?;

-- name: delete_finished_unneeded
DELETE FROM dutiful_finished
WHERE job_id = ?1
  AND NOT EXISTS (SELECT 1 FROM dutiful_dependency d
                  WHERE d.needs_id = ?1
                    AND NOT EXISTS (SELECT 1 FROM dutiful_finished e WHERE e.job_id = d.job_id));

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
