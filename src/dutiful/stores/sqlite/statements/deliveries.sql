-- name: record_delivery
-- The same one again was sent because the broker had lost it. Numbers follow each other.
INSERT INTO dutiful_delivery AS d (job_id, backend_job_id, number, attempt, delivered_at)
SELECT ?1, ?2, ?3, ?4, ?5 WHERE EXISTS (SELECT 1 FROM dutiful_job WHERE id = ?1)
  AND ?3 BETWEEN 1 AND coalesce((SELECT number FROM dutiful_delivery WHERE job_id = ?1), 0) + 1
ON CONFLICT (job_id) DO UPDATE
SET backend_job_id = excluded.backend_job_id, number = excluded.number, attempt = excluded.attempt,
    delivered_at = excluded.delivered_at, taken = d.taken AND d.number = excluded.number
WHERE excluded.number >= d.number;

-- name: take_delivery
UPDATE dutiful_delivery SET taken = 1 WHERE job_id = ? AND backend_job_id = ?;

-- name: take_deliveries_of
UPDATE dutiful_delivery SET taken = 1 WHERE job_id = ?;

-- name: select_waiting
SELECT r.job_id, r.kind, r.queue, r.priority, r.seq, r.attempt, d.backend_job_id, coalesce(d.number, 0),
       d.delivered_at, coalesce(d.attempt = r.attempt AND NOT d.taken, 0)
FROM dutiful_ready r
LEFT JOIN dutiful_delivery d ON d.job_id = r.job_id;

-- name: waiting_job
{select_waiting} WHERE r.job_id = ?;

-- name: waiting_jobs
{select_waiting}
WHERE (r.queue, r.priority, r.seq, r.job_id) > (?, ?, ?, ?)
ORDER BY r.queue, r.priority, r.seq, r.job_id
LIMIT ?;
