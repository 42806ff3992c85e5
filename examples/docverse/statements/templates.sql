-- name: template_of_project
-- The project's own, else its organization's; only if it has been synchronised.
select t.object_prefix, t.commit_sha
from docverse.dashboard_template t join docverse.project p on p.org_id = t.org_id
where p.id = $1 and (t.project_id = p.id or t.project_id is null) and t.object_prefix is not null
order by t.project_id nulls last limit 1;
