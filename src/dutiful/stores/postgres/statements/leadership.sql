-- name: resign
update {schema}.leader set expires_at = '-infinity' where holder = $1;
