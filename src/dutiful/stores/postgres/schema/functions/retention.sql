-- Retention: marks finished jobs stale, if wanted, and deletes them when their time is over.

-- Returns up to p_limit expired finished jobs, walking their ids upwards, and where to continue (null: at the start).
-- They stay locked until the end of the transaction; a job that others depend on and have not ended is left out. p_stale:
-- only stale jobs whose notices are sent (true), or those that are not stale (false); null: all.
create or replace function {schema}.retention_candidates(
    p_after uuid, p_below uuid, p_cutoff timestamptz, p_limit int, p_stale boolean
) returns table (jobs uuid[], last_id uuid)
language plpgsql volatile {walk_in_order} as $$ #variable_conflict use_column
declare
    v_seen uuid[];
    v_jobs uuid[];
    v_sent uuid[];
    v_free uuid[];
begin
    -- Here and below, the offsets make each a look-up by id, also if the planner believes the table to be empty.
    select array_agg(s.job_id order by s.job_id), array_agg(s.job_id) filter (where s.old) into v_seen, v_jobs
    from (
        -- Stale jobs that are not wanted are not locked, because each lock is a write.
        select f.job_id,
               f.finished_at < p_cutoff
               and (p_stale is null
                    or p_stale = exists (select 1 from {schema}.stale m where m.job_id = f.job_id offset 0)) as old
        from {schema}.finished f
        where f.job_id > p_after and f.job_id < p_below
        order by f.job_id
        limit p_limit
    ) s;
    -- Locked before dependents are looked up, because an insert of one locks the job that it depends on.
    v_jobs := array(select j.id from {schema}.job j where j.id = any (v_jobs) for update skip locked);
    -- A client may hold the record of a delivery in an open transaction: its job is left to a later call.
    v_sent := array(select d.job_id from {schema}.delivery d where d.job_id = any (v_jobs));
    if cardinality(v_sent) > 0 then
        v_free := array(select d.job_id from {schema}.delivery d where d.job_id = any (v_sent) for update skip locked);
        v_jobs := array(select j from unnest(v_jobs) j where j <> all (v_sent) or j = any (v_free));
    end if;
    return query
    select array(select j from unnest(v_jobs) j
                 where not exists (
                           -- A range in order, because an equal id may be searched for in all of the primary key.
                           select 1 from {schema}.dependency d
                           where d.needs_id >= j and d.needs_id <= j
                             and not exists (select 1 from {schema}.finished f where f.job_id = d.job_id offset 0)
                           order by d.needs_id offset 0)
                   and (p_stale is null
                        or p_stale and (select s.sent_at from {schema}.stale s where s.job_id = j) is not null
                        or not p_stale and not exists (select 1 from {schema}.stale s where s.job_id = j offset 0))),
           case when cardinality(v_seen) >= p_limit then v_seen[cardinality(v_seen)] end;
end $$;

-- Deletes jobs with all rows that belong to them, but keeps what job_metrics shows of them.
create or replace function {schema}.delete_jobs(p_jobs uuid[]) returns void
language plpgsql volatile {look_up_ids} as $$
begin
    insert into {schema}.deleted_jobs as d
        (kind, state, hour, tenant, jobs, claimed, wait_microseconds, run_microseconds, run_most)
    select j.kind, f.state, date_trunc('hour', f.finished_at, 'UTC'), coalesce(j.tenant, ''), {ended_summed}
    from {schema}.finished f
    join {schema}.job j on j.id = any (array[f.job_id])
    where f.job_id = any (p_jobs)
    group by 1, 2, 3, 4
    order by 1, 2, 3, 4
    on conflict (hour, kind, state, tenant) do update
    set jobs = d.jobs + excluded.jobs, claimed = d.claimed + excluded.claimed,
        wait_microseconds = d.wait_microseconds + excluded.wait_microseconds,
        run_microseconds = d.run_microseconds + excluded.run_microseconds,
        run_most = greatest(d.run_most, excluded.run_most);
    delete from {schema}.finished f where f.job_id = any (p_jobs);
    delete from {schema}.attempt a where a.job_id = any (p_jobs);
    delete from {schema}.dependency d where d.job_id = any (p_jobs);
    delete from {schema}.phase p where p.job_id = any (p_jobs);
    delete from {schema}.step s where s.job_id = any (p_jobs);
    delete from {schema}.progress g where g.job_id = any (p_jobs);
    delete from {schema}.stale s where s.job_id = any (p_jobs);
    delete from {schema}.delivery d where d.job_id = any (p_jobs);
    delete from {schema}.job j where j.id = any (p_jobs);
end $$;

-- Deletes expired rows of other tables; returns whether there may be more.
create or replace function {schema}.delete_leftovers(p_cutoff timestamptz, p_limit int, p_now timestamptz)
returns boolean
language plpgsql volatile {walk_indexes} as $$
declare
    v_keys  bigint;
    v_posts bigint;
    v_tombs bigint;
    v_dead  bigint;
    v_runs  bigint;
    v_sent  bigint;
