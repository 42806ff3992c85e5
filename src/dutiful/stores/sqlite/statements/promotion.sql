-- name: stopped_kinds
SELECT name, since FROM dutiful_pause WHERE scope IN ('kind', 'breaker', 'limited');

-- name: due
SELECT run_at, job_id, {carried_columns} FROM dutiful_scheduled
WHERE run_at <= ?
ORDER BY run_at, job_id LIMIT ?;

-- name: take_scheduled
DELETE FROM dutiful_scheduled WHERE run_at = ? AND job_id = ?;

-- name: next_run_at
SELECT min(run_at) FROM dutiful_scheduled;

-- name: kinds_no_longer_paused
-- Kind by kind, so that it does not walk past all the jobs whose gate stays closed.
WITH RECURSIVE waits (kind) AS (
    SELECT min(key) FROM dutiful_blocked WHERE gate = 'paused'
    UNION ALL
    SELECT (SELECT min(b.key) FROM dutiful_blocked b WHERE b.gate = 'paused' AND b.key > w.kind)
    FROM waits w
    WHERE w.kind IS NOT NULL
)
SELECT w.kind
FROM waits w
WHERE w.kind IS NOT NULL
  AND w.kind NOT IN (SELECT name FROM dutiful_pause WHERE scope IN ('kind', 'breaker', 'probing', 'limited'));

-- name: waiting_of_kind
-- By position; those that are not due yet come last.
SELECT seq, job_id FROM dutiful_blocked WHERE gate = 'paused' AND key = ? ORDER BY seq NULLS LAST LIMIT ?;

-- name: due_behind_gate
SELECT job_id FROM dutiful_blocked INDEXED BY dutiful_blocked_due
WHERE gate = 'paused' AND seq IS NULL AND run_at <= ?
ORDER BY run_at, job_id LIMIT ?;

-- name: assign_due_seq
UPDATE dutiful_blocked SET seq = max(run_at, 1) WHERE job_id = ? AND gate = 'paused' AND seq IS NULL;

-- name: ready_of_stopped_kinds
-- A scan of all ready jobs; once per pause, because no job of a paused kind becomes ready. And those that became ready
-- before their kind was limited.
SELECT r.job_id FROM dutiful_ready r
WHERE r.kind IN (SELECT name FROM dutiful_pause WHERE scope IN ('kind', 'breaker'))
   OR (r.kind IN (SELECT name FROM dutiful_pause WHERE scope = 'limited')
       AND NOT EXISTS (SELECT 1 FROM dutiful_limit_slot s WHERE s.job_id = r.job_id))
LIMIT ?;

-- name: blocked_row
SELECT gate, key, run_at, seq, {carried_columns} FROM dutiful_blocked WHERE job_id = ?;

-- name: ready_row
SELECT seq, {carried_columns} FROM dutiful_ready WHERE job_id = ?;
