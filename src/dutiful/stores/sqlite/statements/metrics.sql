-- name: take_turn
INSERT INTO dutiful_counter_turn (worker_id, turn, at) VALUES (?, ?, ?)
ON CONFLICT (worker_id) DO UPDATE SET turn = excluded.turn, at = excluded.at WHERE turn < excluded.turn;

-- name: insert_counter
INSERT INTO dutiful_counter (worker_id, turn, at, {counter_columns}) VALUES (?, ?, ?, {counter_values});

-- name: counters_to_fold
SELECT worker_id, turn, at, {counter_columns} FROM dutiful_counter LIMIT ?;

-- name: drop_counter
DELETE FROM dutiful_counter WHERE worker_id = ? AND turn = ? AND kind = ? AND outcome = ?;

-- name: each_of
-- each: minute hour
SELECT {counter_columns} FROM dutiful_counter_{each} WHERE {each} = ? AND kind = ? AND outcome = ?;

-- name: put_each
-- each: minute hour
REPLACE INTO dutiful_counter_{each} ({each}, {counter_columns}) VALUES (?, {counter_values});

-- name: total_of
SELECT {counter_columns} FROM dutiful_counter_total WHERE kind = ? AND outcome = ?;

-- name: put_total
REPLACE INTO dutiful_counter_total ({counter_columns}) VALUES ({counter_values});

-- name: any_to_fold
SELECT EXISTS (SELECT 1 FROM dutiful_counter)
    OR EXISTS (SELECT 1 FROM dutiful_counter_minute WHERE minute < :minute)
    OR EXISTS (SELECT 1 FROM dutiful_counter_hour WHERE hour < :hour);

-- name: drop_eachs
-- each: minute hour
DELETE FROM dutiful_counter_{each} WHERE ({each}, kind, outcome) IN (
    SELECT {each}, kind, outcome FROM dutiful_counter_{each} WHERE {each} < :{each} ORDER BY {each} LIMIT :limit);

-- name: drop_turns
-- There is one for each worker of late, so that to read all of them costs little.
DELETE FROM dutiful_counter_turn WHERE at < ?;

-- name: counted
-- In one statement, so that what is folded meanwhile counts once. What is not folded was counted just now, whatever a
-- clock that was ahead may say.
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
-- There are as many rows as jobs that run.
SELECT count(*) FROM dutiful_lease WHERE claimed_at < ?;
