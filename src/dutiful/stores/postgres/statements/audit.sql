-- name: audit_events
-- {where}: the conditions that were asked for. Newest first, which is the order of the ids.
select {audit} from {schema}.audit_event where {where} order by id desc limit $1;

-- name: audit_head
select seq, event_id, hash from {schema}.audit_seal order by seq desc limit 1;

-- name: audit_anchor
select seq, hash, at, keep, trimmed_at from {schema}.audit_anchor;

-- name: unsealed_events
select {audit of e}
from {schema}.audit_unsealed u join {schema}.audit_event e on e.id = u.event_id
order by u.event_id limit $1;

-- name: sealed_events
select s.seq, s.event_id, s.hash, {audit of e}
from (select seq, event_id, hash from {schema}.audit_seal where seq > $1 order by seq limit $2) s
left join {schema}.audit_event e on e.id = s.event_id
order by s.seq;

-- name: audit_strays
-- In one snapshot, so that a seal or trim under way is never seen half done.
select e.id, false
from {schema}.audit_event e
where not exists (select 1 from {schema}.audit_seal s where s.event_id = e.id)
  and not exists (select 1 from {schema}.audit_unsealed u where u.event_id = e.id)
union all
select u.event_id, true
from {schema}.audit_unsealed u
where not exists (select 1 from {schema}.audit_event e where e.id = u.event_id)
limit $1;

-- name: audit_retention
select keep from {schema}.audit_policy;

-- name: set_audit_retention
-- With its record, so that the last one is always that of the policy in force.
update {schema}.audit_policy set keep = $1 returning {schema}.append_audit($2);
