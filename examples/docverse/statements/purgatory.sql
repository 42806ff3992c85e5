-- name: set_retention
update docverse.organization set purgatory_retention = $2 where id = $1;

-- name: expired_purgatory
-- Not before it was moved: while a row waits for that, it is all that knows where the content is.
select p.id, p.object_prefix from docverse.purgatory p join docverse.organization o on o.id = p.org_id
where p.org_id = $1 and p.id > $3 and p.date_moved < clock_timestamp() - o.purgatory_retention
order by p.id limit $2;

-- name: forget_purgatory
delete from docverse.purgatory where id = any ($1::bigint[]);
