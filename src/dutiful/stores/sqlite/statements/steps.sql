-- name: steps
SELECT {step_columns} FROM dutiful_step WHERE job_id = ? ORDER BY position, name;

-- name: steps_without_results
SELECT name, position, kind, state, code, fingerprint, started_at, ended_at, due_at, event, key,
       length(CAST(result AS BLOB))
FROM dutiful_step WHERE job_id = ? ORDER BY position, name;

-- name: step
SELECT {step_columns} FROM dutiful_step WHERE job_id = ? AND name = ?;

-- name: put_step
INSERT INTO dutiful_step
       (job_id, name, position, kind, state, code, fingerprint, started_at, ended_at, result)
VALUES (?1,     ?2,   ?3,       'call', 'done', ?4, ?5,         ?6,         ?7,       ?8)
ON CONFLICT (job_id, name) DO NOTHING;

-- name: begin_wait
INSERT INTO dutiful_step
       (job_id, name, position, kind, state, code, fingerprint, started_at, due_at, event, key, of_tenant)
SELECT :job_id, :name, :position, :kind, 'waiting', :code, :fingerprint, :now, :due_at, :event, :key,
       CASE WHEN :event IS NOT NULL THEN coalesce(j.tenant, '') END
FROM dutiful_job j WHERE j.id = :job_id
ON CONFLICT (job_id, name) DO NOTHING;

-- name: event_for_step
-- The first that the job has not got yet.
SELECT e.seq
FROM dutiful_step s
CROSS JOIN dutiful_sent_event e ON e.name = s.event AND e.key = s.key
WHERE s.job_id = :job_id AND s.name = :name AND s.state = 'waiting' AND s.event IS NOT NULL
  AND coalesce(e.tenant, '') = s.of_tenant AND e.expires_at > :now
  AND NOT EXISTS (SELECT 1 FROM dutiful_step g WHERE g.job_id = s.job_id AND g.received = e.seq)
ORDER BY e.seq LIMIT 1;

-- name: end_wait
UPDATE dutiful_step
SET state = :state, ended_at = :now, received = :seq, result = (SELECT data FROM dutiful_sent_event WHERE seq = :seq)
WHERE job_id = :job_id AND name = :name AND state = 'waiting';

-- name: waiting_step
SELECT event, key, due_at FROM dutiful_step WHERE job_id = ? AND name = ? AND state = 'waiting';

-- name: send_event
INSERT INTO dutiful_sent_event (id, name, key, tenant, by, sent_at, expires_at, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING;

-- name: undelivered_events
SELECT seq, name, key, tenant FROM dutiful_sent_event WHERE delivered = 0 ORDER BY seq LIMIT ?;

-- name: steps_waiting_for
SELECT s.job_id, s.name FROM dutiful_step s
WHERE s.state = 'waiting' AND s.event = :event AND s.key = :key AND s.of_tenant = :tenant
  AND NOT EXISTS (SELECT 1 FROM dutiful_step g WHERE g.job_id = s.job_id AND g.received = :seq)
LIMIT :limit;

-- name: mark_delivered
UPDATE dutiful_sent_event SET delivered = 1 WHERE seq = ?;

-- name: waits_over
SELECT job_id FROM dutiful_blocked WHERE gate = 'event' AND run_at <= ? ORDER BY run_at LIMIT ?;

-- name: delete_expired_events
DELETE FROM dutiful_sent_event WHERE seq IN (
    SELECT seq FROM dutiful_sent_event WHERE expires_at <= ? AND delivered = 1 LIMIT ?
);
