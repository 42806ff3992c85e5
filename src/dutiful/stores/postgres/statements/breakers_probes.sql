-- name: gated_breakers
select b.now_at, {breaker of (b.kept)} from {schema}.gated_breakers($1) b;

-- name: awaited_breakers
select b.awaited, b.now_at, b.probing, {breaker of (b.kept)} from {schema}.awaited_breakers($1) b;

-- name: live_workers
select w.lanes, w.kinds from {schema}.worker w where w.expires_at > $1;
