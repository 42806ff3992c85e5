-- name: heartbeat
insert into {schema}.worker
       (id, name, host, pid, process_started, started_at, seen_at, expires_at, lanes, kinds, locks)
select $1, $2, $3, $4, $5, $6, n.now, n.now + $7, $8, $9, $10
from (select coalesce($11::timestamptz, clock_timestamp()) as now) n
on conflict (id) do update
set seen_at = excluded.seen_at, expires_at = excluded.expires_at, lanes = excluded.lanes, kinds = excluded.kinds,
    locks = excluded.locks;

-- name: delete_worker
delete from {schema}.worker where id = $1;

-- name: processes_with_heartbeat
select host, pid, process_started
from {schema}.worker
where expires_at > coalesce($1::timestamptz, clock_timestamp());

-- name: workers
select w.id, w.name, w.host, w.pid, w.process_started, w.started_at, w.seen_at, w.lanes, w.kinds, w.locks,
       w.expires_at > clock_timestamp() as alive,
       exists (select 1 from {schema}.leader l
               where l.holder = w.id and l.expires_at > clock_timestamp()) as "leading"
from {schema}.worker w
order by w.started_at;
