-- Phases and progress: what the holder of a claim reports while its job runs.

-- Writes reports and phase marks, a job's marks in their order; returns the claims that are not held, without a write.
-- A claim whose cancellation was requested marks no phase: what has not ended by then is cancelled with its job.
create or replace function {schema}.report_progress(
    p_jobs uuid[], p_claims bigint[], p_phases text[], p_percents double precision[], p_overalls int[],
    p_messages text[], p_items text[],
    p_mark_jobs uuid[], p_mark_claims bigint[], p_names text[], p_positions int[], p_states text[], p_results text[],
    p_errors text[], p_anew boolean[], p_lasts text[], p_now timestamptz
) returns setof bigint
language plpgsql volatile set lock_timeout = '2s' {look_up_ids} as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_round int;
    v_held  bigint[];
begin
    -- Locked, so that no job is settled or rescued before the commit. A lease that is locked is being settled, perhaps
    -- in a long transaction of a user: its progress is not worth a wait that holds up the batch.
    v_held := array(
        select l.claim_id
        from {schema}.lease l
        join unnest(p_jobs || p_mark_jobs, p_claims || p_mark_claims) a (job_id, claim_id)
          on l.job_id = any (array[a.job_id]) and l.claim_id = a.claim_id
        where l.cancel_requested_at is null or l.claim_id <> all (p_mark_claims)
        order by a.job_id
        for key share of l skip locked);
    if exists (select 1 from unnest(p_mark_claims) c where c <> all (v_held)) then
        -- Marks do wait for locked leases: if the other transaction is rolled back, the phase must not be lost.
        v_held := v_held || array(
            select l.claim_id
            from {schema}.lease l
            join unnest(p_mark_jobs, p_mark_claims) a (job_id, claim_id)
              on l.job_id = any (array[a.job_id]) and l.claim_id = a.claim_id
            where a.claim_id <> all (v_held) and l.cancel_requested_at is null
            order by a.job_id
            for key share of l);
    end if;

    for v_round in 1 .. coalesce((select max(m.n) from (select count(*) as n from unnest(p_mark_jobs) j group by j) m), 0)
    loop
        if true = any (p_anew) then
            delete from {schema}.phase p
            where p.job_id = any (array(
                select m.job_id from {schema}.nth_marks(v_round, p_mark_jobs, p_mark_claims, p_anew) m
                where m.anew and m.claim_id = any (v_held)));
        end if;
        -- A mark that is repeated, because its reply was lost, changes nothing.
        insert into {schema}.phase as p
            (job_id, claim_id, started_at, ended_at, position, attempt, name, state, result, error, progress)
        select m.job_id, m.claim_id, case when p_states[m.ord] = 'running' then v_now end,
               case when p_states[m.ord] <> 'running' then v_now end, p_positions[m.ord],
               case when p_states[m.ord] = 'running' then 1 else 0 end, p_names[m.ord], p_states[m.ord],
               p_results[m.ord]::jsonb, p_errors[m.ord]::jsonb,
               case when p_states[m.ord] <> 'running' then coalesce(
                   -- A moment earlier, because it is older than the end of the phase.
                   p_lasts[m.ord]::jsonb || jsonb_build_object('updated_at', v_now - interval '1 microsecond'),
                   (select to_jsonb(g) - 'job_id' from {schema}.progress g
                    where g.job_id = m.job_id and g.phase = p_names[m.ord] offset 0)) end
        from {schema}.nth_marks(v_round, p_mark_jobs, p_mark_claims, p_anew) m
        where m.claim_id = any (v_held)
        on conflict (job_id, name) do update
        set claim_id = excluded.claim_id, started_at = coalesce(excluded.started_at, p.started_at),
            ended_at = excluded.ended_at, position = excluded.position, attempt = p.attempt + excluded.attempt,
            state = excluded.state, result = excluded.result, error = excluded.error, progress = excluded.progress
        where (p.claim_id, p.state) is distinct from (excluded.claim_id, excluded.state);
    end loop;

    insert into {schema}.progress (job_id, updated_at, percent, overall, phase, message, items)
    select distinct on (a.job_id) a.job_id, v_now, a.percent, a.overall, a.phase, a.message, a.items::jsonb
    from unnest(p_jobs, p_claims, p_phases, p_percents, p_overalls, p_messages, p_items) with ordinality
      as a (job_id, claim_id, phase, percent, overall, message, items, ord)
    where a.claim_id = any (v_held)
    order by a.job_id, a.ord desc
    on conflict (job_id) do update
    set updated_at = excluded.updated_at, percent = excluded.percent, overall = excluded.overall,
        phase = excluded.phase, message = excluded.message, items = excluded.items;

    if exists (select 1 from unnest(p_claims || p_mark_claims) c where c <> all (v_held)) then
        return query
        select distinct a.claim_id
        from unnest(p_jobs || p_mark_jobs, p_claims || p_mark_claims) a (job_id, claim_id)
        where a.claim_id <> all (v_held)
          and not exists (select 1 from {schema}.lease l
                          where l.job_id = a.job_id and l.claim_id = a.claim_id
                            and (l.cancel_requested_at is null or l.claim_id <> all (p_mark_claims)));
    end if;
