-- What is running: leases are renewed, given back, or over.

-- Which of these claims are still held, and which of those does somebody want cancelled?
create function {schema}.check_claims(p_jobs uuid[], p_claims bigint[])
returns table (job_id uuid, claim_id bigint, cancel boolean)
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    select l.job_id, l.claim_id, l.cancel_requested_at is not null
    from {schema}.lease l
    join unnest(p_jobs, p_claims) a (job_id, claim_id) on a.job_id = l.job_id and a.claim_id = l.claim_id;
end $$;

-- Renew leases that are still ours; answers which are, and which of them somebody wants cancelled.
create function {schema}.renew(p_jobs uuid[], p_claims bigint[], p_lease interval, p_now timestamptz)
returns table (job_id uuid, claim_id bigint, cancel boolean)
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    -- A row that is locked is being settled or cancelled at this moment: no need to wait for it. A report locks it too,
    -- but not against this.
    update {schema}.lease l set expires_at = v_now + p_lease
    from (
        select x.job_id from {schema}.lease x
        join unnest(p_jobs, p_claims) a (job_id, claim_id) on a.job_id = x.job_id and a.claim_id = x.claim_id
        for no key update of x skip locked
    ) k
    where l.job_id = k.job_id;
    return query select * from {schema}.check_claims(p_jobs, p_claims);
end $$;

-- Give claims back unspent, to the places in line that they had.
create function {schema}.give_back(p_jobs uuid[], p_claims bigint[]) returns bigint
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_jobs uuid[];
begin
    with gone as (
        delete from {schema}.lease l
        using unnest(p_jobs, p_claims) a (job_id, claim_id)
        where l.job_id = a.job_id and l.claim_id = a.claim_id and l.cancel_requested_at is null
        returning l.job_id, l.seq, l.attempt, l.crashes
    ), back as (
        insert into {schema}.ready (seq, job_id, priority, attempt, crashes, queue, kind, tenant)
        select g.seq, g.job_id, j.priority, g.attempt - 1, g.crashes, j.queue, j.kind, j.tenant
        from gone g join {schema}.job j on j.id = g.job_id
        returning job_id
    )
    select coalesce(array_agg(b.job_id), '{}') into v_jobs from back b;
    perform {schema}.end_phases(v_jobs, array_fill('interrupted'::text, array[cardinality(v_jobs)]), null,
                                clock_timestamp());
    return cardinality(v_jobs);
end $$;

-- The claims of those of these jobs that run, in the order of the jobs.
create function {schema}.held(p_jobs uuid[])
returns table (
    job_id uuid, claim_id bigint, attempt int, crashes int, kind text, worker_id uuid, cancel_requested boolean,
    tenant text, correlation_id text
)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    select l.job_id, l.claim_id, l.attempt, l.crashes, j.kind, l.worker_id, l.cancel_requested_at is not null,
           j.tenant, j.correlation_id
    from unnest(p_jobs) with ordinality a (job_id, ord)
    cross join lateral (select x.* from {schema}.lease x where x.job_id = a.job_id limit 1) l
    cross join lateral (select x.kind, x.tenant, x.correlation_id from {schema}.job x where x.id = a.job_id limit 1) j
    order by a.ord;
end $$;

-- Those whose leases are over, or those of one worker that is known to be dead.
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
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_jobs uuid[];
begin
    if p_worker is null then
        v_jobs := array(
            select l.job_id from {schema}.lease l where l.expires_at <= v_now order by l.expires_at limit p_limit);
    else
        v_jobs := array(select l.job_id from {schema}.lease l where l.worker_id = p_worker limit p_limit);
    end if;
    return query select * from {schema}.held(v_jobs);
end $$;
