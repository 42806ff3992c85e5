-- name: audited_editions
-- Editions that follow one git ref of a repository, with the rule that holds for them, if one is on. That of the default
-- ref is flagged and never deleted: the project's root would be gone, perhaps because a branch was renamed.
select e.id, e.slug, case e.tracking_mode when 'main' then p.default_ref else e.tracking_params ->> 'git_ref' end as git_ref,
       e.date_ref_deleted, e.lifecycle_exempt or e.tracking_mode = 'main' as exempt, rule.action
from docverse.edition e
join docverse.project p on p.id = e.project_id
left join lateral (
    select r.enabled, r.action from docverse.lifecycle_rule r
    where r.org_id = p.org_id and r.rule = 'ref_deleted' and (r.project_id = p.id or r.project_id is null)
    order by r.project_id nulls last limit 1
) rule on rule.enabled
where p.id = $1 and e.id = coalesce($2, e.id) and e.tracking_mode in ('main', 'git_ref') and e.date_deleted is null
order by e.slug;

-- name: flag_ref
with flagged as (
    update docverse.edition set date_ref_deleted = case when $2 then coalesce(date_ref_deleted, clock_timestamp()) end
    where id = $1 returning project_id
)
update docverse.project p set dashboard_due = clock_timestamp() from flagged where p.id = flagged.project_id;

-- name: audited_projects
select p.id, p.slug, p.title, p.source_repository, p.default_ref, o.id as org_id, o.slug as org_slug,
       o.title as org_title, o.publishing_mode, o.rewrite_rules
from docverse.project p join docverse.organization o on o.id = p.org_id
where p.date_deleted is null and p.source_repository is not null order by o.slug, p.slug;
