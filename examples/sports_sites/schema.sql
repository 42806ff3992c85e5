-- The register's own data; places are in metres east and north.

CREATE TABLE IF NOT EXISTS site (
    lipas_id   INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    east       INTEGER NOT NULL,
    north      INTEGER NOT NULL,
    elevation  REAL,
    diversity  REAL,
    population INTEGER
) STRICT;

CREATE TABLE IF NOT EXISTS reminder (
    id          INTEGER PRIMARY KEY,
    lipas_id    INTEGER NOT NULL REFERENCES site (lipas_id),
    address     TEXT    NOT NULL,
    due_at      TEXT    NOT NULL,
    produced_at TEXT
) STRICT;
