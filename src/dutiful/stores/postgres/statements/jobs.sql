-- name: insert_plain
select insert_plain from {schema}.insert_plain($1, $2, {job_numbers_from_3});

-- name: insert_one
select {schema}.insert_one($1, $2, {job_numbers_from_3});

-- name: insert_jobs
select job_id, insertion from {schema}.insert_jobs($1, $2, false, true) order by ord;

-- name: insert_within
-- Every driver can pass one text; the cast is spelled out because some of them misread `::`.
select job_id, insertion from {schema}.insert_jobs(cast(cast($1 as text) as jsonb), null, {notify}, true) order by ord;

-- name: put_rules
-- $2: the kinds that no longer have rules.
with gone as (
    delete from {schema}.payload_rule where kind = any ($2::text[])
)
insert into {schema}.payload_rule as r ({rule})
select {rule of g} from jsonb_populate_recordset(null::{schema}.payload_rule, $1) g
order by g.kind
on conflict (kind) do update set ({rule}) = ({rule of excluded})
where ({rule of r}) is distinct from ({rule of excluded});

-- name: put_defaults
insert into {schema}.kind_default as d ({default})
select {default of g} from jsonb_populate_recordset(null::{schema}.kind_default, $1) g
order by g.kind
on conflict (kind) do update set ({default}) = ({default of excluded})
where ({default of d}) is distinct from ({default of excluded});

-- name: insert_jobs_for
select job_id, insertion from {schema}.insert_for($1, $2, false, true, $3) order by ord;

-- name: insert_within_for
-- Parameters in order of their numbers, because some drivers have no numbered parameters.
select job_id, insertion
from {schema}.insert_for(cast(cast($1 as text) as jsonb), null, {notify}, true, cast($2 as text))
order by ord;
