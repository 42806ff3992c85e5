-- What events are read from. Nothing is written for them: the rows are there already.

-- Each of these jobs that exists, with all that events are made from, as JSON; one statement, so of one snapshot.
create function {schema}.views(p_jobs uuid[]) returns setof json
language plpgsql stable
set timezone = 'UTC' set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    select json_build_object(
        'job', to_json(v),
        'claim_id', coalesce((select l.claim_id from {schema}.lease l where l.job_id = v.id),
                             (select f.claim_id from {schema}.finished f where f.job_id = v.id)),
        'phases', coalesce((
            select json_agg(to_json(p) order by p.position, p.name) from {schema}.phase p where p.job_id = v.id), '[]'),
        'attempts', coalesce((
            select json_agg(to_json(a) order by a.id) from {schema}.attempt a where a.job_id = v.id), '[]'),
        'posts', coalesce((
            select json_agg(json_build_object(
                       'id', p.id, 'url', p.url, 'state', p.state, 'attempts', p.attempts, 'ended_at', p.ended_at,
                       'status', p.status, 'error', p.error) order by p.id)
            from {schema}.webhook_post p where p.job_id = v.id), '[]'),
        'stale_told_at', (select s.told_at from {schema}.stale s where s.job_id = v.id))
    from {schema}.jobs v
    where v.id = any (p_jobs);
end $$;

-- The time from which on rows may still appear, because their transactions have not ended. Whoever has written
-- something has a transaction id, and its rows are of any time since its start; whoever is about to write for the first
-- time gives its rows a time within its statement, which is a matter of milliseconds, or at worst of its lock_timeout.
create function {schema}.settled_until() returns timestamptz
language plpgsql volatile as $$
declare
    v_now   timestamptz := clock_timestamp();
    v_start timestamptz;
begin
    select min(case when a.backend_xid is not null then a.xact_start
                    when a.state = 'active' and a.query_start > v_now - interval '2 s' then a.query_start
                    -- Not shown to our role, or to nobody.
                    when a.state = 'disabled' or a.query = '<insufficient privilege>' then v_now - interval '2 s' end)
    into v_start
    from pg_stat_activity a
    where a.datname = current_database() and a.pid <> pg_backend_pid();
    return least(v_now, v_start);
end $$;

-- What a tombstone says to those who watch.
create function {schema}.inscription(t {schema}.tombstone) returns json
language sql stable as $$
    select json_build_object(
        'job_id', t.job_id, 'kind', t.job -> 'kind', 'queue', t.job -> 'queue', 'tenant', t.job -> 'tenant',
        'correlation_id', t.job -> 'correlation_id', 'stale_at', t.job -> 'stale_at', 'deleted_at', t.deleted_at,
        'told_at', t.told_at)
$$;

-- Those of these jobs, as far as they have been told of.
create function {schema}.tombstones(p_jobs uuid[]) returns setof json
language plpgsql stable
set timezone = 'UTC' set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    return query
    select {schema}.inscription(t) from {schema}.tombstone t where t.job_id = any (p_jobs) and t.told_at is not null;
end $$;

-- First a row without a job: from when on more may appear. Then what happened since, the oldest first: p_limit rows and
-- those of the last one's moment. `tombstone` is null but for jobs that are gone. p_floor: the first id that a job made
-- since then can have.
create function {schema}.stirred(p_since timestamptz, p_floor uuid, p_limit int)
returns table (job_id uuid, at timestamptz, mark text, tombstone json)
language plpgsql volatile
set timezone = 'UTC' set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    -- Looked up before the rows are: what commits in between is found both now and the next time.
    return query select null::uuid, {schema}.settled_until(), null, null::json;
    return query
    select s.job_id, s.at, s.mark, s.tombstone
    from (
        select j.id as job_id, j.created_at as at, 'made' as mark, null::json as tombstone
        from {schema}.job j where j.id >= p_floor and j.created_at >= p_since
        union all
        select l.job_id, greatest(l.claimed_at, g.updated_at, p.ended_at),
               concat_ws(' ', 'claim', l.claim_id, extract(epoch from g.updated_at), extract(epoch from p.ended_at)),
               null
        from {schema}.lease l
        left join {schema}.progress g on g.job_id = l.job_id
        left join lateral (
            select max(x.ended_at) as ended_at from {schema}.phase x where x.job_id = l.job_id) p on true
        where greatest(l.claimed_at, g.updated_at, p.ended_at) >= p_since
        union all
        select a.job_id, a.ended_at, 'attempt ' || a.id, null
        from {schema}.attempt a where a.ended_at >= p_since
        union all
        select f.job_id, f.finished_at, 'finished', null
        from {schema}.finished f where f.finished_at >= p_since
        union all
        select p.job_id, p.updated_at, 'post ' || p.id || ' ' || extract(epoch from p.updated_at), null
        from {schema}.webhook_post p
        where p.state <> 'pending' and p.updated_at >= p_since and p.job_id is not null
        union all
        select s.job_id, s.told_at, 'stale', null
        from {schema}.stale s where s.told_at >= p_since
        union all
        select t.job_id, t.told_at, 'deleted', {schema}.inscription(t)
        from {schema}.tombstone t where t.told_at >= p_since
    ) s
    order by s.at
    fetch first (p_limit) rows with ties;
end $$;
