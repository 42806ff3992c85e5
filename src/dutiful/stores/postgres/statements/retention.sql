-- name: delete_finished
select deleted, last_id from {schema}.delete_finished($1, $2, $3, $4, $5, $6);

-- name: mark_stale
select job, last_id from {schema}.mark_stale($1, $2, $3, $4, $5, $6);

-- name: delete_with_tombstones
select job, last_id from {schema}.delete_with_tombstones($1, $2, $3, $4, $5, $6, $7);

-- name: unsent_notices
select job, deleted from {schema}.unsent_notices($1);

-- name: mark_sent
with stale as (
    update {schema}.stale set sent_at = coalesce($3, clock_timestamp())
    where job_id = any ($1) and sent_at is null
)
update {schema}.tombstone set sent_at = coalesce($3, clock_timestamp())
where job_id = any ($2) and sent_at is null;
