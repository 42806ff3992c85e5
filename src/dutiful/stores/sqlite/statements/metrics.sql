-- name: put_counter_turn
INSERT INTO dutiful_counter_turn (worker_id, turn, at) VALUES (?, ?, ?)
ON CONFLICT (worker_id) DO UPDATE SET turn = excluded.turn, at = excluded.at WHERE turn < excluded.turn;

-- name: insert_counter
INSERT INTO dutiful_counter (worker_id, turn, at, {counter_columns}) VALUES (?, ?, ?, {counter_values});

-- name: counters_to_roll_up
SELECT worker_id, turn, at, {counter_columns} FROM dutiful_counter LIMIT ?;

-- name: delete_counter
DELETE FROM dutiful_counter WHERE worker_id = ? AND turn = ? AND kind = ? AND outcome = ?;

-- name: counter_each
-- each: minute hour
SELECT {counter_columns} FROM dutiful_counter_{each} WHERE {each} = ? AND kind = ? AND outcome = ?;

-- name: put_counter_each
-- each: minute hour
REPLACE INTO dutiful_counter_{each} ({each}, {counter_columns}) VALUES (?, {counter_values});

-- name: counter_total
SELECT {counter_columns} FROM dutiful_counter_total WHERE kind = ? AND outcome = ?;

-- name: put_counter_total
REPLACE INTO dutiful_counter_total ({counter_columns}) VALUES ({counter_values});

-- name: add_last
INSERT INTO dutiful_counter_last (kind, minute, count, failed) VALUES (?, ?, ?, ?)
ON CONFLICT (kind, minute) DO UPDATE SET count = count + excluded.count, failed = failed + excluded.failed;

-- name: delete_last
-- Older attempts of a kind than those that are needed.
DELETE FROM dutiful_counter_last WHERE kind = :kind AND minute < :since AND minute < (
    SELECT max(minute)
    FROM (SELECT minute, sum(count) OVER (ORDER BY minute DESC) AS enough FROM dutiful_counter_last WHERE kind = :kind)
    WHERE enough >= :least);

-- name: last
SELECT kind, minute, sum(count), sum(failed)
FROM (
    SELECT kind, minute, count, failed FROM dutiful_counter_last
    UNION ALL
    SELECT kind, min(at, :now) / :a_minute * :a_minute, count, iif(outcome IN ({failures}), count, 0)
    FROM dutiful_counter WHERE outcome IN ({ends})
)
GROUP BY kind, minute
ORDER BY kind, minute DESC;

-- name: any_to_roll_up
SELECT EXISTS (SELECT 1 FROM dutiful_counter)
    OR EXISTS (SELECT 1 FROM dutiful_counter_minute WHERE minute < :minute)
    OR EXISTS (SELECT 1 FROM dutiful_counter_hour WHERE hour < :hour);

-- name: delete_each_counters
-- each: minute hour
DELETE FROM dutiful_counter_{each} WHERE ({each}, kind, outcome) IN (
    SELECT {each}, kind, outcome FROM dutiful_counter_{each} WHERE {each} < :{each} ORDER BY {each} LIMIT :limit);

-- name: delete_counter_turns
-- There is one row for each recent worker, so a scan is cheap.
DELETE FROM dutiful_counter_turn WHERE at < ?;

-- name: counted
-- In one statement, so that what is rolled up meanwhile counts once. The other rows were counted just now, also
-- if a clock was ahead.
SELECT 1 AS lately, 0 AS ever, {counter_columns}
FROM dutiful_counter_minute WHERE :fine AND minute BETWEEN :since AND :now
UNION ALL
SELECT 1, 0, {counter_columns}
FROM dutiful_counter_hour WHERE NOT :fine AND hour BETWEEN :since AND :now
UNION ALL
SELECT 0, 1, {counter_columns}
FROM dutiful_counter_total WHERE :ever
UNION ALL
SELECT at >= :since, 1, {counter_columns}
FROM dutiful_counter;

-- name: count_ended
SELECT outcome, sum(count)
FROM (
    SELECT outcome, count FROM dutiful_counter_minute INDEXED BY dutiful_counter_minute_count
    WHERE :fine AND minute BETWEEN :since AND :now
    UNION ALL
    SELECT outcome, count FROM dutiful_counter_hour WHERE NOT :fine AND hour BETWEEN :since AND :now
    UNION ALL
    SELECT outcome, count FROM dutiful_counter WHERE at >= :since
)
GROUP BY outcome;

-- name: count_stuck
-- There are as many rows as running jobs.
SELECT count(*) FROM dutiful_lease WHERE claimed_at < ?;
