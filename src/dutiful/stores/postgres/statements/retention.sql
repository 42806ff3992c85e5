-- name: mark_sent
with stale as (
    update {schema}.stale set sent_at = coalesce($3, clock_timestamp())
    where job_id = any ($1) and sent_at is null
)
update {schema}.tombstone set sent_at = coalesce($3, clock_timestamp())
where job_id = any ($2) and sent_at is null;
