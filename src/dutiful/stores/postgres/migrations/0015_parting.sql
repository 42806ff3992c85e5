-- How finished jobs go: marked stale first, if so wished, and deleted when their time is over.

-- Up to p_limit finished jobs of old, walking their ids upwards, and where to begin next (null: at the start). They are
-- locked until the end of the transaction; a job that others still wait for is left out. p_stale: only those that are
-- stale and have been told of (true), or are not stale (false); null: all.
create function {schema}.outdated(p_after uuid, p_below uuid, p_cutoff timestamptz, p_limit int, p_stale boolean)
returns table (jobs uuid[], last_id uuid)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_seen uuid[];
    v_jobs uuid[];
begin
    select array_agg(s.job_id order by s.job_id), array_agg(s.job_id) filter (where s.old) into v_seen, v_jobs
    from (
        -- What is stale already, and is not wanted, is not locked either: each lock is a write.
        select f.job_id,
               f.finished_at < p_cutoff
               and (p_stale is null
                    or p_stale = exists (select 1 from {schema}.stale m where m.job_id = f.job_id)) as old
        from {schema}.finished f
        where f.job_id > p_after and f.job_id < p_below
        order by f.job_id
        limit p_limit
    ) s;
    -- Locked first, looked at then: whoever has just made a job depend on one of these holds a lock on it.
    v_jobs := array(select j.id from {schema}.job j where j.id = any (v_jobs) for update skip locked);
    return query
    select array(select j from unnest(v_jobs) j
                 where not exists (
                           select 1 from {schema}.dependency d join {schema}.blocked b on b.job_id = d.job_id
                           where d.needs_id = j)
                   and (p_stale is null
                        or p_stale and exists (
                               select 1 from {schema}.stale s where s.job_id = j and s.told_at is not null)
                        or not p_stale and not exists (select 1 from {schema}.stale s where s.job_id = j))),
           case when cardinality(v_seen) >= p_limit then v_seen[cardinality(v_seen)] end;
end $$;

-- Delete jobs with all that belongs to them.
create function {schema}.forget(p_jobs uuid[]) returns void
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
    delete from {schema}.finished f where f.job_id = any (p_jobs);
    delete from {schema}.attempt a where a.job_id = any (p_jobs);
    delete from {schema}.dependency d where d.job_id = any (p_jobs);
    delete from {schema}.phase p where p.job_id = any (p_jobs);
    delete from {schema}.progress g where g.job_id = any (p_jobs);
    delete from {schema}.stale s where s.job_id = any (p_jobs);
    delete from {schema}.job j where j.id = any (p_jobs);
end $$;

-- Delete what nobody needs any longer: in every step what costs a glance to find, at the end of a walk the rest. Says
-- whether there may be more.
create function {schema}.tidy(p_cutoff timestamptz, p_limit int, p_end boolean, p_now timestamptz) returns boolean
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_posts bigint;
    v_tombs bigint;
    v_dead  bigint;
    v_runs  bigint;
begin
    delete from {schema}.unique_key u where u.scope = 'window' and u.expires_at < p_cutoff;
    delete from {schema}.webhook_post p
    where p.id = any (array(
        select x.id from {schema}.webhook_post x where x.state <> 'pending' and x.updated_at < p_cutoff limit p_limit));
    get diagnostics v_posts = row_count;
    delete from {schema}.tombstone t
    where t.job_id = any (array(
        select x.job_id from {schema}.tombstone x where x.told_at < p_now - interval '1 hour' limit p_limit));
    get diagnostics v_tombs = row_count;
    -- Closed dead letters only; each stays at least as long as its job.
    delete from {schema}.dead_letter d
    where d.job_id = any (array(
        select x.job_id from {schema}.dead_letter x
        where x.closed_at < p_cutoff and not exists (select 1 from {schema}.job j where j.id = x.job_id)
        limit p_limit));
    get diagnostics v_dead = row_count;
    delete from {schema}.bulk_run b
    where b.id = any (array(select x.id from {schema}.bulk_run x where x.ended_at < p_cutoff limit p_limit));
    get diagnostics v_runs = row_count;
    if not p_end then
        return greatest(v_posts, v_tombs, v_dead, v_runs) >= p_limit;
    end if;
    delete from {schema}.unique_key u
    where u.ctid = any (array(
        select k.ctid from {schema}.unique_key k
        where k.scope in ('queued', 'active') and {schema}.is_left_behind(k.job_id, k.scope)
        limit p_limit
        for update skip locked));
    -- Those that died without a word, some time ago.
    delete from {schema}.worker w where w.expires_at < clock_timestamp() - interval '1 day';
    delete from {schema}.listener l where l.expires_at < clock_timestamp() - interval '1 day';
    delete from {schema}.lock k where not exists (
        select 1 from {schema}.lease l where l.job_id = k.job_id and l.claim_id = k.claim_id);
    delete from {schema}.lock_wait w where not exists (
        select 1 from {schema}.lease l where l.job_id = w.job_id and l.claim_id = w.claim_id);
    return greatest(v_posts, v_tombs, v_dead, v_runs) >= p_limit;
