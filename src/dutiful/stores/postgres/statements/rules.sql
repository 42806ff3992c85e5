-- name: put_rules
-- $2: the kinds that have none any more.
with given as (
    select g.kind, g.size_limit, g.required, g.versions, g.version_field, g.default_version, g.tenant_field,
           g.correlation_field, g.unique_field, g.unique_as
    from jsonb_to_recordset($1::text::jsonb)
      g (kind text, size_limit int, required text[], versions text[], version_field text, default_version text,
         tenant_field text, correlation_field text, unique_field text, unique_as jsonb)
), gone as (
    delete from {schema}.payload_rule where kind = any ($2::text[])
)
insert into {schema}.payload_rule as r
    (kind, size_limit, required, versions, version_field, default_version, tenant_field, correlation_field,
     unique_field, unique_as)
select g.kind, g.size_limit, g.required, g.versions, g.version_field, g.default_version, g.tenant_field,
       g.correlation_field, g.unique_field, g.unique_as
from given g
order by g.kind
on conflict (kind) do update
set size_limit = excluded.size_limit, required = excluded.required, versions = excluded.versions,
    version_field = excluded.version_field, default_version = excluded.default_version,
    tenant_field = excluded.tenant_field, correlation_field = excluded.correlation_field,
    unique_field = excluded.unique_field, unique_as = excluded.unique_as
where row(r.size_limit, r.required, r.versions, r.version_field, r.default_version, r.tenant_field, r.correlation_field,
          r.unique_field, r.unique_as) is distinct from
      row(excluded.size_limit, excluded.required, excluded.versions, excluded.version_field, excluded.default_version,
          excluded.tenant_field, excluded.correlation_field, excluded.unique_field, excluded.unique_as);
