-- name: fills
-- {place}: a table, for which :limit is too much or not.
SELECT count(*) FROM (SELECT 1 FROM {place} LIMIT :limit);

-- name: fills_of_tenant
SELECT count(*) FROM (SELECT 1 FROM {place} INDEXED BY {place}_tenant WHERE tenant = :tenant LIMIT :limit);

-- name: count_place
SELECT queue, kind, count(*) FROM {place} GROUP BY queue, kind;

-- name: count_place_of_tenant
SELECT queue, kind, count(*) FROM {place} INDEXED BY {place}_tenant WHERE tenant = :tenant GROUP BY queue, kind;

-- name: count_running
-- :share: of 2^31, how many of the leases are looked up; which ones is left to chance.
SELECT j.queue, j.kind, count(*)
FROM dutiful_lease l
CROSS JOIN dutiful_job j ON j.id = l.job_id
WHERE (:share = 2147483648 OR random() & 2147483647 < :share) AND (:tenant IS NULL OR j.tenant = :tenant)
GROUP BY j.queue, j.kind;

-- name: count_leases
SELECT count(*) FROM dutiful_lease;

-- name: line
-- What can be sampled: rows that a number orders, of which the next word is compared.
dutiful_ready WHERE queue = :queue AND priority = :priority AND seq;

-- name: line_of_tenant
dutiful_ready INDEXED BY dutiful_ready_tenant
WHERE tenant = :tenant AND queue = :queue AND priority = :priority AND seq;

-- name: place
{place} WHERE {place}.rowid;

-- name: place_of_tenant
{place} INDEXED BY {place}_tenant WHERE tenant = :tenant AND {place}.rowid;

-- name: first_number
SELECT {number} FROM {rows} >= :at ORDER BY {number} LIMIT 1;

-- name: last_number
SELECT {number} FROM {rows} < :at ORDER BY {number} DESC LIMIT 1;

-- name: some_rows
SELECT {number}, queue, kind FROM {rows} IS NOT NULL LIMIT :limit;

-- name: rows_in_windows
-- :windows: as JSON, the first and the last number of each.
SELECT w.key, {number}, queue, kind
FROM json_each(:windows) w
CROSS JOIN {rows} BETWEEN json_extract(w.value, '$[0]') AND json_extract(w.value, '$[1]')
LIMIT :limit;

-- name: first_line_of_tenant
SELECT queue, priority FROM dutiful_ready INDEXED BY dutiful_ready_tenant
WHERE tenant = ? ORDER BY queue, priority LIMIT 1;

-- name: next_line_of_tenant
SELECT queue, priority FROM dutiful_ready INDEXED BY dutiful_ready_tenant
WHERE tenant = ? AND (queue, priority) > (?, ?) ORDER BY queue, priority LIMIT 1;

-- name: due_since
-- Since when the first of a line has been due: a job that is tried again, since its last attempt or the time this set.
SELECT max(j.created_at, coalesce(j.run_at, 0),
           coalesce((SELECT coalesce(a.next_at, a.ended_at) FROM dutiful_attempt a
                     WHERE a.job_id = j.id AND a.outcome <> 'refused' ORDER BY a.id DESC LIMIT 1), 0))
FROM dutiful_job j
WHERE j.id = (SELECT job_id FROM {rows} >= :at ORDER BY seq LIMIT 1);

-- name: count_unreviewed
SELECT count(*) FROM (SELECT 1 FROM dutiful_dead_letter WHERE status = 'pending_review' LIMIT :limit);

-- name: count_unreviewed_of_tenant
SELECT count(*)
FROM (SELECT 1 FROM dutiful_dead_letter WHERE tenant = :tenant AND status = 'pending_review' LIMIT :limit);

-- name: count_finished
SELECT state, count(*)
FROM (SELECT state FROM dutiful_finished INDEXED BY dutiful_finished_time WHERE finished_at >= :since LIMIT :limit)
GROUP BY state;

-- name: count_finished_of_tenant
-- Among the tenant's newest jobs; with how many those are.
SELECT f.state, count(*)
FROM (SELECT id FROM dutiful_job INDEXED BY dutiful_job_tenant WHERE tenant = :tenant ORDER BY id DESC LIMIT :limit) j
LEFT JOIN dutiful_finished f ON f.job_id = j.id AND f.finished_at >= :since
GROUP BY f.state;
