-- name: create_meta
CREATE TABLE IF NOT EXISTS dutiful_meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

-- name: create_migration
CREATE TABLE IF NOT EXISTS dutiful_migration (
    name TEXT NOT NULL PRIMARY KEY, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- name: has_meta
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'dutiful_meta';

-- name: get_meta
SELECT value FROM dutiful_meta WHERE key = ?;

-- name: put_meta
INSERT INTO dutiful_meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: applied_migrations
SELECT name, checksum FROM dutiful_migration ORDER BY name;

-- name: record_migration
INSERT INTO dutiful_migration (name, checksum, applied_at) VALUES (?, ?, ?);
