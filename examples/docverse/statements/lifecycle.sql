-- name: put_rule
insert into docverse.lifecycle_rule as r (org_id, project_id, rule, enabled, action, older_than)
values ($1, $2, $3, $4, $5, $6)
on conflict (org_id, project_id, rule) do update
set enabled = excluded.enabled, action = excluded.action, older_than = excluded.older_than;

-- name: rules_of_org
select r.rule, r.enabled, r.action, r.older_than, p.slug as project
from docverse.lifecycle_rule r left join docverse.project p on p.id = r.project_id
where r.org_id = $1 order by p.slug nulls first, r.rule;

-- name: set_exempt
update docverse.edition set lifecycle_exempt = $2 where id = $1;

-- name: stale_drafts
-- Drafts that no build has updated for as long as the rule of their project, or else of their organization, allows.
select e.id
from docverse.edition e
join docverse.project p on p.id = e.project_id
cross join lateral (
    select r.enabled, r.older_than from docverse.lifecycle_rule r
    where r.org_id = p.org_id and r.rule = 'draft_inactivity' and (r.project_id = p.id or r.project_id is null)
    order by r.project_id nulls last limit 1
) rule
where p.org_id = $1 and e.id = coalesce($2, e.id) and e.kind = 'draft' and e.date_deleted is null
  and not e.lifecycle_exempt and rule.enabled and e.date_updated < clock_timestamp() - rule.older_than
order by e.id;

-- name: orphan_builds
-- Builds that no edition shows, or is about to show, and that no job processes.
select b.id
from docverse.build b
join docverse.project p on p.id = b.project_id
cross join lateral (
    select r.enabled, r.older_than from docverse.lifecycle_rule r
    where r.org_id = p.org_id and r.rule = 'build_orphan' and (r.project_id = p.id or r.project_id is null)
    order by r.project_id nulls last limit 1
) rule
where p.org_id = $1 and b.id = coalesce($2, b.id) and b.date_deleted is null
  and rule.enabled and b.date_created < clock_timestamp() - rule.older_than
  and docverse.build_status(b.status, b.queue_job) not in ('uploaded', 'processing')
  and not exists (select from docverse.edition e
                  where b.id in (e.build_id, e.publishing_build_id) and e.date_deleted is null)
  and not exists (select from dutiful.jobs j
                  where j.kind = 'edition_update' and j.finished_at is null
                    and (j.payload ->> 'assigned_build_id')::bigint = b.id)
order by b.id;

-- name: lock_build
select b.id from docverse.build b where b.id = $1 and b.date_deleted is null for update;

-- name: delete_build
update docverse.build set date_deleted = clock_timestamp() where id = $1;

-- name: delete_edition
with gone as (
    update docverse.edition set date_deleted = clock_timestamp() where id = $1 and fence = $2 returning project_id
)
update docverse.project p set dashboard_due = clock_timestamp() from gone where p.id = gone.project_id;

-- name: due_dashboards
select id from docverse.project where org_id = $1 and dashboard_due is not null and date_deleted is null order by id;

-- name: condemn
-- One row for each content that is on its way; a second attempt finds that of the first.
insert into docverse.purgatory (org_id, edition_id, build_id, object_prefix, moved_from, reason)
values ($1, $2, $3, $4, $5, $6)
on conflict do nothing;

-- name: condemned
select id, object_prefix, moved_from from docverse.purgatory
where (edition_id = $1 or build_id = $2) and date_moved is null;

-- name: moved
update docverse.purgatory set date_moved = clock_timestamp() where id = $1;

-- name: unmoved_builds
-- Of workers that died between the deletion of a build and the move of its content.
select p.build_id from docverse.purgatory p join docverse.build b on b.id = p.build_id
where p.org_id = $1 and p.date_moved is null and b.date_deleted is not null;
