-- name: retain
select deleted, last_id from {schema}.retain($1, $2, $3, $4, $5, $6);

-- name: tidy
select {schema}.tidy($1, $2, true, $3);

-- name: mark_stale
select job, last_id from {schema}.mark_stale($1, $2, $3, $4, $5, $6);

-- name: remove
select job, last_id from {schema}.remove($1, $2, $3, $4, $5, $6, $7);

-- name: untold
select job, deleted from {schema}.untold($1);

-- name: tell
with stale as (
    update {schema}.stale set told_at = coalesce($3, clock_timestamp()) where job_id = any ($1) and told_at is null
)
update {schema}.tombstone set told_at = coalesce($3, clock_timestamp()) where job_id = any ($2) and told_at is null;
