-- name: delete_finished
select deleted, last_id from {schema}.delete_finished($1, $2, $3, $4, $5, $6);

-- name: mark_stale
select job, last_id from {schema}.mark_stale($1, $2, $3, $4, $5, $6);

-- name: delete_with_tombstones
select job, last_id from {schema}.delete_with_tombstones($1, $2, $3, $4, $5, $6, $7);

-- name: unsent_notices
select job, deleted from {schema}.unsent_notices($1);

-- name: mark_notified
with stale as (
    update {schema}.stale set notified_at = coalesce($3, clock_timestamp())
    where job_id = any ($1) and notified_at is null
)
update {schema}.tombstone set notified_at = coalesce($3, clock_timestamp())
where job_id = any ($2) and notified_at is null;
