-- name: job_row
SELECT {job_columns} FROM dutiful_job WHERE id = ?;

-- name: insert_dead_letter
INSERT INTO dutiful_dead_letter
       (job_id, died_at, kind, queue, tenant, correlation_id, unique_key, created_at, attempt, max_attempts,
        error_class, error_type, fingerprint, message)
VALUES (?,      ?,       ?,    ?,     ?,      ?,              ?,          ?,          ?,       ?,
        ?,           ?,          ?,           ?) ON CONFLICT (job_id) DO NOTHING;

-- name: insert_dead_letter_body
INSERT INTO dutiful_dead_letter_body (job_id, job, errors, history) VALUES (?, ?, ?, ?)
ON CONFLICT (job_id) DO NOTHING;

-- name: select_dead_letters
SELECT {dead_letter_columns}, d.job_id, b.job, b.errors, b.history FROM dutiful_dead_letter d
CROSS JOIN dutiful_dead_letter_body b ON b.job_id = d.job_id;

-- name: select_dead_letter_summaries
SELECT {dead_letter_columns}, d.job_id, NULL, NULL, NULL FROM dutiful_dead_letter d;

-- name: count_dead_letters
SELECT count(*) FROM dutiful_dead_letter d;

-- name: count_dead_letters_by
SELECT status, kind, coalesce(error_class, ''), count(*), min(died_at) FROM dutiful_dead_letter d
{where}
GROUP BY status, kind, error_class;

-- name: group_dead_letters
SELECT fingerprint, kind, error_class, error_type, message, times, first_at, died_at, job_id
FROM (
    SELECT fingerprint, kind, error_class, error_type, message, died_at, job_id,
           count(*) OVER alike      AS times,
           min(died_at) OVER alike  AS first_at,
           row_number() OVER newest AS number
    FROM dutiful_dead_letter d
    {where}
    WINDOW alike AS (PARTITION BY fingerprint, kind, error_class, error_type),
           newest AS (PARTITION BY fingerprint, kind, error_class, error_type ORDER BY died_at DESC, job_id DESC)
)
WHERE number = 1
ORDER BY times DESC, died_at DESC, job_id DESC LIMIT :limit;

-- name: dead_letter_status
SELECT status, new_job_id FROM dutiful_dead_letter WHERE job_id = ?;

-- name: review_dead_letter
UPDATE dutiful_dead_letter
SET status = ?2, reviewed_by = ?3, reviewed_at = ?4, notes = coalesce(?5, notes), new_job_id = ?6, resolution = ?7,
    acknowledged_by = iif(?2 = 'acknowledged', ?3, acknowledged_by),
    acknowledged_at = iif(?2 = 'acknowledged', ?4, acknowledged_at),
    closed_at = iif(?2 IN ('resolved', 'discarded'), ?4, NULL)
WHERE job_id = ?1;

-- name: reprocessing_between
-- Each with the state of its new job: NULL if it has not ended, '' if it was deleted.
SELECT d.new_job_id, d.job_id,
       coalesce((SELECT f.state FROM dutiful_finished f WHERE f.job_id = d.new_job_id),
                iif(EXISTS (SELECT 1 FROM dutiful_job j WHERE j.id = d.new_job_id), NULL, ''))
FROM dutiful_dead_letter d INDEXED BY dutiful_dead_letter_reprocessing
WHERE d.status = 'reprocessing' AND d.new_job_id > ?
ORDER BY d.new_job_id LIMIT ?;

-- name: resolve_dead_letter
UPDATE dutiful_dead_letter
SET status = ?3, resolution = ?4, new_job_id = iif(?3 = 'resolved', new_job_id, NULL),
    closed_at = iif(?3 = 'resolved', ?5, NULL)
WHERE job_id = ?1 AND new_job_id = ?2 AND status = 'reprocessing';

-- name: closed_dead_letters
-- Not while their jobs exist, because a failed job always has its dead letter. The limit applies before that lookup, so
-- that each call reads a bounded number, even if jobs are kept forever.
SELECT c.job_id
FROM (
    SELECT d.job_id
    FROM dutiful_dead_letter d INDEXED BY dutiful_dead_letter_closed
    WHERE d.closed_at IS NOT NULL AND d.closed_at < ?
    ORDER BY d.closed_at
    LIMIT ?
) c
WHERE NOT EXISTS (SELECT 1 FROM dutiful_job j WHERE j.id = c.job_id);

-- name: insert_bulk_run
INSERT INTO dutiful_bulk_run ({bulk_run_columns}, cursor_died_at, cursor_id) VALUES ({bulk_run_values}, ?, ?)
ON CONFLICT (id) DO NOTHING;

-- name: select_bulk_runs
SELECT {bulk_run_columns}, cursor_died_at, cursor_id FROM dutiful_bulk_run;

-- name: is_bulk_step_current
SELECT 1 FROM dutiful_bulk_run WHERE id = ? AND state = 'running' AND cursor_died_at IS ? AND cursor_id IS ?;

-- name: take_bulk_step
-- ?4 and ?5 are its new cursor; ?6 says whether it is the last step.
UPDATE dutiful_bulk_run
SET done = done + ?2, skipped = skipped + ?3, cursor_died_at = coalesce(?4, cursor_died_at), cursor_id = coalesce(?5, cursor_id),
    state = iif(?6, 'done', state), ended_at = iif(?6, ?7, ended_at)
WHERE id = ?1;

-- name: delete_ended_bulk_runs
DELETE FROM dutiful_bulk_run
WHERE id IN (SELECT id FROM dutiful_bulk_run INDEXED BY dutiful_bulk_run_ended WHERE ended_at < ? LIMIT ?);

-- name: stop_bulk_run
UPDATE dutiful_bulk_run SET state = 'stopped', ended_at = ?2 WHERE id = ?1 AND state = 'running';
