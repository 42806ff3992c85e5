-- name: clock
select clock_timestamp();

-- name: notify
-- As wake_workers does, which not every role may execute.
select pg_notify($1, $2) where {notify_room};

-- name: notify_if_near
select pg_notify($1, '[]')
where {notify_room} and exists (select 1 from unnest($2::timestamptz[]) r (at) where r.at < {near});

-- name: act_for
-- {hex}: the tenant's name, which needs no quoting that way; so it can be sent together with a BEGIN.
select set_config('dutiful.tenant', convert_from(decode('{hex}', 'hex'), 'UTF8'), true);
