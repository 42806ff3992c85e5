-- name: survey
select leads, now_at, next_run_at, next_fire_at, expired, blocked, next_post_at, reviewing, unsealed
from {schema}.survey($1, $2, $3, $4);

-- name: resign
update {schema}.leader set expires_at = '-infinity' where holder = $1;
