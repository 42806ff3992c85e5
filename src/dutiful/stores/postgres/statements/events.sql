-- name: has_listeners
select exists (select 1 from {schema}.listener where expires_at > coalesce($1::timestamptz, clock_timestamp()));

-- name: changes_since
-- With a tenant ($4): its changes, and those at the limit, which say how far the call has read.
select number, job_id, at, mark, tombstone, wanted
from (
    select c.number - 1 as number, c.job_id, c.at, c.mark, c.tombstone,
           $4::text is null or $4 = coalesce(c.tombstone ->> 'tenant',
                                             (select j.tenant from {schema}.job j where j.id = c.job_id)) as wanted
    from {schema}.changes_since($1, $2, $3) with ordinality c (job_id, at, mark, tombstone, number)
) c
where coalesce(wanted, false) or number in (0, $3 - 1, $3)
order by number;
