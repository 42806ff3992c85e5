-- name: unlock
with left_queue as (
    delete from {schema}.lock_wait where namespace = $3 and key = $4 and job_id = $1 and claim_id = $2
)
delete from {schema}.lock where namespace = $3 and key = $4 and job_id = $1 and claim_id = $2;

-- name: lock_settings
-- For a session that holds locks: a lost client is noticed within seconds, even while it waits for a lock, and no other
-- setting limits how long it waits or is idle.
select set_config(s.name, s.value, false)
from (values ('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
             ('client_connection_check_interval', '2s'), ('statement_timeout', '0'),
             ('idle_session_timeout', '0')) s (name, value);

-- name: lock_secret
select value from {schema}.lock_secret;

-- name: lock_acquire
-- The time limit first, because it is read when the wait begins.
with limited as materialized (select set_config('lock_timeout', $3, false))
select pg_advisory_lock($1, $2) from limited;

-- name: lock_release
select pg_advisory_unlock($1, $2);

-- name: lock_holder
-- A session is foreign if its role may not read the secret of the locks: it has the numbers from pg_locks, which every role
-- can read. pg_locks shows the numbers unsigned.
select l.pid, a.usename::text, not has_table_privilege(a.usesysid, '{schema}.lock_secret', 'select')
from pg_locks l
join pg_stat_activity a using (pid)
where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and a.datname = current_database() and l.database = a.datid
  and l.classid::bigint = $1::bigint & 4294967295 and l.objid::bigint = $2::bigint & 4294967295;

-- name: lock_intruders
-- Foreign sessions that hold or want an advisory lock that one of ours holds or wants. Ours are those that may read the
-- secret; other locks of other roles are no concern of Dutiful's.
with advisory as materialized (
    select l.pid, a.usename::text as role, l.granted, l.classid, l.objid, l.objsubid,
           has_table_privilege(a.usesysid, '{schema}.lock_secret', 'select') as ours
    from pg_locks l
    join pg_stat_activity a using (pid)
    where l.locktype = 'advisory' and a.datname = current_database() and l.database = a.datid
)
select f.pid, f.role, bool_or(f.granted)
from advisory f
join advisory o using (classid, objid, objsubid)
where not f.ours and o.ours
group by f.pid, f.role
order by f.pid;