end $$;

-- Delete finished jobs of old.
create function {schema}.retain(
    p_after uuid, p_below uuid, p_cutoff timestamptz, p_limit int, p_stale_only boolean, p_now timestamptz
) returns table (deleted bigint, last_id uuid)
language plpgsql volatile as $$
#variable_conflict use_column
declare
    v_jobs uuid[];
    v_last uuid;
begin
    select o.jobs, o.last_id into v_jobs, v_last
    from {schema}.outdated(p_after, p_below, p_cutoff, p_limit, nullif(p_stale_only, false)) o;
    perform {schema}.forget(v_jobs);
    perform {schema}.tidy(p_cutoff, p_limit, v_last is null, coalesce(p_now, clock_timestamp()));
    return query select cardinality(v_jobs)::bigint, v_last;
end $$;

-- The same, but it leaves a tombstone for each job and says which they were. The last row has no job but the id from
-- which on to go on.
create function {schema}.remove(
    p_after uuid, p_below uuid, p_cutoff timestamptz, p_limit int, p_stale_only boolean, p_told boolean,
    p_now timestamptz
) returns table (job json, last_id uuid)
language plpgsql volatile
set timezone = 'UTC' set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_jobs uuid[];
    v_last uuid;
begin
    select o.jobs, o.last_id into v_jobs, v_last
    from {schema}.outdated(p_after, p_below, p_cutoff, p_limit, nullif(p_stale_only, false)) o;
    return query
    with buried as (
        insert into {schema}.tombstone as t (job_id, deleted_at, told_at, job)
        select v.id, v_now, case when p_told then v_now end, to_jsonb(v) from {schema}.jobs v where v.id = any (v_jobs)
        on conflict (job_id) do update
        set deleted_at = excluded.deleted_at, told_at = excluded.told_at, job = excluded.job
        returning t.job_id, t.job
    )
    select b.job::json, null::uuid from buried b order by b.job_id;
    perform {schema}.forget(v_jobs);
    perform {schema}.tidy(p_cutoff, p_limit, v_last is null, v_now);
    return query select null::json, v_last;
end $$;

-- Mark finished jobs of old as stale; answers as remove does.
create function {schema}.mark_stale(
    p_after uuid, p_below uuid, p_cutoff timestamptz, p_limit int, p_told boolean, p_now timestamptz
) returns table (job json, last_id uuid)
language plpgsql volatile
set timezone = 'UTC' set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_jobs uuid[];
    v_last uuid;
begin
    select o.jobs, o.last_id into v_jobs, v_last
    from {schema}.outdated(p_after, p_below, p_cutoff, p_limit, false) o;
    insert into {schema}.stale (job_id, stale_at, told_at)
    select j, v_now, case when p_told then v_now end from unnest(v_jobs) j;
    return query select to_json(v), null::uuid from {schema}.jobs v where v.id = any (v_jobs) order by v.id;
    return query select null::json, v_last;
end $$;

-- What nobody has been told of yet: stale marks, then deleted jobs, each the oldest first.
create function {schema}.untold(p_limit int) returns table (job json, deleted boolean)
language plpgsql stable
set timezone = 'UTC' set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    select u.job, u.deleted
    from (
        (select (select to_json(v) from {schema}.jobs v where v.id = s.job_id) as job, false as deleted, s.stale_at as at
         from {schema}.stale s where s.told_at is null order by s.stale_at, s.job_id limit p_limit)
        union all
        (select t.job::json, true, t.deleted_at
         from {schema}.tombstone t where t.told_at is null order by t.deleted_at, t.job_id limit p_limit)
    ) u
    order by u.deleted, u.at
    limit p_limit;
end $$;
