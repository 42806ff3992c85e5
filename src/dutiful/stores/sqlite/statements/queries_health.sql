-- name: places_of_jobs
-- Every job that is not in exactly one place.
SELECT id, coalesce(places, 'no place')
FROM (
    SELECT j.id,
           (SELECT group_concat(place, ' and ') FROM (
               SELECT 'scheduled' AS place FROM dutiful_scheduled WHERE job_id = j.id
               UNION ALL SELECT 'ready' FROM dutiful_ready WHERE job_id = j.id
               UNION ALL SELECT 'blocked' FROM dutiful_blocked WHERE job_id = j.id
               UNION ALL SELECT 'lease' FROM dutiful_lease WHERE job_id = j.id
               UNION ALL SELECT 'finished' FROM dutiful_finished WHERE job_id = j.id
           )) AS places
    FROM dutiful_job j
)
WHERE places IS NULL OR instr(places, ' and ') > 0;

-- name: places_without_job
SELECT place, job_id
FROM (
    SELECT 'scheduled' AS place, job_id FROM dutiful_scheduled
    UNION ALL SELECT 'ready', job_id FROM dutiful_ready
    UNION ALL SELECT 'blocked', job_id FROM dutiful_blocked
    UNION ALL SELECT 'lease', job_id FROM dutiful_lease
    UNION ALL SELECT 'finished', job_id FROM dutiful_finished
)
WHERE job_id NOT IN (SELECT id FROM dutiful_job);

-- name: orphan_keys
SELECT u.tenant, u.kind, u.key, u.scope, u.job_id FROM dutiful_unique_key u
LEFT JOIN dutiful_job j ON j.id = u.job_id
LEFT JOIN dutiful_finished f ON f.job_id = u.job_id
LEFT JOIN dutiful_lease l ON l.job_id = u.job_id
WHERE u.scope IN ('queued', 'active')
  AND (j.id IS NULL OR f.job_id IS NOT NULL OR (u.scope = 'queued' AND l.job_id IS NOT NULL));

-- name: dependencies_of_no_job
SELECT job_id, needs_id FROM dutiful_dependency WHERE job_id NOT IN (SELECT id FROM dutiful_job);

-- name: dependencies_on_no_job
SELECT d.job_id, d.needs_id FROM dutiful_dependency d
CROSS JOIN dutiful_blocked b ON b.job_id = d.job_id
WHERE b.gate = 'dependency' AND d.needs_id NOT IN (SELECT id FROM dutiful_job);

-- name: waits_for_no_dependency
SELECT b.job_id FROM dutiful_blocked b
WHERE b.gate = 'dependency'
  AND NOT EXISTS (SELECT 1 FROM dutiful_dependency d WHERE d.job_id = b.job_id AND lower(hex(d.needs_id)) = b.key);

-- name: dead_letters_of_live_jobs
SELECT d.job_id, coalesce(f.state, 'not final') FROM dutiful_dead_letter d
CROSS JOIN dutiful_job j ON j.id = d.job_id
LEFT JOIN dutiful_finished f ON f.job_id = d.job_id
WHERE f.state IS NULL OR f.state <> 'failed';

-- name: failed_without_dead_letter
SELECT job_id FROM dutiful_finished WHERE state = 'failed' AND job_id NOT IN (SELECT job_id FROM dutiful_dead_letter);

-- name: dead_letters_without_body
SELECT job_id FROM dutiful_dead_letter WHERE job_id NOT IN (SELECT job_id FROM dutiful_dead_letter_body)
UNION ALL
SELECT job_id FROM dutiful_dead_letter_body WHERE job_id NOT IN (SELECT job_id FROM dutiful_dead_letter);

-- name: reprocessing_without_job
SELECT job_id, status, iif(new_job_id IS NULL, 'without', 'with') FROM dutiful_dead_letter
WHERE (status = 'reprocessing' AND new_job_id IS NULL)
   OR (status IN ('pending_review', 'acknowledged', 'discarded') AND new_job_id IS NOT NULL);

-- name: reprocessed_twice
SELECT new_job_id FROM dutiful_dead_letter WHERE new_job_id IS NOT NULL GROUP BY new_job_id HAVING count(*) > 1;

-- name: events_without_seal
SELECT e.id FROM dutiful_audit_event e
LEFT JOIN dutiful_audit_seal s ON s.event_id = e.id
LEFT JOIN dutiful_audit_unsealed u ON u.event_id = e.id
WHERE (s.event_id IS NULL) = (u.event_id IS NULL);

-- name: seals_without_event
SELECT seq FROM dutiful_audit_seal WHERE event_id NOT IN (SELECT id FROM dutiful_audit_event);

-- name: attempts_without_job
SELECT DISTINCT job_id FROM dutiful_attempt WHERE job_id NOT IN (SELECT id FROM dutiful_job);

-- name: belongings_without_job
SELECT what, job_id
FROM (
    SELECT DISTINCT 'a phase' AS what, job_id FROM dutiful_phase
    UNION ALL SELECT 'progress', job_id FROM dutiful_progress
    UNION ALL SELECT 'a stale mark', job_id FROM dutiful_stale
    UNION ALL SELECT 'a delivery', job_id FROM dutiful_delivery
)
WHERE job_id NOT IN (SELECT id FROM dutiful_job);
