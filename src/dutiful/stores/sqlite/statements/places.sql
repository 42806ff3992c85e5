-- name: leave_ready
DELETE FROM dutiful_ready WHERE job_id = ?;

-- name: leave_scheduled
DELETE FROM dutiful_scheduled WHERE job_id = ?;

-- name: leave_blocked
DELETE FROM dutiful_blocked WHERE job_id = ?;

-- name: any_dependency
SELECT 1 FROM dutiful_dependency LIMIT 1;

-- name: delete_dependencies
DELETE FROM dutiful_dependency WHERE job_id = ?;
