-- Trees: all jobs of one correlation id. p_root: the job whose own id it is; p_tenant: only its jobs, null for any.

-- Returns up to p_limit ids of a tree below p_before, the newest first.
create or replace function {schema}.tree_ids(
    p_correlation text, p_root uuid, p_tenant text, p_before uuid, p_limit int
) returns setof uuid
language plpgsql stable {walk_in_order} as $$
begin
    return query
    (select j.id from {schema}.job j
     where j.correlation_id = p_correlation and j.id < coalesce(p_before, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
       and (p_tenant is null or j.tenant = p_tenant)
     order by j.id desc
     limit p_limit)
    union all
    -- It is the oldest, unless a job was enqueued with its id as a correlation id before.
    (select j.id from {schema}.job j
     where j.id = p_root and j.correlation_id is null and (p_before is null or j.id < p_before)
       and (p_tenant is null or j.tenant = p_tenant)
     limit 1);
end $$;

-- Returns the ids of the p_limit oldest jobs of a tree, or of those that failed.
create or replace function {schema}.oldest_of_tree(
    p_correlation text, p_root uuid, p_tenant text, p_failed boolean, p_limit int
) returns setof uuid
language plpgsql stable {walk_in_order} as $$
begin
    return query
    select t.id
    from (
        (select j.id from {schema}.job j
         where j.id = p_root and j.correlation_id is null and (p_tenant is null or j.tenant = p_tenant)
           and (not p_failed or exists (select 1 from {schema}.finished f
                                        where f.job_id = j.id and f.state = 'failed' offset 0))
         limit 1)
        union all
        (select j.id from {schema}.job j
         where j.correlation_id = p_correlation and (p_tenant is null or j.tenant = p_tenant)
           and (not p_failed or exists (select 1 from {schema}.finished f
                                        where f.job_id = j.id and f.state = 'failed' offset 0))
         order by j.id
         limit p_limit)
    ) t
    limit p_limit;
end $$;

-- Returns a row for each state that a job of the tree is in.
create or replace function {schema}.tree_progress(p_correlation text, p_root uuid, p_tenant text)
returns table (state text, jobs bigint, created_at timestamptz, started_at timestamptz, finished_at timestamptz)
language plpgsql stable {walk_indexes} as $$ #variable_conflict use_column
begin
    return query
    select p.state, count(*), min(p.created_at), min(p.started_at), max(p.finished_at)
    from {schema}.tree_ids(p_correlation, p_root, p_tenant, null, 2147483647) t (id)
    -- The limits make these look-ups for each, whatever the statistics say.
    cross join lateral (select x.created_at from {schema}.job x where x.id = t.id limit 1) j
    cross join lateral (
        select j.created_at, f.state, f.claimed_at as started_at, f.finished_at
        from (select x.* from {schema}.finished x where x.job_id = t.id limit 1) f
        union all
        select j.created_at, 'running', l.claimed_at, null
        from (select x.* from {schema}.lease x where x.job_id = t.id limit 1) l
        union all
        select j.created_at, 'ready', null, null
        from (select 1 from {schema}.ready x where x.job_id = t.id limit 1) r
        union all
        select j.created_at, 'scheduled', null, null
        from (select 1 from {schema}.scheduled x where x.job_id = t.id limit 1) s
        union all
        select j.created_at, 'blocked', null, null
        from (select 1 from {schema}.blocked x where x.job_id = t.id limit 1) b
    ) p
    group by p.state
    order by p.state;
end $$;

-- Cancels those of the next p_limit jobs that have not ended; last_id: where the next step begins, null: at no more.
create or replace function {schema}.cancel_tree(
    p_correlation text, p_root uuid, p_tenant text, p_reason text, p_before uuid, p_limit int, p_now timestamptz
) returns table (cancelled int, requested uuid[], last_id uuid)
language plpgsql volatile as $$ #variable_conflict use_column
declare
    v_ids       uuid[] := array(
        select t from {schema}.tree_ids(p_correlation, p_root, p_tenant, p_before, p_limit) t order by t desc limit p_limit);
    v_id        uuid;
    v_came      record;
    v_cancelled int := 0;
    v_requested uuid[] := '{}';
begin
    foreach v_id in array v_ids loop
        select c.changed, c.requested into v_came from {schema}.cancel(v_id, p_reason, p_now) c;
        if v_came.requested then
            v_requested := v_requested || v_id;
        elsif v_came.changed then
            v_cancelled := v_cancelled + 1;
        end if;
    end loop;
    return query select v_cancelled, v_requested,
                        case when cardinality(v_ids) >= p_limit then v_ids[cardinality(v_ids)] end;
end $$;
