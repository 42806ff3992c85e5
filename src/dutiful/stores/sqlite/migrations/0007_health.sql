-- Views for people who know SQL. Times are text in UTC, lengths are in the unit of their names, ids are hexadecimal.

-- Every job that has ended, with how long it ran the last time, and how long it had been due when it was claimed for its
-- first attempt. As in the metrics, a claim that was snoozed is none; a job that was made due before its time waited for
-- 0.
CREATE VIEW dutiful_job_runs AS
SELECT lower(hex(j.id)) AS id, j.kind, j.queue, f.state, f.attempt,
       (f.finished_at - f.claimed_at) / 1000 AS duration_ms,
       max(coalesce((SELECT min(a.claimed_at) FROM dutiful_attempt a
                     WHERE a.job_id = f.job_id AND a.outcome <> 'snoozed'), f.claimed_at)
           - max(j.created_at, coalesce(j.run_at, 0)), 0) / 1000 AS queue_time_ms,
       strftime('%Y-%m-%dT%H:%M:%fZ', f.finished_at / 1000000.0, 'unixepoch') AS recorded_at
FROM dutiful_finished f
JOIN dutiful_job j ON j.id = f.job_id;

-- How many jobs of each kind wait and run, and how many have ended within a day.
CREATE VIEW dutiful_kind_health AS
SELECT kind, state, count(*) AS jobs
FROM (
    SELECT kind, 'ready' AS state FROM dutiful_ready
    UNION ALL SELECT kind, 'scheduled' FROM dutiful_scheduled
    UNION ALL SELECT kind, 'blocked' FROM dutiful_blocked
    UNION ALL SELECT j.kind, 'running' FROM dutiful_lease l CROSS JOIN dutiful_job j ON j.id = l.job_id
    UNION ALL
    SELECT j.kind, f.state FROM dutiful_finished f CROSS JOIN dutiful_job j ON j.id = f.job_id
    WHERE f.finished_at > (julianday('now', '-1 day') - 2440587.5) * 86400000000
)
GROUP BY kind, state;

