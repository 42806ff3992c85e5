-- Circuit breakers, shared by all processes.

-- The policy is that of whoever spoke last; a time span is in microseconds.
CREATE TABLE dutiful_breaker (
    name            TEXT    NOT NULL PRIMARY KEY,
    state           TEXT    NOT NULL CHECK (state IN ('closed', 'open', 'half_open')),
    failures        INTEGER NOT NULL,
    successes       INTEGER NOT NULL,
    neutral         INTEGER NOT NULL,
    round           INTEGER NOT NULL,
    trips           INTEGER NOT NULL,
    threshold       INTEGER NOT NULL,
    open_for        INTEGER NOT NULL,
    probes          INTEGER NOT NULL,
    last_failure_at INTEGER,
    opened_at       INTEGER,
    open_until      INTEGER,
    half_opened_at  INTEGER,
    updated_at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Who finds out in this round. It counts for as long as the claim's lease; without a claim, the job was let out to do
-- so at `since`, and counts while it runs, or is in a line and its turn is not over.
CREATE TABLE dutiful_breaker_probe (
    breaker  TEXT    NOT NULL,
    job_id   BLOB    NOT NULL,
    round    INTEGER NOT NULL,
    claim_id INTEGER,
    since    INTEGER NOT NULL,
    PRIMARY KEY (breaker, job_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_breaker_kind (
    kind    TEXT NOT NULL PRIMARY KEY,
    breaker TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_breaker_kind_breaker ON dutiful_breaker_kind (breaker, kind);

-- What waits and is due, by the lines that it would stand in and in their order: so that nobody walks past what is not
-- due yet, or belongs to tenants whom nobody serves.
CREATE INDEX dutiful_blocked_line ON dutiful_blocked (key, queue, priority, seq)
WHERE gate = 'paused' AND seq IS NOT NULL;
CREATE INDEX dutiful_blocked_line_tenant ON dutiful_blocked (tenant, key, queue, priority, seq)
WHERE gate = 'paused' AND seq IS NOT NULL AND tenant IS NOT NULL;
CREATE INDEX dutiful_blocked_tenant ON dutiful_blocked (tenant) WHERE tenant IS NOT NULL;
