-- name: resign
update {schema}.leader set expires_at = '-infinity' where holder = $1 and expires_at > '-infinity'
returning true;

-- name: is_vacant
select not exists (select 1 from {schema}.leader where name = 'services' and expires_at > clock_timestamp());
