-- Calls of the published functions; what each does is written with it in migrations/.

-- name: insert_plain
select * from {schema}.insert_plain(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17);

-- name: insert_jobs
select job_id, insertion from {schema}.insert_jobs($1::text::jsonb, $2, false, true) order by ord;

-- name: insert_within
-- Every driver can pass one text; the cast is spelled out because `::` means something to some of them.
select job_id, insertion from {schema}.insert_jobs(cast($1 as jsonb), null, {notify}, true) order by ord;

-- name: peek
select queue, priority, seq from {schema}.peek($1);

-- name: claim
select * from {schema}.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: complete
select job_id, claim_id, verdict from {schema}.complete($1, $2, $3, $4, $5, $6);

-- name: complete_one
select complete_one
from {schema}.complete_one(cast($1 as uuid), cast($2 as bigint), cast($3 as text), cast($4 as text));

-- name: settle
select job_id, claim_id, verdict from {schema}.settle(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14);

-- name: refuse
select job_id, claim_id, verdict from {schema}.refuse($1, $2, $3, $4);

-- name: renew
select job_id, claim_id, cancel from {schema}.renew($1, $2, $3, $4);

-- name: check_claims
select job_id, claim_id, cancel from {schema}.check_claims($1, $2);

-- name: give_back
select {schema}.give_back($1, $2);

-- name: survey
select * from {schema}.survey($1, $2, $3, $4);

-- name: promote
select queue, priority, moved, last_run_at from {schema}.promote($1, $2, $3);

-- name: lapsed
select job_id, claim_id, attempt, crashes, kind, worker_id, cancel_requested, tenant, correlation_id
from {schema}.lapsed($1, $2, $3);

-- name: held
select job_id, claim_id, attempt, crashes, kind, worker_id, cancel_requested, tenant, correlation_id
from {schema}.held(array[$1::uuid]);

-- name: stopped_kinds
-- `settled`: whoever has put a job in a line without knowing of the pause has done so by now.
select name, since, coalesce($1, clock_timestamp()) - since > interval '1 minute' as settled
from {schema}.pause where scope in ('kind', 'breaker');

-- name: shut
select {schema}.shut($1, $2, $3);

-- name: place_due
select {schema}.place_due($1, $2);

-- name: reopen
select queue, priority, moved from {schema}.reopen($1, $2);

-- name: sweep_needs
select queue, priority, moved from {schema}.sweep_needs($1, $2);

-- name: cancel
select state, changed, requested from {schema}.cancel($1, $2, $3);

-- name: bury
select {schema}.end_waiting($1, 'failed', $2::text::jsonb, $3);

-- name: expedite
select {schema}.expedite($1, $2);

-- name: notify
select pg_notify($1, $2);
