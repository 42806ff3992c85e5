-- What the firms own. It is the platform's own database: Dutiful knows nothing of it.

CREATE TABLE IF NOT EXISTS users (
    id         INTEGER PRIMARY KEY,
    firm_id    INTEGER NOT NULL,
    name       TEXT    NOT NULL UNIQUE,
    password   TEXT    NOT NULL,            -- salted and hashed
    is_staff   INTEGER NOT NULL,
    is_manager INTEGER NOT NULL
);

-- The mailboxes and calendars, on servers elsewhere, that a firm has connected.
CREATE TABLE IF NOT EXISTS connections (id INTEGER PRIMARY KEY, firm_id INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS calendars (id INTEGER PRIMARY KEY, firm_id INTEGER NOT NULL);

CREATE TABLE IF NOT EXISTS clients (
    id      INTEGER PRIMARY KEY,
    firm_id INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    address TEXT    NOT NULL,
    UNIQUE (firm_id, address)
);

CREATE TABLE IF NOT EXISTS messages (
    id            INTEGER PRIMARY KEY,
    firm_id       INTEGER NOT NULL,
    connection_id INTEGER NOT NULL,
    external_id   TEXT    NOT NULL,
    maildir_key   TEXT    NOT NULL,
    sender        TEXT,
    subject       TEXT,
    client_id     INTEGER REFERENCES clients,
    UNIQUE (firm_id, connection_id, external_id)
);

CREATE TABLE IF NOT EXISTS appointments (
    id          INTEGER PRIMARY KEY,
    firm_id     INTEGER NOT NULL,
    calendar_id INTEGER NOT NULL,
    uid         TEXT    NOT NULL,
    starts_at   TEXT    NOT NULL,
    title       TEXT    NOT NULL,
    pushed      INTEGER NOT NULL DEFAULT 0,
    UNIQUE (firm_id, calendar_id, uid)
);

CREATE TABLE IF NOT EXISTS engagements (
    id        INTEGER PRIMARY KEY,
    firm_id   INTEGER NOT NULL,
    title     TEXT    NOT NULL,
    starts_on TEXT    NOT NULL
);

CREATE TABLE IF NOT EXISTS periods (
    id            INTEGER PRIMARY KEY,
    firm_id       INTEGER NOT NULL,
    engagement_id INTEGER NOT NULL REFERENCES engagements,
    month         TEXT    NOT NULL,
    UNIQUE (firm_id, engagement_id, month)
);

CREATE TABLE IF NOT EXISTS works (
    id        INTEGER PRIMARY KEY,
    firm_id   INTEGER NOT NULL,
    period_id INTEGER NOT NULL UNIQUE REFERENCES periods,
    title     TEXT    NOT NULL,
    closed_on TEXT
);

CREATE TABLE IF NOT EXISTS executions (
    id        INTEGER PRIMARY KEY,
    firm_id   INTEGER NOT NULL,
    client_id INTEGER NOT NULL REFERENCES clients,
    done      INTEGER NOT NULL DEFAULT 0   -- steps
);

CREATE TABLE IF NOT EXISTS documents (
    id      INTEGER PRIMARY KEY,
    firm_id INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    state   TEXT    NOT NULL DEFAULT 'new',  -- clean, infected
    sort    TEXT
);

CREATE TABLE IF NOT EXISTS notifications (
    id      INTEGER PRIMARY KEY,
    firm_id INTEGER NOT NULL,
    address TEXT    NOT NULL,
    subject TEXT    NOT NULL,
    body   TEXT    NOT NULL,
    sent    INTEGER NOT NULL DEFAULT 0,
    UNIQUE (firm_id, address, subject)
);

CREATE TABLE IF NOT EXISTS inbox (
    id              INTEGER PRIMARY KEY,
    firm_id         INTEGER NOT NULL,
    notification_id INTEGER NOT NULL UNIQUE REFERENCES notifications,
    body           TEXT    NOT NULL
);

CREATE TABLE IF NOT EXISTS sessions (
    id         INTEGER PRIMARY KEY,
    firm_id    INTEGER NOT NULL,
    expires_at TEXT    NOT NULL
);

CREATE TABLE IF NOT EXISTS exports (
    id      INTEGER PRIMARY KEY,
    firm_id INTEGER NOT NULL,
    file    TEXT,
    sha256  TEXT
);
