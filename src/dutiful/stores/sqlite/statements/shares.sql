-- name: next_tenant
SELECT tenant, queue, priority FROM dutiful_ready INDEXED BY dutiful_ready_tenant
WHERE tenant > CAST(? AS TEXT) ORDER BY tenant, queue, priority LIMIT 1;

-- name: next_level_in_tenant
SELECT tenant, queue, priority FROM dutiful_ready INDEXED BY dutiful_ready_tenant
WHERE tenant = CAST(? AS TEXT) AND (queue, priority) > (CAST(? AS TEXT), ?) ORDER BY queue, priority LIMIT 1;

-- name: first_of_tenant_level
SELECT seq FROM dutiful_ready INDEXED BY dutiful_ready_tenant
WHERE tenant = ? AND queue = ? AND priority = ? AND crashes = 0 AND kind IN (SELECT value FROM json_each(?))
ORDER BY seq LIMIT 1;

-- name: first_tenantless
-- Else the last of a full window, where the next search begins.
SELECT seq, job_id, wanted FROM (
    SELECT seq, job_id, row_number() OVER (ORDER BY seq, job_id) AS place,
           tenant IS NULL AND kind IN (SELECT value FROM json_each(:kinds)) AS wanted
    FROM (
        SELECT seq, job_id, tenant, kind FROM dutiful_ready
        WHERE queue = :queue AND priority = :priority AND (seq, job_id) > (:seq, :job_id) AND crashes = 0
        ORDER BY seq, job_id LIMIT :window
    )
)
WHERE wanted OR place = :window
ORDER BY seq, job_id LIMIT 1;

-- name: pick_tenantless
SELECT {claim_columns} FROM (
    SELECT * FROM dutiful_ready
    WHERE queue = :queue AND priority = :priority AND (seq, job_id) >= (:seq, :job_id) AND crashes = 0
    ORDER BY seq, job_id LIMIT :window
) r
CROSS JOIN dutiful_job j ON j.id = r.job_id
WHERE r.tenant IS NULL AND r.kind IN (SELECT value FROM json_each(:kinds))
ORDER BY r.seq, r.job_id LIMIT :limit;

-- name: share_weight
SELECT weight FROM dutiful_share WHERE tenant = ?;

-- name: share_weights
SELECT tenant, weight FROM dutiful_share;

-- name: running_by_tenant
SELECT j.tenant, count(*) FROM dutiful_lease l CROSS JOIN dutiful_job j ON j.id = l.job_id GROUP BY j.tenant;

-- name: put_share
INSERT INTO dutiful_share (tenant, weight) VALUES (?, ?) ON CONFLICT (tenant) DO UPDATE SET weight = excluded.weight;

-- name: delete_share
DELETE FROM dutiful_share WHERE tenant = ?;
