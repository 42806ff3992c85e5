-- name: share_weights
select tenant, weight from {schema}.share;

-- name: running_by_tenant
select j.tenant, count(*) as running
from {schema}.lease l
cross join lateral (select x.tenant from {schema}.job x where x.id = l.job_id limit 1) j
group by j.tenant;

-- name: put_share
insert into {schema}.share (tenant, weight) values ($1, $2) on conflict (tenant) do update set weight = excluded.weight;

-- name: delete_share
delete from {schema}.share where tenant = $1;
