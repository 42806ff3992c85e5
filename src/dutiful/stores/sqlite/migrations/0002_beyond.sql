-- What a running job tells of itself, and who else is told: phases, progress, locks, webhooks, watchers, retention.

-- How far a job has come ----------------------------------------------------------------------------------------------

CREATE TABLE dutiful_phase (
    job_id     BLOB    NOT NULL,
    name       TEXT    NOT NULL,
    position   INTEGER NOT NULL,
    state      TEXT    NOT NULL
               CHECK (state IN ('running', 'completed', 'skipped', 'failed', 'interrupted', 'cancelled')),
    attempt    INTEGER NOT NULL,
    started_at INTEGER,
    ended_at   INTEGER,
    result     TEXT,
    error      TEXT,
    PRIMARY KEY (job_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_progress (
    job_id     BLOB    NOT NULL PRIMARY KEY,
    phase      TEXT,
    percent    REAL,
    overall    INTEGER,
    message    TEXT,
    items      TEXT,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- How the worker keeps its locks: those of one fleet must agree.
ALTER TABLE dutiful_worker ADD COLUMN locks TEXT;

-- Named locks: a row counts for as long as its claim's lease ----------------------------------------------------------

-- A key is JSON, so that 7 and "7" are two names.
CREATE TABLE dutiful_lock (
    namespace TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    job_id    BLOB    NOT NULL,
    claim_id  INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_lock_wait (
    namespace TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    seq       INTEGER NOT NULL,
    job_id    BLOB    NOT NULL,
    claim_id  INTEGER NOT NULL,
    PRIMARY KEY (namespace, key, seq)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX dutiful_lock_wait_claim ON dutiful_lock_wait (namespace, key, job_id, claim_id);

INSERT INTO dutiful_counter (name, value) VALUES ('lock_wait', 0);

-- Webhooks ------------------------------------------------------------------------------------------------------------

CREATE TABLE dutiful_webhook (
    name        TEXT    NOT NULL PRIMARY KEY,
    url         TEXT    NOT NULL,
    kinds       TEXT,
    states      TEXT    NOT NULL,
    alerts      INTEGER NOT NULL DEFAULT 0,
    enabled     INTEGER NOT NULL,
    disabled_at INTEGER,
    reason      TEXT
) STRICT, WITHOUT ROWID;

-- A message outlives its job; without one, it is about an alert.
CREATE TABLE dutiful_webhook_post (
    id         BLOB    NOT NULL PRIMARY KEY,
    job_id     BLOB,
    webhook    TEXT,
    url        TEXT    NOT NULL,
    event      TEXT    NOT NULL,
    data       TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
    attempts   INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    next_at    INTEGER,
    ended_at   INTEGER,
    updated_at INTEGER NOT NULL,
    status     INTEGER,
    error      TEXT,
    tenant     TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_webhook_post_due ON dutiful_webhook_post (next_at) WHERE state = 'pending';
CREATE INDEX dutiful_webhook_post_ended ON dutiful_webhook_post (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX dutiful_webhook_post_job ON dutiful_webhook_post (job_id);

-- Watchers and retention ----------------------------------------------------------------------------------------------

CREATE TABLE dutiful_listener (
    id         BLOB    NOT NULL PRIMARY KEY,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_attempt_time ON dutiful_attempt (ended_at);

CREATE TABLE dutiful_stale (
    job_id   BLOB    NOT NULL PRIMARY KEY,
    stale_at INTEGER NOT NULL,
    told_at  INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_stale_told ON dutiful_stale (told_at, stale_at);

CREATE TABLE dutiful_tombstone (
    job_id     BLOB    NOT NULL PRIMARY KEY,
    job        TEXT    NOT NULL,
    deleted_at INTEGER NOT NULL,
    told_at    INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_tombstone_told ON dutiful_tombstone (told_at, deleted_at);