end $$;

-- Returns the n-th mark of each job that has so many, and its position in the arrays.
create or replace function {schema}.nth_marks(p_nth int, p_jobs uuid[], p_claims bigint[], p_anew boolean[])
returns table (job_id uuid, claim_id bigint, anew boolean, ord bigint)
language sql stable as $$
    select m.job_id, m.claim_id, m.anew, m.ord
    from (
        select a.job_id, a.claim_id, a.anew, a.ord, row_number() over (partition by a.job_id order by a.ord) as nth
        from unnest(p_jobs, p_claims, p_anew) with ordinality a (job_id, claim_id, anew, ord)
    ) m
    where m.nth = p_nth
$$;

-- Returns the phases of a job that were reached.
create or replace function {schema}.phases(p_job uuid) returns setof {schema}.phase
language plpgsql stable {look_up_ids} as $$
begin
    return query select p.* from {schema}.phase p where p.job_id = p_job order by p.position, p.name;
end $$;

-- Ends the running phase of jobs that are settled. An interruption does not count as an attempt of the phase.
create or replace function {schema}.end_phases(p_jobs uuid[], p_to text[], p_errors jsonb[], p_now timestamptz)
returns void
language plpgsql volatile {look_up_ids} as $$
begin
    update {schema}.phase p
    set state = a.state, ended_at = p_now,
        attempt = case when a.state = 'interrupted' then greatest(p.attempt - 1, 0) else p.attempt end,
        error = case when a.state = 'failed' then a.error end
    from unnest(p_jobs, p_to, p_errors) a (job_id, state, error)
    where p.job_id = any (array[a.job_id]) and p.state = 'running';
end $$;

-- Cancels every phase that a cancelled job will not come to.
create or replace function {schema}.cancel_phases(p_jobs uuid[], p_now timestamptz) returns void
language plpgsql volatile {look_up_ids} as $$
begin
    insert into {schema}.phase as p (job_id, ended_at, position, attempt, name, state)
    select j.id, p_now, n.ord - 1, 0, n.name, 'cancelled'
    from {schema}.job j
    cross join lateral jsonb_array_elements_text(
        case when jsonb_typeof(j.options -> 'phases') = 'array' then j.options -> 'phases' else '[]' end
    ) with ordinality n (name, ord)
    where j.id = any (p_jobs)
    on conflict (job_id, name) do update
    set state = 'cancelled', ended_at = p_now
    -- A failed phase was to be retried, unless the pipeline had continued without it.
    where p.state not in ('completed', 'skipped', 'cancelled')
      and (p.state <> 'failed' or p.error -> 'given_up' is null);
end $$;
