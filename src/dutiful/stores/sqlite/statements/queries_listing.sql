-- Each walk names its index: without statistics SQLite might choose one with the right order but the wrong condition.

-- name: kind_before
-- Or the last one, before a null: a blob comes after all texts.
SELECT kind FROM dutiful_job INDEXED BY dutiful_job_kind_queue
WHERE kind < coalesce(CAST(? AS TEXT), x'') ORDER BY kind DESC LIMIT 1;

-- name: queue_before
SELECT queue FROM dutiful_job INDEXED BY dutiful_job_kind_queue
WHERE kind = ? AND queue < coalesce(CAST(? AS TEXT), x'') ORDER BY queue DESC LIMIT 1;

-- name: page
id < :high AND id >= :low ORDER BY id DESC LIMIT :each;

-- name: page_of_jobs
job_id < :high AND job_id >= :low ORDER BY job_id DESC LIMIT :each;

-- name: walk_job
SELECT id FROM dutiful_job WHERE {page};

-- name: walk_kind_queue
SELECT id FROM dutiful_job INDEXED BY dutiful_job_kind_queue WHERE kind = :name AND queue = :queue AND {page};

-- name: walk_tenant
SELECT id FROM dutiful_job INDEXED BY dutiful_job_tenant WHERE tenant = :name AND {page};

-- name: walk_correlation
SELECT id FROM dutiful_job INDEXED BY dutiful_job_correlation WHERE correlation_id = :name AND {page};

-- name: walk_each
-- each: scheduled ready
SELECT job_id FROM dutiful_{each} INDEXED BY dutiful_{each}_job WHERE {page_of_jobs};

-- name: walk_blocked
SELECT job_id FROM dutiful_blocked WHERE {page_of_jobs};

-- name: walk_running
SELECT job_id FROM dutiful_lease WHERE {page_of_jobs};

-- name: walk_finished
SELECT job_id FROM dutiful_finished WHERE {page_of_jobs};

-- name: walk_not_completed
SELECT job_id FROM dutiful_finished INDEXED BY dutiful_finished_not_completed
WHERE state = :name AND state <> 'completed' AND {page_of_jobs};

-- name: walk_correlation_root
-- A job without a correlation id has its own id as one.
SELECT id FROM dutiful_job WHERE id = :root AND id < :high AND id >= :low AND correlation_id IS NULL;

-- name: walk_tried
-- Steps from each job to the one before it, because a job may have any number of attempts.
WITH RECURSIVE step (job_id) AS (
    SELECT :high
    UNION ALL
    SELECT (SELECT a.job_id FROM dutiful_attempt a INDEXED BY dutiful_attempt_job
            WHERE a.job_id < step.job_id AND a.job_id >= :low
            ORDER BY a.job_id DESC LIMIT 1)
    FROM step
    WHERE step.job_id IS NOT NULL
    LIMIT :each + 1  -- with the bound itself
)
SELECT job_id FROM step WHERE job_id <> :high;

-- name: matching_job
-- The row of a job that matches, as far as SQL can decide; a null parameter matches all. `texts`: with its texts.
-- An error's class is that of the end, or of the last attempt as long as the job has not ended.
SELECT CASE WHEN :subjects THEN j.subject END, CASE WHEN :texts THEN j.payload END, CASE WHEN :texts THEN f.errors END,
       CASE WHEN :texts AND f.job_id IS NULL THEN
           (SELECT a.error FROM dutiful_attempt a
            WHERE a.job_id = j.id AND a.error IS NOT NULL ORDER BY a.id DESC LIMIT 1)
       END
FROM dutiful_job j
LEFT JOIN dutiful_finished f ON f.job_id = j.id
WHERE j.id = :id
  AND (:kinds IS NULL OR j.kind IN (SELECT value FROM json_each(:kinds)))
  AND (:queue IS NULL OR j.queue = :queue)
  AND (:tenant IS NULL OR j.tenant = :tenant)
  AND (:state IS NULL OR :state = CASE :state
          WHEN 'scheduled' THEN (SELECT 'scheduled' FROM dutiful_scheduled p WHERE p.job_id = j.id)
          WHEN 'ready' THEN (SELECT 'ready' FROM dutiful_ready p WHERE p.job_id = j.id)
          WHEN 'blocked' THEN (SELECT 'blocked' FROM dutiful_blocked p WHERE p.job_id = j.id)
          WHEN 'running' THEN (SELECT 'running' FROM dutiful_lease p WHERE p.job_id = j.id)
          ELSE f.state END)
  AND (:phase IS NULL OR :phase = (SELECT g.phase FROM dutiful_progress g WHERE g.job_id = j.id))
  AND (:error_class IS NULL OR :error_class = CASE WHEN f.job_id IS NULL THEN
          (SELECT json_extract(a.error, '$.class') FROM dutiful_attempt a
           WHERE a.job_id = j.id AND a.error IS NOT NULL ORDER BY a.id DESC LIMIT 1)
          ELSE json_extract(f.errors, '$[0].class') END);
