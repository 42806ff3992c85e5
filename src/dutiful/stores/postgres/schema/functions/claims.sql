-- Finds and claims jobs; renews, releases and expires their leases.

-- Returns every queue level that has a job of p_kinds, and its first one's seq: one walk over the heads of the levels.
create or replace function {schema}.peek(p_kinds text[]) returns table (queue text, priority int, seq bigint)
language plpgsql stable {walk_in_order} as $$ #variable_conflict use_column
begin
    return query
    with recursive head as (
        (select r.queue, r.priority, r.seq from {schema}.ready r where r.kind <> ''
         order by r.queue, r.priority, r.seq limit 1)
        union all
        select n.queue, n.priority, n.seq
        from head h, lateral (
            select r.queue, r.priority, r.seq from {schema}.ready r
            where r.kind <> '' and (r.queue, r.priority) > (h.queue, h.priority)
            order by r.queue, r.priority, r.seq limit 1
        ) n
    )
    select h.queue::text, h.priority, f.seq
    from head h, lateral (
        select r.seq from {schema}.ready r
        where r.queue = h.queue and r.priority = h.priority and r.seq >= h.seq
          and r.kind <> '' and r.kind = any (p_kinds)
        order by r.seq limit 1
    ) f;
end $$;

-- Returns those of these queue levels that have a job of p_kinds among their first p_most beyond a seq, and its seq.
create or replace function {schema}.peek_at(
    p_kinds text[], p_queues text[], p_priorities int[], p_seqs bigint[], p_most int
) returns table (queue text, priority int, seq bigint)
language plpgsql stable {walk_in_order} as $$ #variable_conflict use_column
begin
    return query
    select l.queue, l.priority, f.seq
    from unnest(p_queues, p_priorities, p_seqs) l (queue, priority, seq)
    cross join lateral (
        select x.seq
        from (
            select r.seq, r.kind from {schema}.ready r
            where r.kind <> '' and r.queue = l.queue and r.priority = l.priority and r.seq > l.seq
            order by r.seq limit p_most
        ) x
        where x.kind = any (p_kinds)
        order by x.seq limit 1
    ) f;
end $$;

-- Without the ids that came later.
drop function if exists {schema}.lock_tenant_jobs(text[], text[], int[], bigint[], bigint, text[], int);

-- Locks up to p_limit jobs of these tenants, in the order of the queue levels, each level beyond a seq and an id.
-- They are found first and locked then: a search that locks would lock p_limit of each tenant, and claims beside this one
-- would skip them all. If other claims hold some of those found, more are searched behind them.
create or replace function {schema}.lock_tenant_jobs(
    p_tenants text[], p_queues text[], p_priorities int[], p_seqs bigint[], p_ids uuid[], p_kinds text[], p_limit int
) returns tid[]
language plpgsql volatile {walk_in_order} as $$
declare
    v_tids  tid[] := '{}';
    v_found tid[];
    v_seqs  bigint[] := p_seqs;
    v_ids   uuid[] := p_ids;
    v_ord   bigint := 1;      -- the level in which the search goes on
    v_most  int := p_limit;  -- how many jobs are searched at once
    v_seq   bigint;
    v_id    uuid;
begin
    while cardinality(v_tids) < p_limit loop
        select array_agg(f.tid), (array_agg(f.ord))[count(*)::int], (array_agg(f.seq))[count(*)::int],
               (array_agg(f.job_id))[count(*)::int]
        into v_found, v_ord, v_seq, v_id
        from (
            select r.tid, l.ord, r.seq, r.job_id
            from unnest(p_queues, p_priorities, v_seqs, v_ids) with ordinality as l (queue, priority, seq, id, ord)
            cross join lateral (
                select h.tid, h.seq, h.job_id
                from unnest(p_tenants) t (tenant)
                cross join lateral (
                    select x.ctid as tid, x.seq, x.job_id from {schema}.ready x
                    where x.tenant = t.tenant and x.queue = l.queue and x.priority = l.priority
                      and (x.seq, x.job_id) > (l.seq, l.id) and x.crashes = 0 and x.kind = any (p_kinds)
                    order by x.seq, x.job_id
                    limit v_most
                ) h
                order by h.seq, h.job_id
                limit v_most
            ) r
            where l.ord >= v_ord
            limit v_most
        ) f;
        exit when v_found is null;
        v_tids := v_tids || array(
            select r.tid
            from unnest(v_found) f (tid)
            cross join lateral (
                select x.ctid as tid from {schema}.ready x
                where x.ctid = f.tid and x.tenant = any (p_tenants)
                for update skip locked
            ) r
            limit p_limit - cardinality(v_tids));
        exit when cardinality(v_found) < v_most;
        v_seqs[v_ord] := v_seq;
        v_ids[v_ord] := v_id;
        -- More each time, so that a claim of one job passes many locked ones in a few steps.
        v_most := greatest(least(2 * v_most::bigint, 1000), p_limit);
    end loop;
    return v_tids;
