-- name: clock
select clock_timestamp();

-- name: notify
select pg_notify($1, $2);

-- name: act_for
-- {hex}: the tenant's name, which needs no quoting that way; so it can be sent together with a BEGIN.
select set_config('dutiful.tenant', convert_from(decode('{hex}', 'hex'), 'UTF8'), true);
