-- name: dead_letters
-- {where}: the conditions that were asked for.
select job_id as id, status, died_at, kind, queue, tenant, correlation_id, unique_key, created_at, attempt,
       max_attempts, error_class, error_type, message, fingerprint, job, errors, history,
       reviewed_by, reviewed_at, acknowledged_by, acknowledged_at, notes, new_job_id, resolution
from {schema}.dead_letter where {where} order by died_at desc, job_id desc limit $1;

-- name: dead_letter_summaries
-- The same without what may be large.
select job_id as id, status, died_at, kind, queue, tenant, correlation_id, unique_key, created_at, attempt,
       max_attempts, error_class, error_type, message, fingerprint, null as job, null as errors, null as history,
       reviewed_by, reviewed_at, acknowledged_by, acknowledged_at, notes, new_job_id, resolution
from {schema}.dead_letter where {where} order by died_at desc, job_id desc limit $1;

-- name: dead_letter_states
-- The limit makes it a look-up for each, whatever the statistics say.
select d.job_id, d.status
from unnest($1::uuid[]) a (id)
cross join lateral (select x.job_id, x.status from {schema}.dead_letter x where x.job_id = a.id limit 1) d;

-- name: count_dead_letters
select count(*) from {schema}.dead_letter where {where};

-- name: count_dead_letters_by
select status, kind, coalesce(error_class, ''), count(*), min(died_at)
from {schema}.dead_letter where {where}
group by status, kind, error_class;

-- name: group_dead_letters
select g.fingerprint, g.kind, d.error_class, d.error_type, d.message, g.count, g.first_at, g.last_at, g.newest_id
from (
    select fingerprint, kind, count(*) as count, min(died_at) as first_at, max(died_at) as last_at,
           (array_agg(job_id order by died_at desc, job_id desc))[1] as newest_id
    from {schema}.dead_letter where {where}
    group by fingerprint, kind
    order by count desc, last_at desc
    limit $1
) g
cross join lateral (
    select x.error_class, x.error_type, x.message from {schema}.dead_letter x where x.job_id = g.newest_id limit 1
) d
order by g.count desc, g.last_at desc;

-- name: review
select id, status, applied, new_job_id, holder from {schema}.review($1, $2, $3, $4, $5) order by ord;

-- name: insert_bulk_run
with begun as (
    insert into {schema}.bulk_run
        (id, created_at, ended_at, cursor_died_at, cursor_id, total, done, skipped, act, state, by, role, origin,
         tenant, reason, filter)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
    on conflict (id) do nothing
)
select {schema}.append_audit($17);

-- name: bulk_runs
-- {where}: the conditions that were asked for; {direction}: asc or desc, because ids are in order of time.
select id, act, filter, by, role, origin, reason, created_at, total, done, skipped, state, cursor_died_at, cursor_id,
       ended_at
from {schema}.bulk_run where {where} order by created_at {direction}, id {direction} limit $1;

-- name: stop_bulk_run
update {schema}.bulk_run set state = 'stopped', ended_at = coalesce($2, clock_timestamp())
where id = $1 and state = 'running'
returning id;

-- name: resolve_reprocessed
update {schema}.dead_letter d
set status = a.status, resolution = a.resolution,
    new_job_id = case a.status when 'resolved' then d.new_job_id end,
    closed_at = case a.status when 'resolved' then coalesce($5, clock_timestamp()) end
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[]) a (job_id, new_job_id, status, resolution)
-- It may have been reviewed or reprocessed again meanwhile.
where d.job_id = a.job_id and d.new_job_id = a.new_job_id and d.status = 'reprocessing'
returning d.job_id;
