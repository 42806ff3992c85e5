-- name: limit_rules
select r.name, r.most, r.per, r.burst, r.fixed, r.feedback, r.chosen,
       array(select k.kind from {schema}.limit_kind k where k.name = r.name order by k.kind) as kinds
from {schema}.limit_rule r
order by r.name;

-- name: limit_slots
-- Those that count: starts that no longer do are deleted at the next admission.
select s.name, s.key, count(*) as used
from {schema}.limit_slot s
join {schema}.limit_rule r on r.name = s.name
where s.started_at > {schema}.limit_since(r, coalesce($1, clock_timestamp()))
   or (s.started_at is null
       and (r.per is not null
            or exists (select 1 from {schema}.lease l where l.job_id = s.job_id)
            or exists (select 1 from {schema}.ready x where x.job_id = s.job_id)))
group by s.name, s.key;

-- name: limit_waits
select b.key as gate, count(*) as waiting from {schema}.blocked b where b.gate = 'limit' group by b.key;

-- name: limit_holds
select h.name, h.key, h.until from {schema}.limit_hold h where h.until > coalesce($1, clock_timestamp());

-- name: readers_of_pauses
-- Transactions that have read which kinds are limited.
select l.virtualtransaction from pg_locks l
where l.locktype = 'relation' and l.relation = '{schema}.pause'::regclass and l.pid <> pg_backend_pid()
  and l.database = (select d.oid from pg_database d where d.datname = current_database());
