-- name: add_org
insert into docverse.organization (slug, title, publishing_mode, rewrite_rules) values ($1, $2, $3, $4)
on conflict do nothing
returning id as org_id, slug as org_slug, title as org_title, publishing_mode, rewrite_rules;

-- name: org
select id as org_id, slug as org_slug, title as org_title, publishing_mode, rewrite_rules
from docverse.organization where slug = $1;

-- name: org_by_id
select id as org_id, slug as org_slug, title as org_title, publishing_mode, rewrite_rules
from docverse.organization where id = $1;

-- name: orgs
select id as org_id, slug as org_slug, title as org_title, publishing_mode, rewrite_rules
from docverse.organization order by slug;

-- name: add_token
insert into docverse.api_token (token_hash, org_id, role) values ($1, $2, $3);

-- name: token
select t.org_id, o.slug as org_slug, t.role
from docverse.api_token t join docverse.organization o on o.id = t.org_id where t.token_hash = $1;

-- name: add_project
insert into docverse.project (org_id, slug, title, source_repository, default_ref) values ($1, $2, $3, $4, $5)
on conflict do nothing
returning id;

-- name: project
select p.id, p.slug, p.title, p.source_repository, p.default_ref, o.id as org_id, o.slug as org_slug,
       o.title as org_title, o.publishing_mode, o.rewrite_rules
from docverse.project p join docverse.organization o on o.id = p.org_id
where o.slug = $1 and p.slug = $2 and p.date_deleted is null;

-- name: project_by_id
select p.id, p.slug, p.title, p.source_repository, p.default_ref, o.id as org_id, o.slug as org_slug,
       o.title as org_title, o.publishing_mode, o.rewrite_rules
from docverse.project p join docverse.organization o on o.id = p.org_id
where p.id = $1;

-- name: dashboard_due
select dashboard_due from docverse.project where id = $1;

-- name: dashboard_rendered
-- Unless an edition was changed after what is shown was read.
update docverse.project set dashboard_due = null where id = $1 and dashboard_due = $2;

-- name: projects_of_org
select p.id, p.slug, p.title, p.source_repository, p.default_ref, o.id as org_id, o.slug as org_slug,
       o.title as org_title, o.publishing_mode, o.rewrite_rules
from docverse.project p join docverse.organization o on o.id = p.org_id
where o.id = $1 and p.date_deleted is null order by p.slug;
