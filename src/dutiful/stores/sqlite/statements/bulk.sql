-- name: insert_bulk_run
INSERT INTO dutiful_bulk_run
       (id, act, filter, by, role, origin, reason, created_at, total, done, skipped, state, cursor_at, cursor_id,
        ended_at)
VALUES (?,  ?,   ?,      ?,  ?,    ?,      ?,      ?,          ?,     ?,    ?,       ?,     ?,         ?,
        ?)
ON CONFLICT (id) DO NOTHING;

-- name: select_bulk_runs
SELECT id, act, filter, by, role, origin, reason, created_at, total, done, skipped, state, cursor_at, cursor_id,
       ended_at
FROM dutiful_bulk_run;

-- name: bulk_step_counts
SELECT 1 FROM dutiful_bulk_run WHERE id = ? AND state = 'running' AND cursor_at IS ? AND cursor_id IS ?;

-- name: take_bulk_step
UPDATE dutiful_bulk_run
SET done      = done + :done,
    skipped   = skipped + :skipped,
    cursor_at = coalesce(:cursor_at, cursor_at),
    cursor_id = coalesce(:cursor_id, cursor_id),
    state     = iif(:last, 'done', state),
    ended_at  = iif(:last, :now, ended_at)
WHERE id = :id;

-- name: delete_ended_bulk_runs
DELETE FROM dutiful_bulk_run
WHERE id IN (SELECT id FROM dutiful_bulk_run INDEXED BY dutiful_bulk_run_ended WHERE ended_at < ? LIMIT ?);

-- name: stop_bulk_run
UPDATE dutiful_bulk_run SET state = 'stopped', ended_at = ?2 WHERE id = ?1 AND state = 'running';
