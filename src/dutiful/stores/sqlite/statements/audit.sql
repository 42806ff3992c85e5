-- name: insert_audit_event
-- A trigger ignores an event whose id exists.
INSERT INTO dutiful_audit_event ({audit_event_columns}) VALUES ({audit_event_values});

-- name: select_audit_events
SELECT {audit_event_columns} FROM dutiful_audit_event;

-- name: unsealed_events
SELECT {audit_event_columns} FROM dutiful_audit_unsealed u
CROSS JOIN dutiful_audit_event e ON e.id = u.event_id
ORDER BY u.event_id LIMIT ?;

-- name: audit_head
SELECT seq, event_id, hash FROM dutiful_audit_seal ORDER BY seq DESC LIMIT 1;

-- name: audit_anchor
SELECT seq, hash, at, keep, trimmed_at FROM dutiful_audit_anchor;

-- name: seal_of_event
SELECT 1 FROM dutiful_audit_seal WHERE event_id = ?;

-- name: insert_seal
INSERT INTO dutiful_audit_seal (seq, event_id, hash) VALUES (?, ?, ?);

-- name: event_is_sealed
DELETE FROM dutiful_audit_unsealed WHERE event_id = ?;

-- name: sealed_events
SELECT s.seq, s.event_id, s.hash, {audit_event_columns} FROM dutiful_audit_seal s
LEFT JOIN dutiful_audit_event e ON e.id = s.event_id
WHERE s.seq > ?
ORDER BY s.seq LIMIT ?;

-- name: oldest_sealed
-- From the beginning of the chain; an event that was deleted by hand has no time, and is never old.
SELECT s.seq, s.event_id, s.hash, e.at FROM dutiful_audit_seal s
LEFT JOIN dutiful_audit_event e ON e.id = s.event_id
ORDER BY s.seq LIMIT ?;

-- name: audit_retention
SELECT keep FROM dutiful_audit_policy;

-- name: set_audit_retention
INSERT INTO dutiful_audit_policy (one, keep) VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET keep = excluded.keep;

-- name: put_anchor
INSERT INTO dutiful_audit_anchor (one, seq, hash, at, keep, trimmed_at) VALUES (1, :seq, :hash, :at, :keep, :trimmed_at)
ON CONFLICT (one) DO UPDATE SET seq = :seq, hash = :hash, at = :at, keep = :keep, trimmed_at = :trimmed_at;

-- name: delete_audit_event
DELETE FROM dutiful_audit_event WHERE id = ?;

-- name: delete_seals
DELETE FROM dutiful_audit_seal WHERE seq <= ?;

-- name: audit_strays
SELECT e.id, 0 FROM dutiful_audit_event e
WHERE NOT EXISTS (SELECT 1 FROM dutiful_audit_seal s WHERE s.event_id = e.id)
  AND NOT EXISTS (SELECT 1 FROM dutiful_audit_unsealed u WHERE u.event_id = e.id)
UNION ALL
SELECT u.event_id, 1
FROM dutiful_audit_unsealed u
WHERE NOT EXISTS (SELECT 1 FROM dutiful_audit_event e WHERE e.id = u.event_id)
LIMIT ?;
