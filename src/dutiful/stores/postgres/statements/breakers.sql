-- name: breaker_kinds
select k.kind, k.breaker from {schema}.breaker_kind k;
