-- What services and people ask for. Each duty is correct when two do it at once.

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
        insert into {schema}.blocked (job_id, since, run_at, priority, attempt, crashes, gate, key, queue, kind, tenant)
        select o.job_id, v_now, o.run_at, o.priority, o.attempt, o.crashes, 'paused', o.kind, o.queue, o.kind, o.tenant
        from in_order o where o.kind = any (v_paused)
    )
    select o.queue::text, o.priority, count(*), max(o.run_at) from in_order o group by o.queue, o.priority;
    -- Last, a row without a queue: when the next one is due.
    return query
    select null::text, null::int, 0::bigint, (
        select s.run_at from {schema}.scheduled s where s.run_at > p_run_floor order by s.run_at limit 1);
end $$;

-- Leases that are over, or those of one worker that is known to be dead.
create function {schema}.lapsed(p_limit int, p_worker uuid, p_now timestamptz)
returns table (
    job_id uuid, claim_id bigint, attempt int, crashes int, kind text, worker_id uuid, cancel_requested boolean,
    tenant text, correlation_id text
)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    if p_worker is null then
        return query
        select l.job_id, l.claim_id, l.attempt, l.crashes, j.kind, l.worker_id, l.cancel_requested_at is not null,
               j.tenant, j.correlation_id
        from {schema}.lease l
        cross join lateral (
            select x.kind, x.tenant, x.correlation_id from {schema}.job x where x.id = l.job_id limit 1
        ) j
        where l.expires_at <= v_now
        order by l.expires_at
        limit p_limit;
    else
        return query
        select l.job_id, l.claim_id, l.attempt, l.crashes, j.kind, l.worker_id, l.cancel_requested_at is not null,
               j.tenant, j.correlation_id
        from {schema}.lease l
        cross join lateral (
            select x.kind, x.tenant, x.correlation_id from {schema}.job x where x.id = l.job_id limit 1
        ) j
        where l.worker_id = p_worker
        limit p_limit;
    end if;
end $$;

-- The claim of one job, if it runs.
create function {schema}.held(p_job uuid)
returns table (
    job_id uuid, claim_id bigint, attempt int, crashes int, kind text, worker_id uuid, cancel_requested boolean,
    tenant text, correlation_id text
)
language plpgsql stable
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    select l.job_id, l.claim_id, l.attempt, l.crashes, j.kind, l.worker_id, l.cancel_requested_at is not null,
           j.tenant, j.correlation_id
    from {schema}.lease l join {schema}.job j on j.id = l.job_id
    where l.job_id = p_job;
end $$;

-- Take jobs out of `blocked`, to their line or their time.
create function {schema}.admit(p_jobs uuid[], p_now timestamptz)
returns table (queue text, priority int, moved bigint)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query
    with free as (
        delete from {schema}.blocked b where b.job_id = any (p_jobs) returning b.*
    ), in_order as (
        select f.*, nextval('{schema}.ready_seq') as seq from (select * from free order by since, job_id) f
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, priority, attempt, crashes, queue, kind, tenant)
        select o.seq, o.job_id, o.priority, o.attempt, o.crashes, o.queue, o.kind, o.tenant
        from in_order o where o.run_at is null or o.run_at <= v_now
    ), to_scheduled as (
        insert into {schema}.scheduled (run_at, job_id, priority, attempt, crashes, queue, kind, tenant)
        select o.run_at, o.job_id, o.priority, o.attempt, o.crashes, o.queue, o.kind, o.tenant
        from in_order o where o.run_at > v_now
    )
    select o.queue::text, o.priority, count(*) from in_order o group by o.queue, o.priority;
end $$;

-- The jobs of kinds that are paused, or whose breaker is open, leave the lines, so that nobody scans past them. That is
-- a walk along all lines; says how many jobs there were.
create function {schema}.shut(p_kinds text[], p_limit int, p_now timestamptz) returns bigint
language plpgsql volatile
as $$
declare
    v_moved bigint;
begin
    with stopped as (
        delete from {schema}.ready r
        where r.ctid = any (array(
            select x.ctid from {schema}.ready x where x.kind = any (p_kinds) limit p_limit for update skip locked))
        returning r.*
    )
    insert into {schema}.blocked (job_id, since, run_at, priority, attempt, crashes, gate, key, queue, kind, tenant)
    select s.job_id, coalesce(p_now, clock_timestamp()), null, s.priority, s.attempt, s.crashes, 'paused', s.kind,
           s.queue, s.kind, s.tenant
    from stopped s;
    get diagnostics v_moved = row_count;
    return v_moved;
end $$;

-- Re-check every gate but that: what may run leaves `blocked`, what never can is cancelled.
create function {schema}.sweep(p_limit int, p_now timestamptz)
returns table (queue text, priority int, moved bigint)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_jobs uuid[];
    v_dead record;
    v_kinds text[];
