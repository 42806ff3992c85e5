-- name: blocked_kinds
-- Each with whether it is stopped; if not, its jobs wait only for its limits.
SELECT name, max(scope <> 'limited') FROM dutiful_pause
WHERE scope IN ('kind', 'breaker', 'probing', 'limited')
GROUP BY name;

-- name: next_each
-- each: claim lock_wait
-- The last of the numbers taken; a number is never assigned twice.
UPDATE dutiful_sequence SET value = value + ? WHERE name = '{each}' RETURNING value;

-- name: insert_ready
INSERT INTO dutiful_ready ({ready_columns}) VALUES ({ready_values});

-- name: insert_scheduled
INSERT INTO dutiful_scheduled ({scheduled_columns}) VALUES ({scheduled_values});

-- name: insert_blocked
INSERT INTO dutiful_blocked ({blocked_columns}) VALUES ({blocked_values});

-- name: insert_finished
INSERT INTO dutiful_finished ({finished_columns}) VALUES ({finished_values});

-- name: place_of
-- The place of a job: at most one row. Every action by id begins here.
SELECT state, attempt, crashes FROM dutiful_finished WHERE job_id = :id
UNION ALL SELECT 'running', attempt, crashes FROM dutiful_lease WHERE job_id = :id
UNION ALL SELECT 'ready', attempt, crashes FROM dutiful_ready WHERE job_id = :id
UNION ALL SELECT 'scheduled', attempt, crashes FROM dutiful_scheduled WHERE job_id = :id
UNION ALL SELECT 'blocked', attempt, crashes FROM dutiful_blocked WHERE job_id = :id;

-- name: delete_each
-- each: ready scheduled blocked dependency finished attempt phase progress stale delivery step dead_letter dead_letter_body
DELETE FROM dutiful_{each} WHERE job_id = ?;

-- name: any_each
-- each: dependency phase progress stale delivery step
SELECT 1 FROM dutiful_{each} LIMIT 1;

-- name: any_each_key
-- each: queued active
SELECT 1 FROM dutiful_unique_key WHERE scope = '{each}' LIMIT 1;

-- name: free_each_key
-- each: queued active
DELETE FROM dutiful_unique_key WHERE scope = '{each}' AND job_id = ?;
