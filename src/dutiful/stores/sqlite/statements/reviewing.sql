-- name: select_dead_letters
SELECT d.job_id, d.status, d.died_at, d.kind, d.queue, d.tenant, d.correlation_id, d.unique_key, d.created_at,
       d.attempt, d.max_attempts, d.error_class, d.error_type, d.fingerprint, d.message, d.reviewed_by, d.reviewed_at,
       d.acknowledged_by, d.acknowledged_at, d.new_job_id, d.resolution, d.notes, b.job, b.errors, b.history
FROM dutiful_dead_letter d
CROSS JOIN dutiful_dead_letter_body b ON b.job_id = d.job_id;

-- name: count_dead_letters
SELECT count(*) FROM dutiful_dead_letter d;

-- name: tally_dead_letters
SELECT status, kind, coalesce(error_class, ''), count(*), min(died_at)
FROM dutiful_dead_letter d
{where}
GROUP BY status, kind, error_class;

-- name: group_dead_letters
SELECT fingerprint, kind, error_class, error_type, message, times, first_at, died_at, job_id
FROM (
    SELECT fingerprint, kind, error_class, error_type, message, died_at, job_id,
           count(*) OVER alike      AS times,
           min(died_at) OVER alike  AS first_at,
           row_number() OVER newest AS place
    FROM dutiful_dead_letter d
    {where}
    WINDOW alike AS (PARTITION BY fingerprint, kind, error_class, error_type),
           newest AS (PARTITION BY fingerprint, kind, error_class, error_type ORDER BY died_at DESC, job_id DESC)
)
WHERE place = 1
ORDER BY times DESC, died_at DESC, job_id DESC
LIMIT :limit;

-- name: standing_of_dead_letter
SELECT status, new_job_id FROM dutiful_dead_letter WHERE job_id = ?;

-- name: review_dead_letter
UPDATE dutiful_dead_letter
SET status = ?2, reviewed_by = ?3, reviewed_at = ?4, notes = coalesce(?5, notes), new_job_id = ?6, resolution = ?7,
    acknowledged_by = iif(?2 = 'acknowledged', ?3, acknowledged_by),
    acknowledged_at = iif(?2 = 'acknowledged', ?4, acknowledged_at),
    closed_at = iif(?2 IN ('resolved', 'discarded'), ?4, NULL)
WHERE job_id = ?1;

-- name: reprocessing_between
-- Each with the state of its new job: NULL while that one lives, and '' if it is gone.
SELECT d.new_job_id, d.job_id,
       coalesce((SELECT f.state FROM dutiful_finished f WHERE f.job_id = d.new_job_id),
                iif(EXISTS (SELECT 1 FROM dutiful_job j WHERE j.id = d.new_job_id), NULL, ''))
FROM dutiful_dead_letter d INDEXED BY dutiful_dead_letter_reprocessing
WHERE d.status = 'reprocessing' AND d.new_job_id > ?
ORDER BY d.new_job_id
LIMIT ?;

-- name: resolve_dead_letter
UPDATE dutiful_dead_letter
SET status = ?3, resolution = ?4, new_job_id = iif(?3 = 'resolved', new_job_id, NULL),
    closed_at = iif(?3 = 'resolved', ?5, NULL)
WHERE job_id = ?1 AND new_job_id = ?2 AND status = 'reprocessing';

-- name: closed_dead_letters
-- Not while their jobs are there: a failed one is never without its dead letter. Limited before that is looked up, so
-- that where jobs stay for good no more than so many are looked at each time.
SELECT c.job_id
FROM (
    SELECT d.job_id
    FROM dutiful_dead_letter d INDEXED BY dutiful_dead_letter_closed
    WHERE d.closed_at IS NOT NULL AND d.closed_at < ?
    ORDER BY d.closed_at
    LIMIT ?
) c
WHERE NOT EXISTS (SELECT 1 FROM dutiful_job j WHERE j.id = c.job_id);

-- name: delete_dead_letter
DELETE FROM dutiful_dead_letter WHERE job_id = ?;

-- name: delete_dead_letter_body
DELETE FROM dutiful_dead_letter_body WHERE job_id = ?;
