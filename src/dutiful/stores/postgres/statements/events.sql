-- name: listen
insert into {schema}.listener (id, expires_at)
values ($1, coalesce($3::timestamptz, clock_timestamp()) + $2)
on conflict (id) do update set expires_at = excluded.expires_at;

-- name: unlisten
delete from {schema}.listener where id = $1;

-- name: has_listeners
select exists (select 1 from {schema}.listener where expires_at > coalesce($1::timestamptz, clock_timestamp()));
