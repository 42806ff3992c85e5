-- name: gated_breakers
select b.now_at, {breaker of (b.kept)} from {schema}.gated_breakers($1) b;

-- name: half_open_breakers
select name from {schema}.half_open_breakers($1, $2, $3, $4, $5, $6, $7) name;

-- name: breaker_probes
select breaker, job_id, since, runs, kind, queue, tenant from {schema}.breaker_probes($1, $2);

-- name: waiting_levels
select breaker, kind, queue, priority, seq from {schema}.waiting_levels($1);

-- name: probe_candidates
select level, priority, seq, job_id from {schema}.probe_candidates($1, $2, $3, $4);

-- name: admit_probes
select queue, priority, moved from {schema}.admit_probes($1, $2, $3, $4, $5, $6, $7);

-- name: awaited_breakers
select b.awaited, b.now_at, b.probing, {breaker of (b.kept)} from {schema}.awaited_breakers($1) b;

-- name: rejected_jobs
select breaker, job_id, kind, queue, tenant, priority from {schema}.rejected_jobs($1, $2);

-- name: unblock_rejected
select queue, priority, moved from {schema}.unblock_rejected($1, $2);

-- name: live_workers
select w.lanes, w.kinds from {schema}.worker w where w.expires_at > $1;
