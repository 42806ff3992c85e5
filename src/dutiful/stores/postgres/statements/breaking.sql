-- Calls of the functions in migrations/0022_breakers.sql and 0023_probes.sql.

-- name: look_breaker
select l.now_at, l.probing, l.place, l.live, (l.kept).*
from {schema}.look_breaker($1, $2, $3, $4) l;

-- name: put_breaker
select {schema}.put_breaker(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21);

-- name: put_breaker_kinds
select {schema}.put_breaker_kinds($1, $2, $3, $4, $5, $6, $7, $8);

-- name: breaker_of_kind
select k.breaker from {schema}.breaker_kind k where k.kind = $1;

-- name: breaker_kinds
select k.kind, k.breaker from {schema}.breaker_kind k;

-- name: all_breakers
select a.probing, a.kinds, a.waiting, (a.kept).* from {schema}.all_breakers($1, $2) a;

-- name: gated_breakers
select g.now_at, (g.kept).* from {schema}.gated_breakers($1) g;

-- name: turn_breakers
select name from {schema}.turn_breakers($1, $2, $3, $4, $5, $6, $7) name;

-- name: probes_of_breakers
select breaker, job_id, since, runs, kind, queue, tenant from {schema}.probes_of_breakers($1, $2);

-- name: waiting_lines
select breaker, kind, queue, priority, seq from {schema}.waiting_lines($1);

-- name: may_probe
select line, priority, seq, job_id from {schema}.may_probe($1, $2, $3, $4);

-- name: let_out
select queue, priority, moved from {schema}.let_out($1, $2, $3, $4, $5, $6, $7);

-- name: awaited_breakers
select a.awaited, a.now_at, a.probing, (a.kept).* from {schema}.awaited_breakers($1) a;

-- name: barred_jobs
select breaker, job_id, kind, queue, tenant, priority from {schema}.barred_jobs($1, $2);

-- name: free_barred
select queue, priority, moved from {schema}.free_barred($1, $2);

-- name: living
select w.lanes, w.kinds from {schema}.worker w where w.expires_at > $1;

-- name: forget_breakers
select {schema}.forget_breakers($1, $2, $3);
