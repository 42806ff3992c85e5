-- What services see to all the time. Each duty is correct when two do it at once.

-- Take or renew the leadership, and see what there is to do. p_run_floor: see promote.
create function {schema}.survey(p_worker uuid, p_ttl interval, p_run_floor timestamptz, p_now timestamptz)
returns table (
    leads boolean, now_at timestamptz, next_run_at timestamptz, next_fire_at timestamptz, lapsed boolean,
    blocked boolean, next_post_at timestamptz, reviewing boolean, unsealed boolean
)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    insert into {schema}.leader as l (name, holder, term, expires_at)
    values ('services', p_worker, 1, v_now + p_ttl)
    on conflict (name) do update
    set holder = p_worker, expires_at = v_now + p_ttl,
        term = l.term + case when l.holder = p_worker then 0 else 1 end
    where l.holder = p_worker or l.expires_at <= v_now;
    if not found then
        return query
        select false, v_now, null::timestamptz, null::timestamptz, false, false, null::timestamptz, false, false;
        return;
    end if;
    return query
    select true, v_now,
           (select s.run_at from {schema}.scheduled s where s.run_at > p_run_floor order by s.run_at limit 1),
           (select min(s.next_at) from {schema}.schedule s where s.enabled),
           exists (select 1 from {schema}.lease l where l.expires_at <= v_now),
           exists (select 1 from {schema}.blocked)
               or exists (select 1 from {schema}.pause where scope in ('kind', 'breaker')),
           (select p.next_at from {schema}.webhook_post p where p.state = 'pending' order by p.next_at limit 1),
           exists (select 1 from {schema}.bulk_run b where b.state = 'running')
               or exists (select 1 from {schema}.dead_letter d where d.status = 'reprocessing'),
           exists (select 1 from {schema}.audit_unsealed);
end $$;

-- Move due jobs to their lines, the longest due first. Below p_run_floor everything was moved before: dead entries
-- there are not scanned again; a row that committed late is found when the caller drops the floor.
create function {schema}.promote(p_limit int, p_run_floor timestamptz, p_now timestamptz)
returns table (queue text, priority int, moved bigint, last_run_at timestamptz)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_paused text[] := array(select name from {schema}.pause where scope in ('kind', 'breaker', 'probing'));
    v_tids   tid[];
begin
    v_tids := array(
        select s.ctid from {schema}.scheduled s
        where s.run_at > p_run_floor and s.run_at <= v_now
        order by s.run_at
        limit p_limit
        for update skip locked);
    return query
    with due as (
        delete from {schema}.scheduled s where s.ctid = any (v_tids) returning s.*
    ), in_order as (
        select d.*, nextval('{schema}.ready_seq') as seq from (select * from due order by run_at, job_id) d
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, priority, attempt, crashes, queue, kind, tenant)
        select o.seq, o.job_id, o.priority, o.attempt, o.crashes, o.queue, o.kind, o.tenant
        from in_order o where o.kind <> all (v_paused)
    ), to_blocked as (
        insert into {schema}.blocked
            (job_id, since, run_at, seq, priority, attempt, crashes, gate, key, queue, kind, tenant)
        select o.job_id, v_now, o.run_at, o.seq, o.priority, o.attempt, o.crashes, 'paused', o.kind, o.queue, o.kind,
               o.tenant
        from in_order o where o.kind = any (v_paused)
    )
    select o.queue::text, o.priority, count(*), max(o.run_at) from in_order o group by o.queue, o.priority;
    -- Last, a row without a queue: when the next one is due.
    return query
    select null::text, null::int, 0::bigint, (
        select s.run_at from {schema}.scheduled s where s.run_at > p_run_floor order by s.run_at limit 1);
end $$;
