-- name: listen
REPLACE INTO dutiful_listener (id, expires_at) VALUES (?, ?);

-- name: unlisten
DELETE FROM dutiful_listener WHERE id = ?;

-- name: delete_gone_listeners
DELETE FROM dutiful_listener WHERE expires_at <= ?;

-- name: has_listeners
SELECT 1 FROM dutiful_listener WHERE expires_at > ? LIMIT 1;

-- name: last_new_job
-- Jobs are walked by their ids, which begin with the time when they were made, so no index on a time is needed.
SELECT created_at, id FROM dutiful_job WHERE id >= :floor AND created_at > :from ORDER BY id {row_at_limit};

-- name: last_changes
-- How far one call may reach, source by source: the time of the last row if there are `limit` of them or more.
SELECT min(at)
FROM (
    SELECT * FROM (SELECT ended_at AS at FROM dutiful_attempt WHERE ended_at > :from ORDER BY ended_at {row_at_limit})
    UNION ALL
    SELECT * FROM (SELECT finished_at FROM dutiful_finished WHERE finished_at > :from ORDER BY finished_at {row_at_limit})
    UNION ALL
    SELECT * FROM (
        SELECT ended_at FROM dutiful_webhook_post
        WHERE ended_at IS NOT NULL AND ended_at > :from AND job_id IS NOT NULL ORDER BY ended_at {row_at_limit})
    UNION ALL
    SELECT * FROM (SELECT sent_at FROM dutiful_stale WHERE sent_at > :from ORDER BY sent_at {row_at_limit})
    UNION ALL
    SELECT * FROM (SELECT sent_at FROM dutiful_tombstone WHERE sent_at > :from ORDER BY sent_at {row_at_limit})
);

-- name: row_at_limit
LIMIT 1 OFFSET :limit - 1;

-- name: changes_since
-- All leases are read, because there are no more of them than slots in all workers.
SELECT created_at AS at, id AS job_id, 'made' AS mark FROM dutiful_job
WHERE id >= :floor AND id <= :ceiling AND created_at > :from AND created_at <= :bound
UNION ALL
SELECT max(claimed_at, reported_at, phase_ended_at) AS at, job_id,
       'claim ' || claim_id || ' ' || reported_at || ' ' || phase_ended_at
FROM (
    SELECT l.job_id, l.claim_id, l.claimed_at,
           coalesce((SELECT g.updated_at FROM dutiful_progress g WHERE g.job_id = l.job_id), 0)   AS reported_at,
           coalesce((SELECT max(p.ended_at) FROM dutiful_phase p WHERE p.job_id = l.job_id), 0)   AS phase_ended_at
    FROM dutiful_lease l
)
WHERE at > :from AND at <= :bound
UNION ALL
SELECT ended_at, job_id, 'attempt ' || id FROM dutiful_attempt WHERE ended_at > :from AND ended_at <= :bound
UNION ALL
SELECT finished_at, job_id, 'end' FROM dutiful_finished WHERE finished_at > :from AND finished_at <= :bound
UNION ALL
SELECT ended_at, job_id, 'post ' || hex(id) || ' ' || ended_at
FROM dutiful_webhook_post
WHERE ended_at IS NOT NULL AND ended_at > :from AND ended_at <= :bound AND job_id IS NOT NULL
UNION ALL
SELECT sent_at, job_id, 'stale' FROM dutiful_stale WHERE sent_at > :from AND sent_at <= :bound
UNION ALL
SELECT sent_at, job_id, NULL FROM dutiful_tombstone WHERE sent_at > :from AND sent_at <= :bound
ORDER BY 1;

-- name: job_mark
-- Columns that a result comes after, so that it is not read.
SELECT json_array(
    (SELECT claim_id FROM dutiful_lease WHERE job_id = j.id),
    (SELECT finished_at FROM dutiful_finished WHERE job_id = j.id),
    (SELECT updated_at FROM dutiful_progress WHERE job_id = j.id),
    (SELECT json_array(count(*), max(id), max(claim_id), max(ended_at))
     FROM dutiful_attempt INDEXED BY dutiful_attempt_job WHERE job_id = j.id),
    (SELECT group_concat(ended_at) FROM (SELECT ended_at FROM dutiful_phase WHERE job_id = j.id ORDER BY name)),
    (SELECT group_concat(ended_at) FROM (SELECT ended_at FROM dutiful_webhook_post WHERE job_id = j.id ORDER BY id)),
    (SELECT sent_at FROM dutiful_stale WHERE job_id = j.id))
FROM dutiful_job j WHERE j.id = ?;

-- name: large_results
SELECT NULL FROM dutiful_finished WHERE job_id = :job_id AND length(CAST(result AS BLOB)) > :largest
UNION ALL
SELECT name FROM dutiful_phase WHERE job_id = :job_id AND length(CAST(result AS BLOB)) > :largest;

-- name: result_of_job
SELECT result FROM dutiful_finished WHERE job_id = ? AND finished_at = ?;

-- name: result_of_phase
SELECT result FROM dutiful_phase WHERE job_id = ? AND ended_at = ? AND name = ?;

-- name: tenant_of
SELECT tenant FROM dutiful_job WHERE id = ?;

-- name: tombstone
SELECT job ->> 'kind', job ->> 'queue', job ->> 'tenant', job ->> 'correlation_id', job ->> 'stale_at', deleted_at, sent_at
FROM dutiful_tombstone WHERE job_id = ? AND sent_at IS NOT NULL;

-- name: post_views
SELECT id, url, state, attempts, ended_at, status, error FROM dutiful_webhook_post WHERE job_id = ? ORDER BY id;