begin
    delete from {schema}.unique_key u
    where u.ctid = any (array(
        select k.ctid from {schema}.unique_key k
        where k.scope = 'window' and k.expires_at <= p_now
        limit p_limit
        for update skip locked));
    get diagnostics v_keys = row_count;
    delete from {schema}.webhook_post p
    where p.id = any (array(
        select x.id from {schema}.webhook_post x where x.state <> 'pending' and x.updated_at < p_cutoff limit p_limit));
    get diagnostics v_posts = row_count;
    delete from {schema}.tombstone t
    where t.job_id = any (array(
        select x.job_id from {schema}.tombstone x where x.sent_at < p_now - interval '1 hour' limit p_limit));
    get diagnostics v_tombs = row_count;
    -- Closed dead letters only; each stays at least as long as its job.
    delete from {schema}.dead_letter d
    where d.job_id = any (array(
        select x.job_id from {schema}.dead_letter x
        where x.closed_at < p_cutoff and not exists (select 1 from {schema}.job j where j.id = x.job_id offset 0)
        limit p_limit));
    get diagnostics v_dead = row_count;
    delete from {schema}.bulk_run b
    where b.id = any (array(select x.id from {schema}.bulk_run x where x.ended_at < p_cutoff limit p_limit));
    get diagnostics v_runs = row_count;
    delete from {schema}.unique_key u
    where u.ctid = any (array(
        select k.ctid from {schema}.unique_key k
        where k.scope in ('queued', 'active') and {schema}.is_key_orphaned(k.job_id, k.scope)
        limit p_limit
        for update skip locked));
    delete from {schema}.deleted_jobs d where d.hour < p_now - interval '1 year';
    delete from {schema}.sent_event e
    where e.seq = any (array(
        select x.seq from {schema}.sent_event x where x.expires_at <= p_now and x.delivered limit p_limit));
    get diagnostics v_sent = row_count;
    -- Workers that died without signing off.
    delete from {schema}.worker w where w.expires_at < clock_timestamp() - interval '1 day';
    delete from {schema}.listener l
    where l.id = any (array(
        select x.id from {schema}.listener x where x.expires_at < clock_timestamp() - interval '1 day'
        for update skip locked));
    delete from {schema}.lock k where not exists (
        select 1 from {schema}.lease l where l.job_id = k.job_id and l.claim_id = k.claim_id offset 0);
    delete from {schema}.lock_wait w where not exists (
        select 1 from {schema}.lease l where l.job_id = w.job_id and l.claim_id = w.claim_id offset 0);
    return greatest(v_keys, v_posts, v_tombs, v_dead, v_runs, v_sent) >= p_limit;
end $$;

-- Deletes expired finished jobs; with p_tombstones, leaves a tombstone for each and returns the job. The last row has
-- their number, and the id from which to continue.
create or replace function {schema}.delete_finished(
    p_after uuid, p_below uuid, p_cutoff timestamptz, p_limit int, p_stale_only boolean, p_tombstones boolean,
    p_sent boolean, p_now timestamptz
) returns table (job json, number int, last_id uuid)
language plpgsql volatile set timezone = 'UTC' {walk_indexes} as $$ #variable_conflict use_column
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_jobs uuid[];
    v_last uuid;
begin
    select o.jobs, o.last_id into v_jobs, v_last
    from {schema}.retention_candidates(p_after, p_below, p_cutoff, p_limit, nullif(p_stale_only, false)) o;
    if p_tombstones then
        return query
        with kept as (
            insert into {schema}.tombstone as t (job_id, deleted_at, sent_at, job)
            select v.id, v_now, case when p_sent then v_now end, to_jsonb(v)
            from {schema}.job_records(v_jobs) v
            on conflict (job_id) do update
            set deleted_at = excluded.deleted_at, sent_at = excluded.sent_at, job = excluded.job
            returning t.job_id, t.job
        )
        select k.job::json, null::int, null::uuid from kept k order by k.job_id;
    end if;
    perform {schema}.delete_jobs(v_jobs);
    return query select null::json, cardinality(v_jobs), v_last;
end $$;

-- Marks expired finished jobs as stale; returns as delete_finished does.
create or replace function {schema}.mark_stale(
    p_after uuid, p_below uuid, p_cutoff timestamptz, p_limit int, p_sent boolean, p_now timestamptz
) returns table (job json, number int, last_id uuid)
language plpgsql volatile set timezone = 'UTC' {walk_indexes} as $$ #variable_conflict use_column
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_jobs uuid[];
    v_last uuid;
begin
    select o.jobs, o.last_id into v_jobs, v_last
    from {schema}.retention_candidates(p_after, p_below, p_cutoff, p_limit, false) o;
    insert into {schema}.stale (job_id, stale_at, sent_at)
    select j, v_now, case when p_sent then v_now end from unnest(v_jobs) j;
    return query select to_json(v), null::int, null::uuid from {schema}.job_records(v_jobs) v order by v.id;
    return query select null::json, cardinality(v_jobs), v_last;
end $$;

-- Returns stale marks and deleted jobs whose notices are not sent yet, each the oldest first.
create or replace function {schema}.unsent_notices(p_limit int) returns table (job json, deleted boolean)
language plpgsql stable set timezone = 'UTC' {walk_in_order} as $$ #variable_conflict use_column
begin
    return query
    select u.job, u.deleted
    from (
        (select (select to_json(v) from {schema}.jobs v where v.id = s.job_id) as job, false as deleted, s.stale_at as at
         from {schema}.stale s where s.sent_at is null order by s.stale_at, s.job_id limit p_limit)
        union all
        (select t.job::json, true, t.deleted_at
         from {schema}.tombstone t where t.sent_at is null order by t.deleted_at, t.job_id limit p_limit)
    ) u
    order by u.deleted, u.at
    limit p_limit;
end $$;
