-- name: take_turn
INSERT INTO dutiful_tally_turn (worker_id, turn, at) VALUES (:worker, :turn, :now)
ON CONFLICT (worker_id) DO UPDATE SET turn = excluded.turn, at = excluded.at WHERE turn < excluded.turn;

-- name: insert_tally
INSERT INTO dutiful_tally
       (worker_id, turn, at, kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes,
        payload_most)
VALUES (?,         ?,    ?,  ?,    ?,       ?,     ?,   ?,    ?,                ?,                 ?,
        ?);

-- name: tallies_to_fold
SELECT worker_id, turn, at, kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes,
       payload_most
FROM dutiful_tally
LIMIT ?;

-- name: drop_tally
DELETE FROM dutiful_tally WHERE worker_id = ? AND turn = ? AND kind = ? AND outcome = ?;

-- name: minute_of
SELECT kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
FROM dutiful_tally_minute
WHERE minute = ? AND kind = ? AND outcome = ?;

-- name: put_minute
REPLACE INTO dutiful_tally_minute
        (minute, kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most)
VALUES  (?,      ?,    ?,       ?,     ?,   ?,    ?,                ?,                 ?,             ?);

-- name: hour_of
SELECT kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
FROM dutiful_tally_hour
WHERE hour = ? AND kind = ? AND outcome = ?;

-- name: put_hour
REPLACE INTO dutiful_tally_hour
        (hour, kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most)
VALUES  (?,    ?,    ?,       ?,     ?,   ?,    ?,                ?,                 ?,             ?);

-- name: total_of
SELECT kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
FROM dutiful_tally_total
WHERE kind = ? AND outcome = ?;

-- name: put_total
REPLACE INTO dutiful_tally_total
        (kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most)
VALUES  (?,    ?,       ?,     ?,   ?,    ?,                ?,                 ?,             ?);

-- name: any_to_fold
SELECT EXISTS (SELECT 1 FROM dutiful_tally)
    OR EXISTS (SELECT 1 FROM dutiful_tally_minute WHERE minute < :minute)
    OR EXISTS (SELECT 1 FROM dutiful_tally_hour WHERE hour < :hour);

-- name: drop_minutes
DELETE FROM dutiful_tally_minute
WHERE (minute, kind, outcome) IN (
    SELECT minute, kind, outcome FROM dutiful_tally_minute WHERE minute < :minute ORDER BY minute LIMIT :limit);

-- name: drop_hours
DELETE FROM dutiful_tally_hour
WHERE (hour, kind, outcome) IN (
    SELECT hour, kind, outcome FROM dutiful_tally_hour WHERE hour < :hour ORDER BY hour LIMIT :limit);

-- name: drop_turns
-- There is one for each worker of late, so that to look at all of them costs little.
DELETE FROM dutiful_tally_turn WHERE at < ?;

-- name: counted
-- In one statement, so that what is folded meanwhile counts once. What is not folded was counted just now, whatever a
-- clock that was ahead may say.
SELECT 1 AS lately, 0 AS ever,
       kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
FROM dutiful_tally_minute WHERE :fine AND minute BETWEEN :since AND :now
UNION ALL
SELECT 1, 0, kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
FROM dutiful_tally_hour WHERE NOT :fine AND hour BETWEEN :since AND :now
UNION ALL
SELECT 0, 1, kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
FROM dutiful_tally_total WHERE :ever
UNION ALL
SELECT at >= :since, 1,
       kind, outcome, count, run, wait, run_microseconds, wait_microseconds, payload_bytes, payload_most
FROM dutiful_tally;

-- name: count_ended
SELECT outcome, sum(count)
FROM (
    SELECT outcome, count FROM dutiful_tally_minute INDEXED BY dutiful_tally_minute_count WHERE :fine AND minute BETWEEN :since AND :now
    UNION ALL
    SELECT outcome, count FROM dutiful_tally_hour WHERE NOT :fine AND hour BETWEEN :since AND :now
    UNION ALL
    SELECT outcome, count FROM dutiful_tally WHERE at >= :since
)
GROUP BY outcome;

-- name: count_stuck
-- There are as many rows as jobs that run.
SELECT count(*) FROM dutiful_lease WHERE claimed_at < ?;
