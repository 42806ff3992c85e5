-- name: count_up_to
-- {table}: ready, scheduled or blocked; counted up to :limit.
SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT :limit);

-- name: count_up_to_of_tenant
SELECT count(*) FROM (SELECT 1 FROM {table} INDEXED BY {table}_tenant WHERE tenant = :tenant LIMIT :limit);

-- name: count_table
SELECT queue, kind, count(*) FROM {table} GROUP BY queue, kind;

-- name: count_table_of_tenant
SELECT queue, kind, count(*) FROM {table} INDEXED BY {table}_tenant WHERE tenant = :tenant GROUP BY queue, kind;

-- name: count_running
-- :share: the share of leases that are read, of 2^31; which ones is random.
SELECT j.queue, j.kind, count(*) FROM dutiful_lease l
CROSS JOIN dutiful_job j ON j.id = l.job_id
WHERE (:share = 2147483648 OR random() & 2147483647 < :share) AND (:tenant IS NULL OR j.tenant = :tenant)
GROUP BY j.queue, j.kind;

-- name: count_leases
SELECT count(*) FROM dutiful_lease;

-- name: sampled_level
-- Rows that can be sampled, in order of a number; each text ends with that number, so that a comparison can follow.
dutiful_ready WHERE queue = :queue AND priority = :priority AND seq;

-- name: sampled_level_of_tenant
dutiful_ready INDEXED BY dutiful_ready_tenant
WHERE tenant = :tenant AND queue = :queue AND priority = :priority AND seq;

-- name: sampled_table
{table} WHERE {table}.rowid;

-- name: sampled_table_of_tenant
{table} INDEXED BY {table}_tenant WHERE tenant = :tenant AND {table}.rowid;

-- name: first_number
SELECT {number} FROM {rows} >= :at ORDER BY {number} LIMIT 1;

-- name: last_number
SELECT {number} FROM {rows} < :at ORDER BY {number} DESC LIMIT 1;

-- name: some_rows
SELECT {number}, queue, kind FROM {rows} IS NOT NULL LIMIT :limit;

-- name: rows_in_windows
-- :windows: as JSON, the first and the last number of each.
SELECT w.key, {number}, queue, kind FROM json_each(:windows) w
CROSS JOIN {rows} BETWEEN json_extract(w.value, '$[0]') AND json_extract(w.value, '$[1]')
LIMIT :limit;

-- name: first_level_of_tenant
SELECT queue, priority FROM dutiful_ready INDEXED BY dutiful_ready_tenant
WHERE tenant = ? ORDER BY queue, priority LIMIT 1;

-- name: next_level_of_tenant
SELECT queue, priority FROM dutiful_ready INDEXED BY dutiful_ready_tenant
WHERE tenant = ? AND (queue, priority) > (CAST(? AS TEXT), ?) ORDER BY queue, priority LIMIT 1;

-- name: next_priority
SELECT priority FROM dutiful_ready WHERE queue = :queue AND priority > :priority ORDER BY priority LIMIT 1;

-- name: next_priority_of_tenant
SELECT priority FROM dutiful_ready INDEXED BY dutiful_ready_tenant
WHERE tenant = :tenant AND queue = :queue AND priority > :priority ORDER BY priority LIMIT 1;

-- name: count_first
-- Of the jobs that were made first.
SELECT queue, kind, count(*)
FROM (SELECT queue, kind FROM dutiful_ready INDEXED BY dutiful_ready_job ORDER BY job_id LIMIT :limit)
GROUP BY queue, kind;

-- name: count_first_of_tenant
SELECT queue, kind, count(*)
FROM (SELECT queue, kind FROM dutiful_ready INDEXED BY dutiful_ready_tenant WHERE tenant = :tenant
      ORDER BY queue, priority LIMIT :limit)
GROUP BY queue, kind;

-- name: first_overlooked
-- Of the jobs that were made first, the one that has been due the longest in a queue that was not looked at.
SELECT job_id
FROM (SELECT job_id, queue, seq FROM dutiful_ready INDEXED BY dutiful_ready_job ORDER BY job_id LIMIT :limit)
WHERE queue NOT IN (SELECT value FROM json_each(:looked)) ORDER BY seq LIMIT 1;

-- name: first_overlooked_of_tenant
SELECT job_id
FROM (SELECT job_id, queue, seq FROM dutiful_ready INDEXED BY dutiful_ready_tenant WHERE tenant = :tenant
      ORDER BY queue, priority, seq LIMIT :limit)
WHERE queue NOT IN (SELECT value FROM json_each(:looked)) ORDER BY seq LIMIT 1;

-- name: first_job
SELECT job_id FROM {rows} IS NOT NULL ORDER BY seq LIMIT 1;

-- name: due_since
-- Since when a ready job has been due: a retry since its last attempt, or the time that this set.
SELECT max(j.created_at, coalesce(j.run_at, 0),
           coalesce((SELECT coalesce(a.next_at, a.ended_at) FROM dutiful_attempt a
                     WHERE a.job_id = j.id AND a.outcome NOT IN ('refused', 'released', 'lost')
                     ORDER BY a.id DESC LIMIT 1), 0))
FROM dutiful_job j
WHERE j.id = ?;

-- name: count_unreviewed
SELECT count(*) FROM (SELECT 1 FROM dutiful_dead_letter WHERE status = 'pending_review' LIMIT :limit);

-- name: count_unreviewed_of_tenant
SELECT count(*)
FROM (SELECT 1 FROM dutiful_dead_letter WHERE tenant = :tenant AND status = 'pending_review' LIMIT :limit);
