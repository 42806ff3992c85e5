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
select value from {schema}.meta where key = 'lock_secret';

-- name: lock_acquire
-- The time limit first, because it is read when the wait begins.
with limited as materialized (select set_config('lock_timeout', $3, false))
select pg_advisory_lock($1, $2) from limited;

-- name: lock_release
select pg_advisory_unlock($1, $2);