end $$;

-- Without the ids that came later; a second function of this name would make calls ambiguous.
drop function if exists {schema}.claim(
    uuid, text, text[], int[], bigint[], text[], int, int, interval, text[], timestamptz);

-- Claims jobs from queue levels, in the order given, each beyond its floor: dead index entries below it are not
-- scanned. What became due lately is searched in any case, because it may have been committed after the last claim.
-- p_tenants: only jobs of these tenants; null: all jobs, with or without a tenant. p_after: of the jobs whose seq is the
-- floor's next, only those with greater ids; null: all. Thousands may have one run_at, and so one seq.
create or replace function {schema}.claim(
    p_worker uuid, p_lane text, p_queues text[], p_priorities int[], p_floors bigint[], p_kinds text[],
    p_limit int, p_suspects int, p_lease interval, p_tenants text[], p_now timestamptz, p_after uuid[] default null
) returns table (
    {claim_types}
)
language plpgsql volatile {walk_in_order} as $$ #variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_recent bigint := {schema}.seq_at(v_now) - {late_commit};
    v_kinds  text[] := p_kinds;
    v_queues text[] := p_queues;
    v_seqs   bigint[];  -- where each level is searched from: behind this job, or one that would be the last of its seq
    v_ids    uuid[];
    v_tids   tid[];
    v_more   tid[];
begin
    if exists (select 1 from {schema}.pause where scope <> 'limited') then
        if exists (select 1 from {schema}.pause where scope = 'lane' and name in (p_lane, '*')) then
            return;
        end if;
        v_kinds := array(select k from unnest(p_kinds) k
                         where not exists (select 1 from {schema}.pause where scope in ('kind', 'breaker') and name = k));
        v_queues := array(select case when exists (select 1 from {schema}.pause where scope = 'queue' and name = q)
                                      then null else q end
                          from unnest(p_queues) with ordinality u (q, o) order by o);
    end if;

    if p_limit > 0 then
        select array_agg(case when u.floor < v_recent and u.after is not null then u.floor + 1
                              else least(u.floor, v_recent) end),
               array_agg(case when u.floor < v_recent and u.after is not null then u.after
                              else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end)
        into v_seqs, v_ids
        from unnest(p_floors, p_after) u (floor, after);
    end if;
    if p_limit > 0 and p_tenants is not null then
        v_tids := {schema}.lock_tenant_jobs(p_tenants, v_queues, p_priorities, v_seqs, v_ids, v_kinds, p_limit);
    elsif p_limit > 0 then
        v_tids := array(
            select r.tid
            from unnest(v_queues, p_priorities, v_seqs, v_ids) with ordinality as l (queue, priority, seq, id, ord)
            cross join lateral (
                select x.ctid as tid from {schema}.ready x
                where x.queue = l.queue and x.priority = l.priority and (x.seq, x.job_id) > (l.seq, l.id)
                  and x.crashes = 0 and x.kind <> '' and x.kind = any (v_kinds)
                order by x.seq, x.job_id
                limit p_limit
                for update skip locked
            ) r
            limit p_limit);
    end if;
    if p_suspects > 0 and exists (select 1 from {schema}.ready x where x.crashes > 0) then
        -- A job that was running when a worker died is claimed one at a time, so that it takes no other down with it.
        v_more := array(
            select r.tid
            from unnest(v_queues, p_priorities) with ordinality as l (queue, priority, ord)
            cross join lateral (
                select x.ctid as tid from {schema}.ready x
                where x.queue = l.queue and x.priority = l.priority and x.crashes > 0 and x.kind = any (v_kinds)
                  and (p_tenants is null or x.tenant = any (p_tenants))
                order by x.seq, x.job_id
                limit p_suspects
                for update skip locked
            ) r
            limit p_suspects);
        v_tids := v_tids || v_more;
    end if;
    if v_tids is null or cardinality(v_tids) = 0 then return; end if;

    -- Now, because a limit counts as a start what was claimed after it was admitted, which may have been meanwhile.
    v_now := coalesce(p_now, clock_timestamp());

    return query
    {take_ready}
