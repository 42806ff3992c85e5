-- name: schedules
SELECT {schedule_columns} FROM dutiful_schedule ORDER BY name;

-- name: put_schedule
-- Keeps next_at, unless the times have changed, and whether it is enabled; the code declares the rest.
INSERT INTO dutiful_schedule ({schedule_columns}) VALUES ({schedule_values})
ON CONFLICT (name) DO UPDATE
SET kind       = excluded.kind,
    catch_up   = excluded.catch_up,
    job        = excluded.job,
    next_at    = CASE WHEN expression = excluded.expression AND timezone = excluded.timezone
                      THEN next_at ELSE excluded.next_at END,
    expression = excluded.expression,
    timezone   = excluded.timezone;

-- name: move_schedule
UPDATE dutiful_schedule SET next_at = ?3, last_at = ?4, last_job_id = coalesce(?5, last_job_id)
WHERE name = ?1 AND next_at = ?2 AND enabled = 1;

-- name: remove_schedule
DELETE FROM dutiful_schedule WHERE name = ?;

-- name: enable_schedule
UPDATE dutiful_schedule SET enabled = ?2 WHERE name = ?1;
