-- The queue in the register's own terms: views over the tables of Dutiful in the same file.

DROP VIEW IF EXISTS job_queue_stats;
DROP VIEW IF EXISTS job_queue_health;
DROP VIEW IF EXISTS job_metrics;
DROP VIEW IF EXISTS attempt_metrics;
DROP VIEW IF EXISTS circuit_breakers;
DROP VIEW IF EXISTS dead_letter_jobs;
DROP VIEW IF EXISTS jobs;

-- `failed` has failed and will be tried again, `dead` has failed for good. A job that was cancelled was taken back, so it
-- is not here.
CREATE VIEW jobs AS
WITH place AS (
    SELECT job_id, CASE WHEN attempt + crashes > 0 THEN 'failed' ELSE 'pending' END AS status, attempt, NULL AS since,
           NULL AS run_at, NULL AS started_at, NULL AS finished_at, NULL AS error
    FROM dutiful_ready
    UNION ALL
    SELECT job_id, CASE WHEN attempt + crashes > 0 THEN 'failed' ELSE 'pending' END, attempt, NULL, run_at, NULL, NULL,
           NULL
    FROM dutiful_scheduled
    UNION ALL
    SELECT job_id, CASE WHEN attempt + crashes > 0 THEN 'failed' ELSE 'pending' END, attempt, since, run_at, NULL, NULL,
           NULL
    FROM dutiful_blocked
    UNION ALL
    SELECT job_id, 'processing', attempt, NULL, NULL, claimed_at, NULL, NULL FROM dutiful_lease
    UNION ALL
    SELECT job_id, CASE state WHEN 'failed' THEN 'dead' ELSE 'completed' END, attempt, NULL, NULL, claimed_at,
           finished_at, CASE state WHEN 'failed' THEN errors -> '$[0]' END
    FROM dutiful_finished WHERE state <> 'cancelled'
), latest AS (
    SELECT a.job_id, a.outcome, max(a.id) AS id FROM dutiful_attempt a WHERE a.outcome <> 'refused' GROUP BY a.job_id
), shown AS (
    -- Given back, it waits as if it had not been tried.
    SELECT job_id, CASE WHEN status = 'failed' AND l.outcome = 'released' THEN 'pending' ELSE status END AS status,
           attempt, since, run_at, started_at, finished_at, error
    FROM place LEFT JOIN latest l USING (job_id)
), error AS (
    SELECT a.job_id, a.error, a.ended_at, max(a.id) AS id
    FROM dutiful_attempt a WHERE a.outcome IN ('failed', 'timed_out', 'lost') GROUP BY a.job_id
), changed AS (
    SELECT a.job_id, max(a.ended_at) AS at FROM dutiful_attempt a WHERE a.outcome <> 'refused' GROUP BY a.job_id
), named AS (
    SELECT id, lower(hex(id)) AS hex FROM dutiful_job
), spelt AS (
    SELECT id, substr(hex, 1, 8) || '-' || substr(hex, 9, 4) || '-' || substr(hex, 13, 4) || '-' || substr(hex, 17, 4)
               || '-' || substr(hex, 21) AS text
    FROM named
)
SELECT s.text AS id, j.kind AS type, j.payload, p.status, j.priority, p.attempt AS attempts, j.max_attempts,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(j.run_at, j.created_at) / 1e6, 'unixepoch') AS scheduled_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(p.run_at, j.run_at, j.created_at) / 1e6, 'unixepoch') AS run_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', p.started_at / 1e6, 'unixepoch') AS started_at,
       CASE p.status WHEN 'completed' THEN strftime('%Y-%m-%dT%H:%M:%fZ', p.finished_at / 1e6, 'unixepoch') END
           AS completed_at,
       CASE WHEN p.status IN ('failed', 'dead') THEN coalesce(p.error, e.error) ->> '$.message' END AS error_message,
       coalesce(p.error, e.error) ->> '$.message' AS last_error,
       strftime('%Y-%m-%dT%H:%M:%fZ', CASE WHEN p.error IS NULL THEN e.ended_at ELSE p.finished_at END / 1e6,
                'unixepoch') AS last_error_at,
       coalesce(j.correlation_id, s.text) AS correlation_id, o.text AS parent_job_id, j.created_by,
       j.options ->> '$.unique' AS dedup_key,
       strftime('%Y-%m-%dT%H:%M:%fZ', j.created_at / 1e6, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', max(j.created_at, coalesce(c.at, 0), coalesce(p.since, 0),
                                          coalesce(p.started_at, 0), coalesce(p.finished_at, 0)) / 1e6, 'unixepoch')
           AS updated_at
FROM dutiful_job j
JOIN shown p ON p.job_id = j.id
JOIN spelt s ON s.id = j.id
LEFT JOIN spelt o ON o.id = j.parent_id
LEFT JOIN error e ON e.job_id = j.id
LEFT JOIN changed c ON c.job_id = j.id;

