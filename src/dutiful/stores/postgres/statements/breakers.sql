-- name: read_breaker
select b.now_at, b.probing, b.is_probe, b.live, {breaker of (b.kept)} from {schema}.read_breaker($1, $2, $3, $4) b;

-- name: breaker_of_kind
select k.breaker from {schema}.breaker_kind k where k.kind = $1;

-- name: breaker_kinds
select k.kind, k.breaker from {schema}.breaker_kind k;

-- name: breakers
select b.probing, b.kinds, b.waiting, {breaker of (b.kept)} from {schema}.all_breakers($1, $2) b;