end $$;

-- Claims those of these jobs that are ready and may run, up to p_suspects of which were running when a worker died. The
-- deliveries that named them count as taken.
create or replace function {schema}.claim_jobs(
    p_worker uuid, p_lane text, p_jobs uuid[], p_kinds text[], p_suspects int, p_lease interval, p_tenants text[],
    p_queues text[], p_now timestamptz
) returns table (
    {claim_types}
)
language plpgsql volatile {walk_in_order} as $$ #variable_conflict use_column
declare
    v_now  timestamptz := coalesce(p_now, clock_timestamp());
    v_tids tid[];
    v_jobs uuid[];
begin
    if exists (select 1 from {schema}.pause where scope = 'lane' and name in (p_lane, '*')) then
        return;
    end if;
    with found as (
        select r.tid, r.job_id, r.crashes,
               row_number() over (partition by r.crashes > 0 order by a.ord) as place
        from unnest(p_jobs) with ordinality a (job_id, ord)
        cross join lateral (
            select x.ctid as tid, x.job_id, x.crashes from {schema}.ready x
            where x.job_id = a.job_id and x.kind = any (p_kinds)
              and (p_tenants is null or x.tenant = any (p_tenants))
              and (p_queues is null or x.queue = any (p_queues))
              and not exists (select 1 from {schema}.pause p
                              where p.scope in ('kind', 'breaker') and p.name = x.kind
                                 or p.scope = 'queue' and p.name = x.queue)
            limit 1
            for update of x skip locked
        ) r
    )
    select array_agg(f.tid), array_agg(f.job_id) into v_tids, v_jobs
    from found f where f.crashes = 0 or f.place <= p_suspects;
    if v_tids is null then return; end if;
    v_jobs := array(select d.job_id from {schema}.delivery d
                    where d.job_id = any (v_jobs) and not d.taken for update skip locked);
    update {schema}.delivery d set taken = true where d.job_id = any (v_jobs);

    -- Now, because a limit counts as a start what was claimed after it was admitted, which may have been meanwhile.
    v_now := coalesce(p_now, clock_timestamp());

    return query
    {take_ready}
end $$;

-- Returns which of these claims are still held, and of which a cancel was requested.
create or replace function {schema}.check_claims(p_jobs uuid[], p_claims bigint[])
returns table (job_id uuid, claim_id bigint, cancel boolean)
language plpgsql volatile {look_up_ids} as $$ #variable_conflict use_column
begin
    return query
    select l.job_id, l.claim_id, l.cancel_requested_at is not null
    from {schema}.lease l
    join unnest(p_jobs, p_claims) a (job_id, claim_id) on l.job_id = any (array[a.job_id]) and l.claim_id = a.claim_id;
end $$;

-- Renews the leases of these claims if they are held; returns which are, and of which a cancel was requested.
create or replace function {schema}.renew(p_jobs uuid[], p_claims bigint[], p_lease interval, p_now timestamptz)
returns table (job_id uuid, claim_id bigint, cancel boolean)
language plpgsql volatile {look_up_ids} as $$ #variable_conflict use_column
declare v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    -- A locked row is being settled or cancelled, and not waited for; a progress report's lock does not conflict.
    update {schema}.lease l set expires_at = v_now + p_lease
    where l.ctid = any (array(
        select x.ctid from {schema}.lease x
        join unnest(p_jobs, p_claims) a (job_id, claim_id)
          on x.job_id = any (array[a.job_id]) and x.claim_id = a.claim_id
        for no key update of x skip locked));
    return query select c.job_id, c.claim_id, c.cancel from {schema}.check_claims(p_jobs, p_claims) c;
