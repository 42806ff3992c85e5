-- What people do, and who may: runs over many dead letters, the audit trail, API tokens.

CREATE TABLE dutiful_bulk_run (
    id         BLOB    NOT NULL PRIMARY KEY,
    act        TEXT    NOT NULL,
    filter     TEXT    NOT NULL,
    by         TEXT    NOT NULL,
    role       TEXT,
    origin     TEXT    NOT NULL,
    reason     TEXT,
    created_at INTEGER NOT NULL,
    total      INTEGER NOT NULL,
    done       INTEGER NOT NULL DEFAULT 0,
    skipped    INTEGER NOT NULL DEFAULT 0,
    state      TEXT    NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'stopped')),
    cursor_at  INTEGER,
    cursor_id  BLOB,
    ended_at   INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_bulk_run_time ON dutiful_bulk_run (created_at, id);
CREATE INDEX dutiful_bulk_run_running ON dutiful_bulk_run (created_at, id) WHERE state = 'running';
CREATE INDEX dutiful_bulk_run_ended ON dutiful_bulk_run (ended_at) WHERE ended_at IS NOT NULL;

-- Audit ---------------------------------------------------------------------------------------------------------------

-- The triggers stop mistakes, not the owner of the file, who can drop them; that the trail was changed is told by its
-- seals, as long as somebody has noted a hash of them elsewhere.

CREATE TABLE dutiful_audit_event (
    id        BLOB    NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    act       BLOB    NOT NULL,
    at        INTEGER NOT NULL,
    principal TEXT    NOT NULL,
    role      TEXT    CHECK (role IN ('viewer', 'staff', 'manager', 'admin')),
    origin    TEXT    NOT NULL CHECK (origin IN ('cli', 'api', 'python', 'service', 'sql')),
    action    TEXT    NOT NULL,
    outcome   TEXT    NOT NULL CHECK (outcome IN ('requested', 'succeeded', 'failed', 'refused')),
    target    TEXT,
    tenant    TEXT,
    reason    TEXT,
    before    TEXT,
    after     TEXT,
    address   TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_audit_event_act ON dutiful_audit_event (act, id);
CREATE INDEX dutiful_audit_event_action ON dutiful_audit_event (action, id);
CREATE INDEX dutiful_audit_event_principal ON dutiful_audit_event (principal, id);
CREATE INDEX dutiful_audit_event_target ON dutiful_audit_event (target, id) WHERE target IS NOT NULL;
CREATE INDEX dutiful_audit_event_tenant ON dutiful_audit_event (tenant, id) WHERE tenant IS NOT NULL;

-- The events that wait for their seals.
CREATE TABLE dutiful_audit_unsealed (
    event_id BLOB NOT NULL PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_audit_seal (
    seq      INTEGER NOT NULL PRIMARY KEY,
    event_id BLOB    NOT NULL UNIQUE,
    hash     TEXT    NOT NULL
) STRICT;

-- One row at most: the last seal of the part of the chain that retention has deleted.
CREATE TABLE dutiful_audit_anchor (
    one  INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    seq  INTEGER NOT NULL,
    hash TEXT    NOT NULL,
    at   INTEGER NOT NULL
) STRICT;

-- One row at most: how long events are kept, in microseconds. Without it, or NULL: for good.
CREATE TABLE dutiful_audit_policy (
    one  INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    keep INTEGER CHECK (keep > 0)
) STRICT;

-- Ignored, so that an append can be repeated; and REPLACE, which fires no trigger for what it deletes, finds nothing to
-- replace.
CREATE TRIGGER dutiful_audit_event_once BEFORE INSERT ON dutiful_audit_event
WHEN EXISTS (SELECT 1 FROM dutiful_audit_event WHERE id = NEW.id)
BEGIN
    SELECT RAISE(IGNORE);
END;

CREATE TRIGGER dutiful_audit_event_waits AFTER INSERT ON dutiful_audit_event
BEGIN
    INSERT INTO dutiful_audit_unsealed (event_id) VALUES (NEW.id);
END;

CREATE TRIGGER dutiful_audit_event_stays BEFORE UPDATE ON dutiful_audit_event
BEGIN
    SELECT RAISE(ABORT, 'an audit event cannot be changed');
END;

CREATE TRIGGER dutiful_audit_event_kept BEFORE DELETE ON dutiful_audit_event
WHEN NOT EXISTS (
    SELECT 1 FROM dutiful_audit_seal s, dutiful_audit_anchor a WHERE s.event_id = OLD.id AND s.seq <= a.seq
)
BEGIN
    SELECT RAISE(ABORT, 'an audit event cannot be deleted, but by retention');
END;

CREATE TRIGGER dutiful_audit_seal_follows BEFORE INSERT ON dutiful_audit_seal
WHEN NEW.seq <> 1 + coalesce(
         (SELECT max(seq) FROM dutiful_audit_seal), (SELECT seq FROM dutiful_audit_anchor), 0)
  OR EXISTS (SELECT 1 FROM dutiful_audit_seal WHERE event_id = NEW.event_id)
BEGIN
    SELECT RAISE(ABORT, 'a seal follows the last one, and seals an event that has none');
END;

CREATE TRIGGER dutiful_audit_seal_stays BEFORE UPDATE ON dutiful_audit_seal
BEGIN
    SELECT RAISE(ABORT, 'a seal of the audit trail cannot be changed');
END;

CREATE TRIGGER dutiful_audit_seal_kept BEFORE DELETE ON dutiful_audit_seal
WHEN NOT EXISTS (SELECT 1 FROM dutiful_audit_anchor WHERE seq >= OLD.seq)
BEGIN
    SELECT RAISE(ABORT, 'a seal of the audit trail cannot be deleted, but by retention');
END;

CREATE TRIGGER dutiful_audit_anchor_moves BEFORE INSERT ON dutiful_audit_anchor
WHEN EXISTS (SELECT 1 FROM dutiful_audit_anchor WHERE seq >= NEW.seq)
  OR NOT EXISTS (SELECT 1 FROM dutiful_audit_seal WHERE seq = NEW.seq AND hash = NEW.hash)
BEGIN
    SELECT RAISE(ABORT, 'the anchor of the audit trail moves forward only, to one of its seals');
END;

CREATE TRIGGER dutiful_audit_anchor_moves_on BEFORE UPDATE ON dutiful_audit_anchor
WHEN OLD.seq >= NEW.seq
  OR NOT EXISTS (SELECT 1 FROM dutiful_audit_seal WHERE seq = NEW.seq AND hash = NEW.hash)
BEGIN
    SELECT RAISE(ABORT, 'the anchor of the audit trail moves forward only, to one of its seals');
END;

CREATE TRIGGER dutiful_audit_anchor_stays BEFORE DELETE ON dutiful_audit_anchor
BEGIN
    SELECT RAISE(ABORT, 'the anchor of the audit trail cannot be deleted');
END;

-- Access --------------------------------------------------------------------------------------------------------------

CREATE TABLE dutiful_api_token (
    id           BLOB    NOT NULL PRIMARY KEY,
    hash         TEXT    NOT NULL UNIQUE,
    name         TEXT    NOT NULL,
    role         TEXT    NOT NULL,
    tenant       TEXT,
    created_at   INTEGER NOT NULL,
    created_by   TEXT    NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER,
    last_used_at INTEGER
) STRICT, WITHOUT ROWID;