begin
    -- Kind by kind, so that nobody walks past all the jobs whose gate stays shut.
    v_kinds := array(
        with recursive waits as (
            (select b.key from {schema}.blocked b where b.gate = 'paused' order by b.key limit 1)
            union all
            select n.key
            from waits w, lateral (
                select b.key from {schema}.blocked b where b.gate = 'paused' and b.key > w.key order by b.key limit 1
            ) n
        )
        select w.key from waits w
        where not exists (select 1 from {schema}.pause p
                          where p.scope in ('kind', 'breaker', 'probing') and p.name = w.key));
    v_jobs := array(
        select b.job_id
        from unnest(v_kinds) k
        cross join lateral (
            select x.job_id, x.since from {schema}.blocked x
            where x.gate = 'paused' and x.key = k
            order by x.since, x.job_id
            limit p_limit
            for update skip locked
        ) b
        order by b.since, b.job_id
        limit p_limit);
    if cardinality(v_jobs) > 0 then
        return query select * from {schema}.admit(v_jobs, v_now);
    end if;

    for v_dead in
        select b.job_id, f.job_id as needs_id, f.state
        from {schema}.blocked b
        join {schema}.dependency d on d.job_id = b.job_id
        join {schema}.finished f on f.job_id = d.needs_id and f.state in ('failed', 'cancelled')
        where b.gate = 'dependency'
        limit p_limit
        for update of b skip locked
    loop
        perform {schema}.cancel_waiting(
            v_dead.job_id,
            'job ' || v_dead.needs_id || ', which it depends on, '
                   || case v_dead.state when 'failed' then 'failed' else 'was cancelled' end, v_now);
    end loop;

    v_jobs := array(
        select b.job_id from {schema}.blocked b
        where b.gate = 'dependency'
          and not exists (
              select 1 from {schema}.dependency d
              where d.job_id = b.job_id
                and not exists (select 1 from {schema}.finished f
                                where f.job_id = d.needs_id and f.state in ('completed', 'completed_with_errors')))
        order by b.since, b.job_id
        limit p_limit
        for update skip locked);
    if cardinality(v_jobs) > 0 then
        -- Its kind may have been paused while it waited.
        update {schema}.blocked b set gate = 'paused', key = b.kind
        where b.job_id = any (v_jobs)
          and exists (select 1 from {schema}.pause p
                      where p.scope in ('kind', 'breaker', 'probing') and p.name = b.kind);
        return query select * from {schema}.admit(
            array(select b.job_id from {schema}.blocked b where b.job_id = any (v_jobs) and b.gate = 'dependency'), v_now);
    end if;
end $$;

-- Cancel: a waiting job at once, a running one by request. No row: there is no such job.
create function {schema}.cancel(p_job uuid, p_reason text, p_now timestamptz)
returns table (state text, changed boolean, requested boolean)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_state text;
begin
    if not exists (select 1 from {schema}.job where id = p_job) then
        return;
    end if;
    -- Found nowhere means that it moved while we looked: look again.
    for i in 1..100 loop
        if {schema}.cancel_waiting(p_job, p_reason, v_now) then
            return query select 'cancelled', true, false;
            return;
        end if;
        update {schema}.lease l
        set cancel_requested_at = v_now, cancel_reason = p_reason
        where l.job_id = p_job and l.cancel_requested_at is null;
        if found then
            return query select 'running', true, true;
            return;
        end if;
        if exists (select 1 from {schema}.lease l where l.job_id = p_job) then
            return query select 'running', false, true;
            return;
        end if;
        select f.state into v_state from {schema}.finished f where f.job_id = p_job;
        if found then
            return query select v_state, false, false;
            return;
        end if;
    end loop;
    raise exception 'job % stands in no place: run `dutiful doctor`', p_job;
end $$;

-- Make a scheduled job due now; answers where the job stands then. Null: there is no such job.
create function {schema}.expedite(p_job uuid, p_now timestamptz) returns text
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_row  {schema}.scheduled;
    v_state text;
begin
    for i in 1..100 loop
        delete from {schema}.scheduled where job_id = p_job returning * into v_row;
        if found then
            if exists (select 1 from {schema}.pause
                       where scope in ('kind', 'breaker', 'probing') and name = v_row.kind) then
                insert into {schema}.blocked
                    (job_id, since, run_at, priority, attempt, crashes, gate, key, queue, kind, tenant)
                values (p_job, v_now, v_now, v_row.priority, v_row.attempt, v_row.crashes, 'paused', v_row.kind,
                        v_row.queue, v_row.kind, v_row.tenant);
                return 'blocked';
            end if;
            insert into {schema}.ready (seq, job_id, priority, attempt, crashes, queue, kind, tenant)
            values (nextval('{schema}.ready_seq'), p_job, v_row.priority, v_row.attempt, v_row.crashes, v_row.queue,
                    v_row.kind, v_row.tenant);
            return 'ready';
        end if;
        select j.state into v_state from {schema}.jobs j where j.id = p_job;
        if not found then
            return null;
        end if;
        if v_state <> 'scheduled' then
            return v_state;
        end if;
    end loop;
    raise exception 'job % keeps moving: try again', p_job;
end $$;
