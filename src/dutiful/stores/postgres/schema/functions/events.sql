-- Reads what events are derived from. No row is written for an event.

-- Records that a process watches for events, for p_ttl. It has its owner's rights, as unlisten has, so that clients can.
-- Any of them may hold a row of another in an open transaction: then it stays as it is, because a watcher that waited would
-- see no events.
create or replace function {schema}.listen(p_listener uuid, p_ttl interval, p_now timestamptz default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
begin
    if p_now is not null then perform {schema}.check_own_time(); end if;
    insert into {schema}.listener (id, expires_at)
    values (p_listener, coalesce(p_now, clock_timestamp()) + least(p_ttl, interval '1 day'))
    on conflict (id) do update set expires_at = excluded.expires_at;
exception when lock_not_available then
    null;
end $$;

create or replace function {schema}.unlisten(p_listener uuid) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
begin
    delete from {schema}.listener where id = p_listener;
exception when lock_not_available then
    null;
end $$;

revoke execute on function {schema}.listen, {schema}.unlisten from public;

-- Returns whether a result has more bytes than that as text; none is larger than null. Of one that is stored in far more
-- bytes than such a text could take, this is known without reading it.
create or replace function {schema}.is_larger(p_result jsonb, p_largest int) returns boolean
language sql immutable as $$
    select case when p_largest is null or p_result is null then false
                when pg_column_size(p_result) > 1000 + 16 * p_largest::bigint then true
                else octet_length(p_result::text) > p_largest end
$$;

-- Returns those of these jobs that exist, with all that events are derived from, as JSON, of one database snapshot, and
-- which results are left out, because they have more than p_largest bytes. Payloads are not among that.
create or replace function {schema}.job_views(p_jobs uuid[], p_largest int) returns setof json
language plpgsql stable set timezone = 'UTC' {look_up_ids} as $$
begin
    -- What is aggregated is ordered by what no index has: in the order of one, all of it might be read.
    return query
    select json_build_object(
        'view', json_build_object(
            'job', to_json(v),
            'claim_id', coalesce((select l.claim_id from {schema}.lease l where l.job_id = v.id),
                                 (select f.claim_id from {schema}.finished f where f.job_id = v.id)),
            'phases', coalesce((
                select json_agg(to_json(p) order by p.position, p.name)
                from (select {viewed_phase} from {schema}.phase x where x.job_id = v.id) p), '[]'),
            'attempts', coalesce((
                select json_agg(to_json(a) order by a.id + 0) from {schema}.attempt a where a.job_id = v.id), '[]'),
            'posts', coalesce((
                select json_agg(json_build_object(
                           'id', p.id, 'url', p.url, 'state', p.state, 'attempts', p.attempts, 'ended_at', p.ended_at,
                           'status', p.status, 'error', p.error) order by p.id::text)
                from {schema}.webhook_post p where p.job_id = v.id), '[]'),
            'stale_sent_at', (select s.sent_at from {schema}.stale s where s.job_id = v.id)),
        'large', coalesce((
            select {schema}.is_larger(f.result, p_largest) from {schema}.finished f where f.job_id = v.id), false),
        'large_phases', coalesce((
            select json_agg(p.name) from {schema}.phase p
            where p.job_id = v.id and {schema}.is_larger(p.result, p_largest)), '[]'))
    from (select {viewed} from {schema}.job_records(p_jobs)) v;
end $$;

-- Returns the same with all results, however large.
create or replace function {schema}.job_snapshots(p_jobs uuid[]) returns setof json
language plpgsql stable {look_up_ids} as $$
begin
    return query select v -> 'view' from {schema}.job_views(p_jobs, null) v;
end $$;

-- Returns a mark of each of these jobs that exists: another one once there is another event of it. Results are not read.
create or replace function {schema}.job_marks(p_jobs uuid[]) returns table (job_id uuid, mark text)
language plpgsql stable set timezone = 'UTC' {look_up_ids} as $$ #variable_conflict use_column
begin
    return query
    select j.id, json_build_array(
        (select l.claim_id from {schema}.lease l where l.job_id = j.id),
        (select f.finished_at from {schema}.finished f where f.job_id = j.id),
        (select g.updated_at from {schema}.progress g where g.job_id = j.id),
        (select json_build_array(count(*), max(a.id + 0), max(a.claim_id), max(a.ended_at))
         from {schema}.attempt a where a.job_id = j.id),
        (select json_agg(p.ended_at order by p.position, p.name) from {schema}.phase p where p.job_id = j.id),
        (select json_agg(p.ended_at order by p.id::text) from {schema}.webhook_post p where p.job_id = j.id),
        (select s.sent_at from {schema}.stale s where s.job_id = j.id))::text
    from {schema}.job j where j.id = any (p_jobs);
end $$;

-- Returns the result of a job, or of its phase, that ended at this time; no row if there is none.
create or replace function {schema}.job_result(p_job uuid, p_phase text, p_ended timestamptz) returns setof text
language plpgsql stable {look_up_ids} as $$
begin
    if not exists (select 1 from {schema}.job j where j.id = p_job) then
        return;  -- or it is another tenant's
    end if;
    -- Times are compared in a way that has no use for an index: in that of the time, many rows may be read.
    return query
    select f.result::text from {schema}.finished f
    where f.job_id = p_job and p_phase is null and f.finished_at is not distinct from p_ended
    union all
    select p.result::text from {schema}.phase p
    where p.job_id = p_job and p.name = p_phase and p.ended_at is not distinct from p_ended;
end $$;

-- Returns the time before which no more rows can appear. A transaction that has written has a transaction id, and its
-- rows may have any time since its start; one that is about to write for the first time stamps its rows within its
-- statement, which takes milliseconds, or at most its lock_timeout.
create or replace function {schema}.committed_until() returns timestamptz
language plpgsql volatile as $$
declare
    v_now   timestamptz := clock_timestamp();
    v_start timestamptz;
begin
    select min(case when a.backend_xid is not null then a.xact_start
                    when a.state = 'active' and a.query_start > v_now - interval '2 s' then a.query_start
                    -- Not shown to this role, or to none.
                    when a.state = 'disabled' or a.query = '<insufficient privilege>' then v_now - interval '2 s' end)
    into v_start
    from pg_stat_activity a
    where a.datname = current_database() and a.pid <> pg_backend_pid();
    return least(v_now, v_start);
end $$;

-- Returns what an event needs of a deleted job.
create or replace function {schema}.tombstone_json(t {schema}.tombstone) returns json
language sql stable as $$
    select json_build_object(
        'job_id', t.job_id, 'kind', t.job -> 'kind', 'queue', t.job -> 'queue', 'tenant', t.job -> 'tenant',
        'correlation_id', t.job -> 'correlation_id', 'stale_at', t.job -> 'stale_at', 'deleted_at', t.deleted_at,
        'sent_at', t.sent_at)
$$;

-- Returns those of these jobs that are deleted, once their notices are sent.
create or replace function {schema}.tombstones(p_jobs uuid[]) returns setof json
language plpgsql stable set timezone = 'UTC' {use_indexes} as $$
begin
    return query
    -- Materialized, because by its notice, all tombstones might be read.
    with found as materialized (select t from {schema}.tombstone t where t.job_id = any (p_jobs))
    select {schema}.tombstone_json(f.t) from found f where (f.t).sent_at is not null;
end $$;

-- Counts the changes between two moments, up to p_most. A job that was made is counted by the time of its id.
create or replace function {schema}.count_changes(p_from timestamptz, p_to timestamptz, p_most bigint) returns bigint
language plpgsql stable {walk_indexes} as $$
begin
    return (
        select count(*)
        from (
            (select 1 from {schema}.job j
             where j.id >= {schema}.floor_id(p_from) and j.id < {schema}.floor_id(p_to) limit p_most)
            union all
            (select 1 from {schema}.finished f where f.finished_at >= p_from and f.finished_at < p_to limit p_most)
            union all
            (select 1 from {schema}.attempt a where a.ended_at >= p_from and a.ended_at < p_to limit p_most)
            union all
            (select 1 from {schema}.webhook_post p
             where p.state <> 'pending' and p.updated_at >= p_from and p.updated_at < p_to limit p_most)
            union all
            (select 1 from {schema}.stale s where s.sent_at >= p_from and s.sent_at < p_to limit p_most)
            union all
            (select 1 from {schema}.tombstone t where t.sent_at >= p_from and t.sent_at < p_to limit p_most)
            limit p_most
        ) change
    );
end $$;

-- Returns a moment until which there are p_limit changes or somewhat more, to the second; null if there are fewer until
-- now. Without it, a reader of old changes would have all newer ones read and sorted for each page, because the largest
-- tables have no index that gives them in order of time.
create or replace function {schema}.page_end(p_since timestamptz, p_limit int) returns timestamptz
language plpgsql stable {walk_indexes} as $$
declare
    v_now    timestamptz := clock_timestamp();
    -- Nothing happened before the oldest job was made.
    v_from   timestamptz := greatest(p_since, least(
        (select {schema}.id_time(j.id) from {schema}.job j order by j.id limit 1) - interval '2 s',
        (select t.sent_at from {schema}.tombstone t where t.sent_at is not null order by t.sent_at limit 1)));
    v_few    interval := '0 s';
    v_enough interval := '16 s';
    v_middle interval;
begin
    while {schema}.count_changes(v_from, v_from + v_enough, p_limit) < p_limit loop
        if v_from + v_enough > v_now then
            return null;
        end if;
        v_few := v_enough;
        v_enough := v_enough * 4;
    end loop;
    while v_enough - v_few > interval '1 s'
          and {schema}.count_changes(v_from, v_from + v_enough, p_limit * 8::bigint) = p_limit * 8::bigint loop
        v_middle := v_few + (v_enough - v_few) / 2;
        if {schema}.count_changes(v_from, v_from + v_middle, p_limit) < p_limit then
            v_few := v_middle;
        else
            v_enough := v_middle;
        end if;
    end loop;
    return v_from + v_enough;
end $$;

-- Returns first a row without a job: the time from which on more rows may appear, and a mark if the call ends before
-- the present. Then the changes since p_since, oldest first: p_limit rows, and all of the last one's moment. `tombstone`
-- is null except for deleted jobs. p_floor: the first id that a job created since then can have.
create or replace function {schema}.changes_since(p_since timestamptz, p_floor uuid, p_limit int)
returns table (job_id uuid, at timestamptz, mark text, tombstone json)
language plpgsql volatile set timezone = 'UTC' {walk_indexes} as $$ #variable_conflict use_column
declare
    -- Those of the last seconds are few, and a poll is to be quick.
    v_end     timestamptz := case when p_since < clock_timestamp() - interval '10 s'
                                  then {schema}.page_end(p_since, p_limit) end;
    v_before  timestamptz := coalesce(v_end, 'infinity');
    -- Clocks differ: a job may have an id that was made later than the job itself.
    v_ceiling uuid := coalesce({schema}.floor_id(v_end + interval '2 s'), 'ffffffff-ffff-ffff-ffff-ffffffffffff');
begin
    -- Read before the rows are: what commits in between is found both now and the next time.
    return query select null::uuid, least({schema}.committed_until(), v_before), case when v_end is not null then 'more' end,
                        null::json;
    return query
    select s.job_id, s.at, s.mark, s.tombstone
    from (
        select j.id as job_id, j.created_at as at, 'made' as mark, null::json as tombstone
        from {schema}.job j
        where j.id >= p_floor and j.id <= v_ceiling and j.created_at >= p_since and j.created_at < v_before
        union all
        select l.job_id, greatest(l.claimed_at, g.updated_at, p.ended_at),
               concat_ws(' ', 'claim', l.claim_id, extract(epoch from g.updated_at), extract(epoch from p.ended_at)),
               null
        from {schema}.lease l
        -- The limit makes this a look-up by id, also if the planner believes the table to be empty.
        left join lateral (select x.updated_at from {schema}.progress x where x.job_id = l.job_id limit 1) g on true
        left join lateral (
            select max(x.ended_at) as ended_at from {schema}.phase x where x.job_id = l.job_id) p on true
        where greatest(l.claimed_at, g.updated_at, p.ended_at) >= p_since
          and greatest(l.claimed_at, g.updated_at, p.ended_at) < v_before
        union all
        select a.job_id, a.ended_at, 'attempt ' || a.id, null
        from {schema}.attempt a where a.ended_at >= p_since and a.ended_at < v_before
        union all
        select f.job_id, f.finished_at, 'finished', null
        from {schema}.finished f where f.finished_at >= p_since and f.finished_at < v_before
        union all
        select p.job_id, p.updated_at, 'post ' || p.id || ' ' || extract(epoch from p.updated_at), null
        from {schema}.webhook_post p
        where p.state <> 'pending' and p.updated_at >= p_since and p.updated_at < v_before and p.job_id is not null
        union all
        select s.job_id, s.sent_at, 'stale', null
        from {schema}.stale s where s.sent_at >= p_since and s.sent_at < v_before
        union all
        select t.job_id, t.sent_at, 'deleted', {schema}.tombstone_json(t)
        from {schema}.tombstone t where t.sent_at >= p_since and t.sent_at < v_before
    ) s
    order by s.at
    fetch first (p_limit) rows with ties;
end $$;