-- Jobs that have been running for over an hour.
CREATE VIEW dutiful_stuck_jobs AS
SELECT lower(hex(j.id)) AS id, j.kind, j.queue, 'running' AS state, l.attempt,
       strftime('%Y-%m-%dT%H:%M:%fZ', j.created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', l.claimed_at / 1000000.0, 'unixepoch') AS started_at,
       lower(hex(l.worker_id)) AS worker_id
FROM dutiful_lease l
CROSS JOIN dutiful_job j ON j.id = l.job_id
WHERE l.claimed_at < (julianday('now', '-1 hour') - 2440587.5) * 86400000000;

-- Jobs that wait to be tried again after an error of the last hour.
CREATE VIEW dutiful_failing_kinds AS
SELECT j.kind, count(*) AS jobs,
       strftime('%Y-%m-%dT%H:%M:%fZ', max(e.ended_at) / 1000000.0, 'unixepoch') AS latest_error_at
FROM (
    SELECT job_id, max(ended_at) AS ended_at
    FROM dutiful_attempt
    WHERE ended_at > (julianday('now', '-1 hour') - 2440587.5) * 86400000000 AND outcome IN ('failed', 'timed_out')
    GROUP BY job_id
) e
CROSS JOIN dutiful_job j ON j.id = e.job_id
WHERE EXISTS (SELECT 1 FROM dutiful_scheduled s WHERE s.job_id = e.job_id)
   OR EXISTS (SELECT 1 FROM dutiful_ready r WHERE r.job_id = e.job_id)
   OR EXISTS (SELECT 1 FROM dutiful_blocked b WHERE b.job_id = e.job_id)
GROUP BY j.kind;

-- How attempts of the last hour have ended, and how long they took, as workers counted it: each time within an eighth.
CREATE VIEW dutiful_kind_metrics AS
WITH lately AS (
    SELECT kind, outcome, count, run, wait FROM dutiful_tally_minute
    WHERE minute > (julianday('now', '-61 minutes') - 2440587.5) * 86400000000
      AND minute <= (julianday('now') - 2440587.5) * 86400000000
    UNION ALL
    SELECT kind, outcome, count, run, wait FROM dutiful_tally
    WHERE at > (julianday('now', '-61 minutes') - 2440587.5) * 86400000000
), ended AS (
    SELECT kind, coalesce(sum(count) FILTER (WHERE outcome IN ('failed', 'retried')), 0) AS failed,
           coalesce(sum(count) FILTER (
               WHERE outcome IN ('failed', 'retried', 'completed', 'completed_with_errors', 'cancelled')), 0) AS ended
    FROM lately
    GROUP BY kind
), bucket AS (
    SELECT l.kind, 'run' AS what, CAST(e.key AS INTEGER) AS number, sum(e.value) AS times
    FROM lately l, json_each(l.run) e
    GROUP BY l.kind, e.key
    UNION ALL
    SELECT l.kind, 'wait', CAST(e.key AS INTEGER), sum(e.value)
    FROM lately l, json_each(l.wait) e
    GROUP BY l.kind, e.key
), timed AS (
    -- In the middle of its bucket: of which each is a quarter of a power of two microseconds wide.
    SELECT kind, what,
           CASE WHEN number < 4 THEN 2 * number + 1
                ELSE (2 * (number & 3) + 9) << ((number >> 2) - 1) END / 2e6 AS seconds,
           1.0 * sum(times) OVER (PARTITION BY kind, what ORDER BY number)
               / sum(times) OVER (PARTITION BY kind, what) AS share
    FROM bucket
)
SELECT d.kind, d.ended AS attempts, d.failed, round(100.0 * d.failed / nullif(d.ended, 0), 2) AS error_percent,
       min(t.seconds) FILTER (WHERE t.what = 'run' AND t.share >= 0.50) AS run_p50_s,
       min(t.seconds) FILTER (WHERE t.what = 'run' AND t.share >= 0.95) AS run_p95_s,
       min(t.seconds) FILTER (WHERE t.what = 'run' AND t.share >= 0.99) AS run_p99_s,
       min(t.seconds) FILTER (WHERE t.what = 'wait' AND t.share >= 0.50) AS wait_p50_s,
       min(t.seconds) FILTER (WHERE t.what = 'wait' AND t.share >= 0.95) AS wait_p95_s,
       min(t.seconds) FILTER (WHERE t.what = 'wait' AND t.share >= 0.99) AS wait_p99_s
FROM ended d
LEFT JOIN timed t ON t.kind = d.kind
GROUP BY d.kind, d.ended, d.failed;

-- How busy the slots of each lane are, over all workers that were heard of lately.
CREATE VIEW dutiful_lane_utilisation AS
SELECT lane, count(*) AS workers, sum(slots) AS slots, sum(busy) AS busy,
       sum(coalesce(utilisation, 1.0 * busy / slots) * slots) / sum(slots) AS utilisation
FROM (
    SELECT l.key AS lane, json_extract(l.value, '$.slots') AS slots,
           coalesce(json_extract(l.value, '$.busy'), 0) AS busy, json_extract(l.value, '$.utilisation') AS utilisation
    FROM dutiful_worker w, json_each(w.lanes) l
    WHERE w.expires_at > (julianday('now') - 2440587.5) * 86400000000
)
GROUP BY lane;

-- Every breaker that has been used or declared, and how often failures have opened it.
CREATE VIEW dutiful_breaker_status AS
SELECT name, state, failures, successes, trips,
       strftime('%Y-%m-%dT%H:%M:%fZ', last_failure_at / 1000000.0, 'unixepoch') AS last_failure_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', opened_at / 1000000.0, 'unixepoch') AS opened_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', open_until / 1000000.0, 'unixepoch') AS open_until,
       strftime('%Y-%m-%dT%H:%M:%fZ', half_opened_at / 1000000.0, 'unixepoch') AS half_opened_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000000.0, 'unixepoch') AS updated_at
FROM dutiful_breaker;