end $$;

-- Returns claims to ready without spending an attempt, each with the seq it had. As every claim, they stay on record.
create or replace function {schema}.release(p_jobs uuid[], p_claims bigint[]) returns bigint
language plpgsql volatile {look_up_ids} as $$
declare
    v_paused   text[] := {blocked_kinds};
    v_jobs     uuid[];
    v_began_at timestamptz[];
begin
    with gone as (
        delete from {schema}.lease l
        using unnest(p_jobs, p_claims) a (job_id, claim_id)
        where l.job_id = any (array[a.job_id]) and l.claim_id = a.claim_id and l.cancel_requested_at is null
        returning l.job_id, l.claim_id, l.worker_id, l.seq, l.attempt, l.crashes, l.claimed_at
    ), tried as (
        insert into {schema}.attempt (job_id, claim_id, worker_id, claimed_at, ended_at, attempt, outcome)
        select g.job_id, g.claim_id, g.worker_id, g.claimed_at, clock_timestamp(), g.attempt, 'released' from gone g
    ), back as (
        select g.seq, g.job_id, g.claimed_at, g.attempt - 1 as attempt, g.crashes, {route of j}
        from gone g join {schema}.job j on j.id = any (array[g.job_id])
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, {carried})
        select b.seq, b.job_id, {carried of b} from back b where b.kind <> all (v_paused)
    ), to_blocked as (
        insert into {schema}.blocked (job_id, since, run_at, seq, gate, key, {carried})
        select b.job_id, clock_timestamp(), null, b.seq, 'paused', b.kind, {carried of b}
        from back b where b.kind = any (v_paused)
    )
    select coalesce(array_agg(b.job_id), '{}'), array_agg(b.claimed_at) into v_jobs, v_began_at from back b;
    perform {schema}.count_starts(v_jobs, v_began_at);
    perform {schema}.end_phases(v_jobs, array_fill('interrupted'::text, array[cardinality(v_jobs)]), null,
                                clock_timestamp());
    return cardinality(v_jobs);
end $$;

-- Returns the claims of those of these jobs that run, in the order of the jobs.
create or replace function {schema}.held_claims(p_jobs uuid[]) returns table ({held_types})
language plpgsql stable {walk_indexes} as $$ #variable_conflict use_column
begin
    return query
    select l.job_id, l.claim_id, l.attempt, l.crashes, j.kind::text, l.worker_id,
           l.cancel_requested_at is not null, j.tenant::text, j.correlation_id::text
    from unnest(p_jobs) with ordinality a (job_id, ord)
    cross join lateral (select x.* from {schema}.lease x where x.job_id = a.job_id limit 1) l
    cross join lateral (select x.kind, x.tenant, x.correlation_id from {schema}.job x where x.id = a.job_id limit 1) j
    order by a.ord;
end $$;

-- Returns claims that may be rescued because their leases have expired, the longest expired first.
create or replace function {schema}.expired_claims(p_limit int, p_now timestamptz) returns table ({held_types})
language plpgsql stable {walk_in_order} as $$ #variable_conflict use_column
declare v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query
    select {held_columns} from {schema}.held_claims(array(
        select l.job_id from {schema}.lease l where l.expires_at <= v_now and {schema}.may_rescue(v_now)
        order by l.expires_at limit p_limit));
end $$;

-- Returns all claims of a worker, expired or not.
create or replace function {schema}.claims_of_worker(p_worker uuid) returns table ({held_types})
language plpgsql stable {walk_indexes} as $$ #variable_conflict use_column
begin
    return query
    select {held_columns} from {schema}.held_claims(array(
        select l.job_id from {schema}.lease l where l.worker_id = p_worker));
end $$;

-- Returns whether a claim is held and its lease has not expired.
create or replace function {schema}.is_claim_live(p_job uuid, p_claim bigint, p_now timestamptz) returns boolean
language sql stable as $$
    select exists (select 1 from {schema}.lease l
                   where l.job_id = p_job and l.claim_id = p_claim and l.expires_at > p_now)
$$;
