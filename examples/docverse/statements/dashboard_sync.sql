-- name: put_template
insert into docverse.dashboard_template as t (org_id, project_id, repository, git_ref, path) values ($1, $2, $3, $4, $5)
on conflict (org_id, project_id) do update
set repository = excluded.repository, git_ref = excluded.git_ref, path = excluded.path
returning t.id;

-- name: template
select t.id, t.org_id, t.project_id, t.repository, t.git_ref, t.path, t.commit_sha, t.object_prefix, p.slug as project_slug
from docverse.dashboard_template t left join docverse.project p on p.id = t.project_id
where t.id = $1;

-- name: templates_of_ref
select t.id, t.project_id from docverse.dashboard_template t
where t.org_id = $1 and t.repository = $2 and t.git_ref = $3 order by t.id;

-- name: template_synced
update docverse.dashboard_template set commit_sha = $2, object_prefix = $3, date_synced = clock_timestamp() where id = $1;

-- name: record_delivery
insert into docverse.github_delivery (org_id, delivery_id) values ($1, $2)
on conflict do nothing returning delivery_id;
