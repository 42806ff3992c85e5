-- name: put_token
insert into {schema}.api_token (hash, {token})
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
on conflict (id) do nothing;

-- name: find_token
select {token} from {schema}.api_token where hash = $1;

-- name: tokens
select {token} from {schema}.api_token order by created_at desc, id desc;

-- name: revoke_token
update {schema}.api_token set revoked_at = coalesce($2, clock_timestamp())
where id = $1 and revoked_at is null
returning id;

-- name: touch_tokens
update {schema}.api_token set last_used_at = greatest(last_used_at, coalesce($2, clock_timestamp()))
where id = any ($1);
