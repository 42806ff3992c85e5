-- What was asked for is one immutable row; where the job stands is one row in a narrow table; what happened is
-- append-only. Ids are UUIDs of 16 bytes, times are microseconds since 1970 in UTC, JSON is text. The names have a
-- prefix because the file may hold its user's tables as well.

CREATE TABLE dutiful_job (
    id             BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    kind           TEXT    NOT NULL,
    queue          TEXT    NOT NULL,
    payload        TEXT    NOT NULL,
    priority       INTEGER NOT NULL CHECK (priority >= 0),
    max_attempts   INTEGER NOT NULL CHECK (max_attempts >= 1),
    run_at         INTEGER CHECK (run_at BETWEEN -62135596800000000 AND 253402300799999999),  -- as Python's clock
    tenant         TEXT    CHECK (tenant NOT IN ('', '*')),  -- which would mean nobody, or everybody
    correlation_id TEXT,
    parent_id      BLOB,
    retry_of       BLOB,
    subject        TEXT,
    created_by     TEXT,
    options        TEXT,
    created_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- For lists by kind, by queue and by both: a list by one of them is merged from its pairs with the other.
CREATE INDEX dutiful_job_line ON dutiful_job (kind, queue, id);
CREATE INDEX dutiful_job_correlation ON dutiful_job (correlation_id, id) WHERE correlation_id IS NOT NULL;
CREATE INDEX dutiful_job_tenant ON dutiful_job (tenant, id) WHERE tenant IS NOT NULL;
CREATE INDEX dutiful_job_parent ON dutiful_job (parent_id) WHERE parent_id IS NOT NULL;

-- The places of a live job --------------------------------------------------------------------------------------------

CREATE TABLE dutiful_ready (
    queue    TEXT    NOT NULL,
    priority INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    job_id   BLOB    NOT NULL,
    attempt  INTEGER NOT NULL DEFAULT 0,
    crashes  INTEGER NOT NULL DEFAULT 0,
    kind     TEXT    NOT NULL,
    tenant   TEXT,
    PRIMARY KEY (queue, priority, seq)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX dutiful_ready_job ON dutiful_ready (job_id);
CREATE INDEX dutiful_ready_suspect ON dutiful_ready (queue, priority, seq) WHERE crashes > 0;
CREATE INDEX dutiful_ready_tenant ON dutiful_ready (tenant, queue, priority, seq) WHERE tenant IS NOT NULL;

-- This one and the next have row numbers, along which they are sampled when there are too many to count.
CREATE TABLE dutiful_scheduled (
    run_at   INTEGER NOT NULL,
    job_id   BLOB    NOT NULL,
    queue    TEXT    NOT NULL,
    priority INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    tenant   TEXT,
    attempt  INTEGER NOT NULL DEFAULT 0,
    crashes  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_at, job_id)
) STRICT;

CREATE UNIQUE INDEX dutiful_scheduled_job ON dutiful_scheduled (job_id);

CREATE TABLE dutiful_blocked (
    job_id   BLOB    NOT NULL PRIMARY KEY,
    gate     TEXT    NOT NULL,
    key      TEXT,
    queue    TEXT    NOT NULL,
    priority INTEGER NOT NULL,
    kind     TEXT    NOT NULL,
    tenant   TEXT,
    attempt  INTEGER NOT NULL DEFAULT 0,
    crashes  INTEGER NOT NULL DEFAULT 0,
    run_at   INTEGER,
    since    INTEGER NOT NULL,
    seq      INTEGER                          -- before a pause or a breaker, its place in line; null: it is not due yet
) STRICT;

CREATE INDEX dutiful_blocked_gate ON dutiful_blocked (gate, key, seq);
CREATE INDEX dutiful_blocked_due ON dutiful_blocked (run_at, job_id) WHERE gate = 'paused' AND seq IS NULL;

CREATE TABLE dutiful_dependency (
    job_id   BLOB NOT NULL,
    needs_id BLOB NOT NULL,
    PRIMARY KEY (job_id, needs_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_dependency_needs ON dutiful_dependency (needs_id);

CREATE TABLE dutiful_lease (
    job_id              BLOB    NOT NULL PRIMARY KEY,
    claim_id            INTEGER NOT NULL,
    worker_id           BLOB    NOT NULL,
    attempt             INTEGER NOT NULL,
    crashes             INTEGER NOT NULL,
    seq                 INTEGER NOT NULL,
    claimed_at          INTEGER NOT NULL,
    expires_at          INTEGER NOT NULL,
    cancel_requested_at INTEGER,
    cancel_reason       TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_lease_expiry ON dutiful_lease (expires_at);

-- What happened -------------------------------------------------------------------------------------------------------

CREATE TABLE dutiful_finished (
    job_id      BLOB    NOT NULL PRIMARY KEY,
    claim_id    INTEGER,
    state       TEXT    NOT NULL CHECK (state IN ('completed', 'completed_with_errors', 'failed', 'cancelled')),
    attempt     INTEGER NOT NULL,
    crashes     INTEGER NOT NULL,
    worker_id   BLOB,
    claimed_at  INTEGER,
    finished_at INTEGER NOT NULL,
    result      TEXT,
    errors      TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_finished_time ON dutiful_finished (finished_at, state);
CREATE INDEX dutiful_finished_unhappy ON dutiful_finished (state, job_id) WHERE state <> 'completed';

CREATE TABLE dutiful_attempt (
    id         INTEGER PRIMARY KEY,
    job_id     BLOB    NOT NULL,
    claim_id   INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    outcome    TEXT    NOT NULL,
    worker_id  BLOB,
    claimed_at INTEGER,
    ended_at   INTEGER NOT NULL,
    next_at    INTEGER,                       -- when it was to be tried again; null: at once
    error      TEXT
) STRICT;

CREATE INDEX dutiful_attempt_job ON dutiful_attempt (job_id);

-- A dead letter outlives its job. What is wide, and never changes, stands apart: people look through the rest.
CREATE TABLE dutiful_dead_letter (
    job_id         BLOB    NOT NULL PRIMARY KEY,
    status         TEXT    NOT NULL DEFAULT 'pending_review'
                   CHECK (status IN ('pending_review', 'acknowledged', 'reprocessing', 'resolved', 'discarded')),
    died_at        INTEGER NOT NULL,
    kind           TEXT    NOT NULL,
    queue          TEXT    NOT NULL,
    tenant         TEXT,
    correlation_id TEXT    NOT NULL,
    unique_key     TEXT,
    created_at     INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    max_attempts   INTEGER NOT NULL,
    error_class    TEXT,
    error_type     TEXT,
    fingerprint    TEXT,
    message        TEXT,
    reviewed_by    TEXT,
    reviewed_at    INTEGER,
    acknowledged_by TEXT,
    acknowledged_at INTEGER,
    closed_at      INTEGER,
    new_job_id     BLOB,
    resolution     TEXT,
    notes          TEXT
) STRICT;

CREATE TABLE dutiful_dead_letter_body (
    job_id  BLOB NOT NULL PRIMARY KEY,
    job     TEXT NOT NULL,
    errors  TEXT NOT NULL,
    history TEXT NOT NULL
) STRICT;

-- One for each way in which people look through them, the newest first.
CREATE INDEX dutiful_dead_letter_time ON dutiful_dead_letter (died_at, job_id);
CREATE INDEX dutiful_dead_letter_status ON dutiful_dead_letter (status, died_at, job_id);
CREATE INDEX dutiful_dead_letter_kind ON dutiful_dead_letter (kind, died_at, job_id);
CREATE INDEX dutiful_dead_letter_tenant ON dutiful_dead_letter (tenant, died_at, job_id) WHERE tenant IS NOT NULL;
CREATE INDEX dutiful_dead_letter_alike ON dutiful_dead_letter (fingerprint, died_at, job_id);
CREATE INDEX dutiful_dead_letter_correlation ON dutiful_dead_letter (correlation_id, died_at, job_id);
CREATE INDEX dutiful_dead_letter_reprocessing ON dutiful_dead_letter (new_job_id, job_id)
    WHERE status = 'reprocessing';
CREATE INDEX dutiful_dead_letter_closed ON dutiful_dead_letter (closed_at) WHERE closed_at IS NOT NULL;

-- Around the jobs -----------------------------------------------------------------------------------------------------

-- An empty tenant is none; an empty kind means across all kinds.
CREATE TABLE dutiful_unique_key (
    tenant     TEXT NOT NULL,
    kind       TEXT NOT NULL,
    key        TEXT NOT NULL,
    scope      TEXT NOT NULL CHECK (scope IN ('queued', 'active', 'window', 'forever')),
    job_id     BLOB NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (tenant, kind, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_unique_key_queued ON dutiful_unique_key (job_id) WHERE scope = 'queued';
CREATE INDEX dutiful_unique_key_active ON dutiful_unique_key (job_id) WHERE scope = 'active';
CREATE INDEX dutiful_unique_key_expiry ON dutiful_unique_key (expires_at) WHERE expires_at IS NOT NULL;

-- Of scope breaker and probing, the name is a kind: its breaker is open, or half-open.
CREATE TABLE dutiful_pause (
    scope  TEXT    NOT NULL CHECK (scope IN ('queue', 'kind', 'lane', 'breaker', 'probing')),
    name   TEXT    NOT NULL,
    since  INTEGER NOT NULL,
    by     TEXT,
    reason TEXT,
    PRIMARY KEY (scope, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_worker (
    id              BLOB    NOT NULL PRIMARY KEY,
    name            TEXT    NOT NULL,
    host            TEXT    NOT NULL,
    pid             INTEGER NOT NULL,
    process_started TEXT,
    started_at      INTEGER NOT NULL,
    seen_at         INTEGER NOT NULL,
    expires_at      INTEGER NOT NULL,
    leading         INTEGER NOT NULL,
    lanes           TEXT    NOT NULL,
    kinds           TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_schedule (
    name        TEXT    NOT NULL PRIMARY KEY,
    kind        TEXT    NOT NULL,
    expression  TEXT    NOT NULL,
    timezone    TEXT    NOT NULL,
    catch_up    TEXT    NOT NULL,
    job         TEXT    NOT NULL,
    next_at     INTEGER NOT NULL,
    last_at     INTEGER,
    last_job_id BLOB,
    enabled     INTEGER NOT NULL DEFAULT 1
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_counter (
    name  TEXT    NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO dutiful_counter (name, value) VALUES ('seq', 0), ('claim', 0);
