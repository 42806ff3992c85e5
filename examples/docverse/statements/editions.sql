-- name: add_edition
insert into docverse.edition (project_id, slug, title, kind, tracking_mode, tracking_params)
values ($1, $2, $3, $4, $5, $6)
on conflict (project_id, slug) where date_deleted is null do nothing
returning id;

-- name: edition
select id, project_id, slug, title, kind, tracking_mode, tracking_params, build_id, fence
from docverse.edition where project_id = $1 and slug = $2 and date_deleted is null;

-- name: edition_by_id
select id, project_id, slug, title, kind, tracking_mode, tracking_params, build_id, fence
from docverse.edition where id = $1 and date_deleted is null;

-- name: editions_of_project
select id, project_id, slug, title, kind, tracking_mode, tracking_params, build_id, fence
from docverse.edition where project_id = $1 and date_deleted is null order by slug;

-- name: current_build
-- What an edition shows, and the newest build that it shows or is about to show. One whose processing is over without
-- having published it never will.
select e.build_id, e.publishing_build_id, e.fence, n.public_id, n.date_created
from docverse.edition e
left join lateral (
    select b.public_id, b.date_created from docverse.build b
    where b.id = e.build_id
       or (b.id = e.publishing_build_id
           and docverse.build_status(b.status, b.queue_job) not in ('completed', 'completed_with_errors', 'failed'))
    order by b.date_created desc limit 1
) n on true
where e.id = $1 and e.date_deleted is null;

-- name: publishing
-- Only if the edition is still as it was read, and the build was not deleted: its row is locked as lifecycle_eval locks it.
with there as (
    select b.id from docverse.build b where b.id = $2 and b.date_deleted is null for key share
)
update docverse.edition e set publishing_build_id = there.id, fence = nextval('docverse.fence')
from there where e.id = $1 and e.fence = $3 and e.date_deleted is null
returning e.fence;

-- name: deleting
update docverse.edition set fence = nextval('docverse.fence') where id = $1 and fence = $2 and date_deleted is null
returning fence;

-- name: published
update docverse.edition set build_id = $2, publishing_build_id = null, date_updated = clock_timestamp()
where id = $1 and fence = $3
returning id;

-- name: log_history
insert into docverse.edition_build_history (edition_id, build_id, reason, queue_job) values ($1, $2, $3, $4)
on conflict (edition_id, build_id, queue_job) do nothing;

-- name: assigned_before
select exists (select from docverse.edition_build_history where edition_id = $1 and build_id = $2 and queue_job = $3);

-- name: assigned_later
-- The build of an assignment that was asked for after this job's: ids of jobs are in the order of their enqueueing.
select b.public_id from docverse.edition_build_history h join docverse.build b on b.id = h.build_id
where h.edition_id = $1 and h.reason = 'assigned' and h.queue_job > $2 order by h.queue_job desc limit 1;

-- name: history
select h.id, b.public_id, b.git_ref, h.reason, h.queue_job, h.date_created
from docverse.edition_build_history h join docverse.build b on b.id = h.build_id
where h.edition_id = $1 order by h.id desc;

-- name: shown_editions
-- Everything that dashboards and metadata files show, in the order in which people look for it.
select e.id, e.slug, e.title, e.kind, e.tracking_mode, e.tracking_params, e.date_updated, e.date_ref_deleted,
       b.public_id as build, b.git_ref, b.date_created as build_date
from docverse.edition e left join docverse.build b on b.id = e.build_id
where e.project_id = $1 and e.date_deleted is null
order by array_position(array['main', 'release', 'major', 'minor', 'draft'], e.kind), e.slug;

-- name: shown_edition
select e.id, e.slug, e.title, e.kind, e.tracking_mode, e.tracking_params, e.date_updated, e.date_ref_deleted,
       b.public_id as build, b.git_ref, b.date_created as build_date
from docverse.edition e left join docverse.build b on b.id = e.build_id
where e.id = $1 and e.date_deleted is null;