CREATE VIEW dead_letter_jobs AS
SELECT b.job ->> '$.id' AS id,
       json_set(b.job, '$.type', d.kind, '$.correlation_id', d.correlation_id) AS original_job,
       coalesce(d.message, '') AS error_message,
       json_object('errors', json(b.errors), 'history', json(b.history)) AS error_details,
       strftime('%Y-%m-%dT%H:%M:%fZ', d.died_at / 1e6, 'unixepoch') AS died_at,
       d.acknowledged_at IS NOT NULL AS acknowledged, d.acknowledged_by,
       strftime('%Y-%m-%dT%H:%M:%fZ', d.acknowledged_at / 1e6, 'unixepoch') AS acknowledged_at
FROM dutiful_dead_letter d
JOIN dutiful_dead_letter_body b ON b.job_id = d.job_id;

CREATE VIEW circuit_breakers AS
SELECT b.name AS service_name, b.state, b.failures AS failure_count, b.successes AS success_count,
       strftime('%Y-%m-%dT%H:%M:%fZ', b.last_failure_at / 1e6, 'unixepoch') AS last_failure_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', b.opened_at / 1e6, 'unixepoch') AS opened_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', b.half_opened_at / 1e6, 'unixepoch') AS half_opened_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', b.updated_at / 1e6, 'unixepoch') AS updated_at
FROM dutiful_breaker b;

-- One row for each attempt that ended; only a job's first one says how long it had waited.
CREATE VIEW attempt_metrics AS
WITH run AS (
    SELECT job_id, claimed_at, finished_at AS ended_at, attempt,
           CASE state WHEN 'failed' THEN 'dead' ELSE 'completed' END AS status
    FROM dutiful_finished WHERE claimed_at IS NOT NULL AND state <> 'cancelled'
    UNION ALL
    SELECT job_id, claimed_at, ended_at, attempt, 'failed'
    FROM dutiful_attempt WHERE claimed_at IS NOT NULL AND outcome IN ('failed', 'timed_out', 'lost')
)
SELECT r.job_id, j.kind AS job_type, r.status, (r.ended_at - r.claimed_at) / 1000 AS duration_ms,
       CASE r.attempt WHEN 1 THEN max((r.claimed_at - max(j.created_at, coalesce(j.run_at, 0))) / 1000, 0) END
           AS queue_time_ms,
       strftime('%Y-%m-%dT%H:%M:%fZ', r.ended_at / 1e6, 'unixepoch') AS recorded_at
FROM run r
JOIN dutiful_job j ON j.id = r.job_id;

-- What is known of jobs that were deleted, for {days} days.
CREATE TABLE IF NOT EXISTS kept_metrics (
    job_type TEXT NOT NULL, status TEXT NOT NULL, duration_ms INTEGER, queue_time_ms INTEGER, recorded_at TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS kept_metrics_time ON kept_metrics (recorded_at);

-- A job's finished row is deleted first, so that the rest is still there. Rows come only here, so here old ones go, in
-- bounded steps.
DROP TRIGGER IF EXISTS sports_keep_metrics;
CREATE TRIGGER sports_keep_metrics BEFORE DELETE ON dutiful_finished BEGIN
    INSERT INTO kept_metrics (job_type, status, duration_ms, queue_time_ms, recorded_at)
    SELECT job_type, status, duration_ms, queue_time_ms, recorded_at FROM attempt_metrics WHERE job_id = OLD.job_id;
    DELETE FROM kept_metrics WHERE rowid IN (
        SELECT rowid FROM kept_metrics WHERE recorded_at < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-{days} days')
        ORDER BY recorded_at LIMIT 100);
END;

CREATE VIEW job_metrics AS
SELECT job_type, status, duration_ms, queue_time_ms, recorded_at FROM attempt_metrics
UNION ALL
SELECT job_type, status, duration_ms, queue_time_ms, recorded_at FROM kept_metrics;

CREATE VIEW job_queue_health AS
SELECT type, status, count(*) AS jobs, min(created_at) AS oldest, max(created_at) AS newest,
       round(avg(attempts), 1) AS mean_attempts
FROM jobs
GROUP BY type, status;

CREATE VIEW job_queue_stats AS
SELECT count(*) FILTER (WHERE status = 'pending') AS pending, count(*) FILTER (WHERE status = 'processing') AS processing,
       count(*) FILTER (WHERE status = 'failed') AS failed,
       CAST(coalesce((julianday('now') - julianday(min(run_at) FILTER (
           WHERE status = 'pending' AND run_at <= strftime('%Y-%m-%dT%H:%M:%fZ', 'now')))) * 1440, 0) AS INTEGER)
           AS oldest_pending_minutes
FROM jobs;
