-- name: insert_job
INSERT INTO dutiful_job ({job_columns}) VALUES ({job_values}) ON CONFLICT (id) DO NOTHING;

-- name: job_exists
SELECT 1 FROM dutiful_job WHERE id = ?;

-- name: final_state
-- One row if the job exists; its state is NULL while it is not final.
SELECT f.state, j.tenant FROM dutiful_job j LEFT JOIN dutiful_finished f ON f.job_id = j.id WHERE j.id = ?;

-- name: unique_holder
-- A key that its holder no longer needs is free, even if its row still exists.
SELECT scope, job_id, expires_at FROM dutiful_unique_key AS k
WHERE tenant = ? AND kind = ? AND key = ?
  AND NOT (scope IN ('queued', 'active') AND EXISTS (SELECT 1 FROM dutiful_finished WHERE job_id = k.job_id))
  AND NOT (scope = 'queued' AND EXISTS (SELECT 1 FROM dutiful_lease WHERE job_id = k.job_id));

-- name: put_unique
REPLACE INTO dutiful_unique_key (tenant, kind, key, scope, job_id, expires_at) VALUES (?, ?, ?, ?, ?, ?);

-- name: move_unique
UPDATE dutiful_unique_key SET job_id = ? WHERE tenant = ? AND kind = ? AND key = ?;
