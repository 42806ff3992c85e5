-- name: add_build
insert into docverse.build (public_id, project_id, git_ref, object_prefix) values ($1, $2, $3, $4)
returning id, public_id, project_id, git_ref, status, object_prefix, queue_job, date_created;

-- name: build
select id, public_id, project_id, git_ref, docverse.build_status(status, queue_job) as status, object_prefix,
       queue_job, date_created
from docverse.build where project_id = $1 and public_id = $2 and date_deleted is null;

-- name: build_by_id
select id, public_id, project_id, git_ref, docverse.build_status(status, queue_job) as status, object_prefix,
       queue_job, date_created
from docverse.build where id = $1;

-- name: builds_of_project
select id, public_id, project_id, git_ref, docverse.build_status(status, queue_job) as status, object_prefix,
       queue_job, date_created
from docverse.build where project_id = $1 and date_deleted is null order by date_created desc limit $2;

-- name: content_uploaded
-- Not if lifecycle_eval deleted it while the content came in: that would stay for ever.
update docverse.build set content_digest = $2 where id = $1 and status = 'pending' and date_deleted is null
returning id;

-- name: has_content
select content_digest is not null from docverse.build where id = $1;

-- name: signal_uploaded
-- Of two requests at once, the second waits for the first and finds the status changed.
update docverse.build set status = 'uploaded', date_uploaded = clock_timestamp()
where id = $1 and status = 'pending' and date_deleted is null
returning id;

-- name: set_queue_job
update docverse.build set queue_job = $2 where id = $1;

-- name: processing
update docverse.build set status = 'processing', queue_job = $2 where id = $1;

-- name: build_ended
update docverse.build set status = $2, date_completed = clock_timestamp() where id = $1;

-- name: upsert_objects
with given as (
    select * from unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) as o (key, content_hash, content_type, size)
), gone as (
    delete from docverse.build_object b where b.build_id = $1 and b.key <> all ($2::text[])
)
insert into docverse.build_object as b (build_id, key, content_hash, content_type, size)
select $1, g.key, g.content_hash, g.content_type, g.size from given g
on conflict (build_id, key) do update
set content_hash = excluded.content_hash, content_type = excluded.content_type, size = excluded.size
where (b.content_hash, b.content_type, b.size) is distinct from (excluded.content_hash, excluded.content_type, excluded.size);

-- name: has_inventory
-- A build has one object at least, and its inventory is written at once.
select exists (select from docverse.build_object where build_id = $1);

-- name: build_objects
select key, content_hash, content_type, size from docverse.build_object where build_id = $1 order by key;

-- name: releases_before
-- The git refs of the project's other builds that were made before this one and are, or may become, published.
select distinct b.git_ref
from docverse.build b, docverse.build own
where own.id = $1 and b.project_id = own.project_id and b.id <> own.id and b.date_created < own.date_created
  and (docverse.build_status(b.status, b.queue_job) not in ('pending', 'failed')
       or exists (select from docverse.edition e where e.build_id = b.id and e.date_deleted is null))
  and b.date_deleted is null
  and b.git_ref ~ '^v?[0-9]+\.[0-9]+\.[0-9]+$';
