-- name: limit_rules
SELECT name, most, per, burst, fixed, feedback, chosen FROM dutiful_limit_rule ORDER BY name;

-- name: limit_kinds
SELECT kind, name, field FROM dutiful_limit_kind ORDER BY kind, name;

-- name: put_limit_rule
INSERT INTO dutiful_limit_rule (name, most, per, burst, fixed, feedback) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET most = excluded.most, per = excluded.per, burst = excluded.burst, fixed = excluded.fixed,
    feedback = excluded.feedback;

-- name: put_limit_kind
INSERT INTO dutiful_limit_kind (kind, name, field) VALUES (?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET field = excluded.field;

-- name: delete_limit_kind
DELETE FROM dutiful_limit_kind WHERE kind = ? AND name = ?;

-- name: limit_a_kind
INSERT INTO dutiful_pause (scope, name, since) VALUES ('limited', ?, ?) ON CONFLICT DO NOTHING;

-- name: unlimit_a_kind
DELETE FROM dutiful_pause WHERE scope = 'limited' AND name = ?;

-- name: wait_for_no_limit
-- What waited for a limit waits for its kind, which may be paused.
UPDATE dutiful_blocked SET gate = 'paused', key = kind
WHERE job_id IN (SELECT job_id FROM dutiful_blocked WHERE gate = 'limit' AND kind = ? LIMIT ?);

-- name: delete_unused_limits
DELETE FROM dutiful_limit_rule WHERE name NOT IN (SELECT name FROM dutiful_limit_kind);

-- name: delete_slots_of_no_limit
DELETE FROM dutiful_limit_slot WHERE name NOT IN (SELECT name FROM dutiful_limit_rule);

-- name: delete_starts_of_limit
DELETE FROM dutiful_limit_slot WHERE name = ? AND started_at IS NOT NULL;

-- name: delete_open_slots_of_ready
DELETE FROM dutiful_limit_slot
WHERE started_at IS NULL AND job_id IN (SELECT r.job_id FROM dutiful_ready r WHERE r.kind IN (SELECT value FROM json_each(:kinds)));

-- name: delete_holds_of_no_limit
DELETE FROM dutiful_limit_hold WHERE name NOT IN (SELECT name FROM dutiful_limit_rule WHERE feedback);

-- name: put_hold
INSERT INTO dutiful_limit_hold (name, key, until) VALUES (?, ?, ?)
ON CONFLICT (name, key) DO UPDATE SET until = max(until, excluded.until);

-- name: key_is_held
SELECT 1 FROM dutiful_limit_hold WHERE name = ? AND key = ? AND until > ?;

-- name: held_keys
SELECT name, key, until FROM dutiful_limit_hold WHERE until > ?;

-- name: first_hold_over
SELECT min(until) FROM dutiful_limit_hold;

-- name: end_holds_until
DELETE FROM dutiful_limit_hold WHERE until <= ? RETURNING name, key;

-- name: end_holds
DELETE FROM dutiful_limit_hold WHERE name = ?;

-- name: keys_of_admitted
SELECT DISTINCT key FROM dutiful_limit_slot WHERE name = ? AND started_at IS NULL;

-- name: block_ready_with_slot
INSERT INTO dutiful_blocked (job_id, gate, key, since, seq, {carried_columns})
SELECT job_id, 'limit', :gate, :now, seq, {carried_columns} FROM dutiful_ready
WHERE job_id IN (SELECT s.job_id FROM dutiful_limit_slot s WHERE s.name = :name AND s.key = :key AND s.started_at IS NULL)
  AND kind IN (SELECT k.kind FROM dutiful_limit_kind k WHERE k.name = :name)
ON CONFLICT DO NOTHING;

-- name: delete_blocked_ready
DELETE FROM dutiful_ready
WHERE job_id IN (SELECT s.job_id FROM dutiful_limit_slot s WHERE s.name = :name AND s.key = :key AND s.started_at IS NULL)
  AND EXISTS (SELECT 1 FROM dutiful_blocked b WHERE b.job_id = dutiful_ready.job_id);

-- name: block_ready_of_kinds
INSERT INTO dutiful_blocked (job_id, gate, key, since, seq, {carried_columns})
SELECT job_id, 'paused', kind, :now, seq, {carried_columns} FROM dutiful_ready
WHERE kind IN (SELECT value FROM json_each(:kinds));

-- name: delete_ready_of_kinds
DELETE FROM dutiful_ready WHERE kind IN (SELECT value FROM json_each(:kinds));

-- name: running_of_kind
SELECT l.job_id, l.claimed_at FROM dutiful_lease l
CROSS JOIN dutiful_job j ON j.id = l.job_id
WHERE j.kind = ?;

-- name: limited_job
SELECT kind, payload, tenant, options FROM dutiful_job WHERE id = ?;

-- name: has_slot
SELECT 1 FROM dutiful_limit_slot WHERE job_id = ? LIMIT 1;

-- name: has_slot_of
SELECT 1 FROM dutiful_limit_slot WHERE job_id = ? AND name = ? LIMIT 1;

-- name: put_slot
INSERT INTO dutiful_limit_slot (job_id, name, key, admitted_at, started_at) VALUES (?, ?, ?, ?, ?);

-- name: count_slots_since
SELECT count(*) FROM dutiful_limit_slot WHERE name = ? AND key = ? AND (started_at IS NULL OR started_at > ?);

-- name: wait_for_limit
UPDATE dutiful_blocked SET gate = 'limit', key = :gate, seq = coalesce(seq, run_at, :now)
WHERE job_id = :job AND (gate <> 'limit' OR key <> :gate);

-- name: open_slots
-- Slots of jobs that are not ready, each with whether its job runs, and when it was last claimed.
SELECT s.id, s.name, s.key, s.admitted_at, l.job_id IS NOT NULL,
       coalesce(l.claimed_at,
                (SELECT f.claimed_at FROM dutiful_finished f WHERE f.job_id = s.job_id),
                (SELECT max(a.claimed_at) FROM dutiful_attempt a
                 WHERE a.job_id = s.job_id AND a.outcome <> 'released'))
FROM dutiful_limit_slot s
LEFT JOIN dutiful_lease l ON l.job_id = s.job_id
WHERE s.started_at IS NULL AND NOT EXISTS (SELECT 1 FROM dutiful_ready r WHERE r.job_id = s.job_id);

-- name: open_slots_of_job
SELECT s.id, s.name, s.key, s.admitted_at, l.job_id IS NOT NULL,
       coalesce(l.claimed_at,
                (SELECT f.claimed_at FROM dutiful_finished f WHERE f.job_id = s.job_id),
                (SELECT max(a.claimed_at) FROM dutiful_attempt a
                 WHERE a.job_id = s.job_id AND a.outcome <> 'released'))
FROM dutiful_limit_slot s
LEFT JOIN dutiful_lease l ON l.job_id = s.job_id
WHERE s.job_id = ? AND s.started_at IS NULL AND NOT EXISTS (SELECT 1 FROM dutiful_ready r WHERE r.job_id = s.job_id);

-- name: start_slot
UPDATE dutiful_limit_slot SET started_at = ? WHERE id = ?;

-- name: count_start
UPDATE dutiful_limit_slot SET started_at = ?
WHERE job_id = ? AND started_at IS NULL AND admitted_at <= ?
  AND EXISTS (SELECT 1 FROM dutiful_limit_rule r WHERE r.name = dutiful_limit_slot.name AND r.per IS NOT NULL);

-- name: delete_slot
DELETE FROM dutiful_limit_slot WHERE id = ?;

-- name: slots_over
SELECT id, key FROM dutiful_limit_slot WHERE name = ? AND started_at <= ?;

-- name: first_start_since
SELECT min(started_at) FROM dutiful_limit_slot WHERE name = ? AND started_at > ?;

-- name: next_gate
SELECT min(key) FROM dutiful_blocked WHERE gate = 'limit' AND key > ?;

-- name: any_at_limit
SELECT 1 FROM dutiful_blocked WHERE gate = 'limit' LIMIT 1;

-- name: first_at_limit
SELECT job_id FROM dutiful_blocked
WHERE gate = 'limit' AND key = ? AND kind NOT IN (SELECT value FROM json_each(?))
ORDER BY priority, seq, job_id
LIMIT ?;

-- name: due_of_limited_kind
SELECT job_id FROM dutiful_blocked WHERE gate = 'paused' AND key = ? AND seq IS NOT NULL ORDER BY seq LIMIT ?;

-- name: use_of_limit
SELECT s.key, count(*)
FROM dutiful_limit_slot s
WHERE s.name = ?1
  AND (s.started_at > ?2
       OR (s.started_at IS NULL
           AND (EXISTS (SELECT 1 FROM dutiful_lease l WHERE l.job_id = s.job_id)
                OR EXISTS (SELECT 1 FROM dutiful_ready r WHERE r.job_id = s.job_id))))
GROUP BY s.key;

-- name: waits_for_limits
SELECT key, count(*) FROM dutiful_blocked WHERE gate = 'limit' GROUP BY key;

-- name: choose_limit
UPDATE dutiful_limit_rule SET chosen = ? WHERE name = ?;
