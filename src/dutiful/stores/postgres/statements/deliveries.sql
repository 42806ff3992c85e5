-- name: waiting_job
select r.job_id, r.kind, r.queue, r.priority, r.seq, r.attempt, d.backend_job_id, coalesce(d.number, 0) as number,
       d.delivered_at, coalesce(d.attempt = r.attempt and not d.taken, false) as outstanding
from {schema}.ready r
left join {schema}.delivery d on d.job_id = r.job_id
where r.job_id = $1;
