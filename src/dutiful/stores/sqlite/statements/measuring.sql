-- name: take_turn
INSERT INTO dutiful_tally_turn (worker_id, turn, at) VALUES (:worker, :turn, :now)
ON CONFLICT (worker_id) DO UPDATE SET turn = excluded.turn, at = excluded.at WHERE turn < excluded.turn;

-- name: insert_tally
INSERT INTO dutiful_tally
       (worker_id, turn, at, kind, outcome, count, run_seconds, wait_seconds, payload_bytes, payload_most, run, wait)
VALUES (?,         ?,    ?,  ?,    ?,       ?,     ?,           ?,            ?,             ?,            ?,   ?);

-- name: tallies_to_fold
SELECT worker_id, turn, at, kind, outcome, count, run_seconds, wait_seconds, payload_bytes, payload_most, run, wait
FROM dutiful_tally
LIMIT ?;

-- name: drop_tally
DELETE FROM dutiful_tally WHERE worker_id = ? AND turn = ? AND kind = ? AND outcome = ?;

-- name: minute_of
SELECT kind, outcome, count, run_seconds, wait_seconds, payload_bytes, payload_most, run, wait
FROM dutiful_tally_minute
WHERE minute = ? AND kind = ? AND outcome = ?;

-- name: put_minute
REPLACE INTO dutiful_tally_minute
        (minute, kind, outcome, count, run_seconds, wait_seconds, payload_bytes, payload_most, run, wait)
VALUES  (?,      ?,    ?,       ?,     ?,           ?,            ?,             ?,            ?,   ?);

-- name: total_of
SELECT kind, outcome, count, run_seconds, wait_seconds, payload_bytes, payload_most, run, wait
FROM dutiful_tally_total
WHERE kind = ? AND outcome = ?;

-- name: put_total
REPLACE INTO dutiful_tally_total
        (kind, outcome, count, run_seconds, wait_seconds, payload_bytes, payload_most, run, wait)
VALUES  (?,    ?,       ?,     ?,           ?,            ?,             ?,            ?,   ?);

-- name: any_to_fold
SELECT EXISTS (SELECT 1 FROM dutiful_tally)
    OR EXISTS (SELECT 1 FROM dutiful_tally_minute WHERE minute < ?);

-- name: drop_minutes
DELETE FROM dutiful_tally_minute
WHERE (minute, kind, outcome) IN (
    SELECT minute, kind, outcome FROM dutiful_tally_minute WHERE minute < ? ORDER BY minute LIMIT ?);

-- name: drop_turns
-- There is one for each worker of late, so that to look at all of them costs little.
DELETE FROM dutiful_tally_turn WHERE at < ?;

-- name: tallied
-- In one statement, so that what is folded meanwhile counts once.
SELECT kind, outcome, count, run_seconds, wait_seconds, payload_bytes, payload_most, run, wait
FROM dutiful_tally_minute WHERE minute >= :since
UNION ALL
SELECT kind, outcome, count, run_seconds, wait_seconds, payload_bytes, payload_most, run, wait
FROM dutiful_tally WHERE at >= :since;

-- name: totals
SELECT kind, outcome, count, run_seconds, wait_seconds, payload_bytes, payload_most, run, wait
FROM dutiful_tally_total
UNION ALL
SELECT kind, outcome, count, run_seconds, wait_seconds, payload_bytes, payload_most, run, wait
FROM dutiful_tally;

-- name: count_stuck
-- There are as many rows as jobs that run.
SELECT count(*) FROM dutiful_lease WHERE claimed_at < ?;
