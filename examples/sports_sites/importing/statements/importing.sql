-- Both databases understand these; where they differ, each has its own.

-- name: postgres_tables
select cast(relname as text) as name from pg_class where relkind in ('r', 'p', 'v') and pg_table_is_visible(oid);

-- name: sqlite_tables
select name from sqlite_master where type in ('table', 'view');

-- name: make_imported_rows
create table if not exists imported_rows (
    source    text   not null,
    row_id    bigint not null,
    job_id    text   not null,
    error     text,                        -- it had been given up: its job is to be a dead letter
    failed    bigint not null default 0,
    primary key (source, row_id)
);

-- name: lock_imported_rows
-- Otherwise two imports at once would both create the table, or import the same row.
select pg_advisory_xact_lock(hashtext('imported_rows'));

-- name: analysis_queue
select q.lipas_id as row_id, q.lipas_id, q.status, q.added_at
from analysis_queue q
where (cast($1 as bigint) is null or q.lipas_id > cast($1 as bigint)) and not exists (
    select 1 from imported_rows i where i.source = 'analysis_queue' and i.row_id = q.lipas_id)
order by q.lipas_id limit $2;

-- name: elevation_queue
select q.lipas_id as row_id, q.lipas_id, q.status, q.retries, q.last_error, q.added_at
from elevation_queue q
where (cast($1 as bigint) is null or q.lipas_id > cast($1 as bigint)) and not exists (
    select 1 from imported_rows i where i.source = 'elevation_queue' and i.row_id = q.lipas_id)
order by q.lipas_id limit $2;

-- name: email_out_queue
select q.id as row_id, q.message, q.attempts, q.send_after, q.sent_at, q.error
from email_out_queue q
where (cast($1 as bigint) is null or q.id > cast($1 as bigint)) and not exists (
    select 1 from imported_rows i where i.source = 'email_out_queue' and i.row_id = q.id)
order by q.id limit $2;

-- name: integration_out_queue
select q.id as row_id, q.lipas_id, q.added_at, q.synced_at
from integration_out_queue q
where (cast($1 as bigint) is null or q.id > cast($1 as bigint)) and not exists (
    select 1 from imported_rows i where i.source = 'integration_out_queue' and i.row_id = q.id)
order by q.id limit $2;

-- name: webhook_queue
select q.id as row_id, q.batch, q.status, q.last_error, q.added_at
from webhook_queue q
where (cast($1 as bigint) is null or q.id > cast($1 as bigint)) and not exists (
    select 1 from imported_rows i where i.source = 'webhook_queue' and i.row_id = q.id)
order by q.id limit $2;

-- name: note
insert into imported_rows (source, row_id, job_id, error) values ($1, $2, $3, $4);

-- name: not_failed_yet
select source, row_id, job_id, error from imported_rows where error is not null and failed = 0 order by source, row_id;

-- name: note_failed
update imported_rows set failed = 1 where source = $1 and row_id = $2;
