-- name: workers
SELECT {worker_columns}, host, pid, process_started, expires_at FROM dutiful_worker ORDER BY started_at, id;

-- name: put_worker
REPLACE INTO dutiful_worker ({worker_columns}, process_started, expires_at) VALUES ({worker_values}, ?, ?);

-- name: old_workers
SELECT id, host, pid, process_started, expires_at FROM dutiful_worker WHERE seen_at < ?;

-- name: delete_worker
DELETE FROM dutiful_worker WHERE id = ?;
