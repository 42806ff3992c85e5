-- What workers have counted, and views for people who know SQL.
--
-- A sketch is JSON: how many by the number of their bucket. Times are in microseconds, all together.

-- As workers hand it over; folded into minutes, hours and totals soon after.
CREATE TABLE dutiful_tally (
    worker_id         BLOB    NOT NULL,
    turn              INTEGER NOT NULL,
    kind              TEXT    NOT NULL,
    outcome           TEXT    NOT NULL,
    at                INTEGER NOT NULL,
    count             INTEGER NOT NULL,
    run_microseconds  INTEGER NOT NULL,
    wait_microseconds INTEGER NOT NULL,
    payload_bytes     INTEGER NOT NULL,
    payload_most      INTEGER NOT NULL,
    run               TEXT    NOT NULL,
    wait              TEXT    NOT NULL,
    PRIMARY KEY (worker_id, turn, kind, outcome)
) STRICT, WITHOUT ROWID;

-- The last turn of each worker, so that one which is repeated after its rows were folded counts nothing twice.
CREATE TABLE dutiful_tally_turn (
    worker_id BLOB    NOT NULL PRIMARY KEY,
    turn      INTEGER NOT NULL,
    at        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_tally_minute (
    minute            INTEGER NOT NULL,  -- when it began
    kind              TEXT    NOT NULL,
    outcome           TEXT    NOT NULL,
    count             INTEGER NOT NULL,
    run_microseconds  INTEGER NOT NULL,
    wait_microseconds INTEGER NOT NULL,
    payload_bytes     INTEGER NOT NULL,
    payload_most      INTEGER NOT NULL,
    run               TEXT    NOT NULL,
    wait              TEXT    NOT NULL,
    PRIMARY KEY (minute, kind, outcome)
) STRICT, WITHOUT ROWID;

-- For those who want no more than how many there were: rows with sketches are wide.
CREATE INDEX dutiful_tally_minute_count ON dutiful_tally_minute (minute, outcome, count);

CREATE TABLE dutiful_tally_hour (
    hour              INTEGER NOT NULL,
    kind              TEXT    NOT NULL,
    outcome           TEXT    NOT NULL,
    count             INTEGER NOT NULL,
    run_microseconds  INTEGER NOT NULL,
    wait_microseconds INTEGER NOT NULL,
    payload_bytes     INTEGER NOT NULL,
    payload_most      INTEGER NOT NULL,
    run               TEXT    NOT NULL,
    wait              TEXT    NOT NULL,
    PRIMARY KEY (hour, kind, outcome)
) STRICT, WITHOUT ROWID;

-- All that was ever counted.
CREATE TABLE dutiful_tally_total (
    kind              TEXT    NOT NULL,
    outcome           TEXT    NOT NULL,
    count             INTEGER NOT NULL,
    run_microseconds  INTEGER NOT NULL,
    wait_microseconds INTEGER NOT NULL,
    payload_bytes     INTEGER NOT NULL,
    payload_most      INTEGER NOT NULL,
    run               TEXT    NOT NULL,
    wait              TEXT    NOT NULL,
    PRIMARY KEY (kind, outcome)
) STRICT, WITHOUT ROWID;

-- To count the jobs of one tenant, as dutiful_blocked_tenant does; a job that has none pays nothing for it.
CREATE INDEX dutiful_scheduled_tenant ON dutiful_scheduled (tenant) WHERE tenant IS NOT NULL;
