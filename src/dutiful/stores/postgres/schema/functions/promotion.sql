-- Moves jobs through their gates: time, pauses and other jobs.

-- Moves due jobs to ready, the longest due first. Below p_run_floor everything was moved before, so dead index entries
-- there are not scanned again; the caller drops the floor now and then to find rows that committed late.
create or replace function {schema}.promote(p_limit int, p_run_floor timestamptz, p_now timestamptz)
returns table (queue text, priority int, moved bigint, last_run_at timestamptz, ready boolean)
language plpgsql volatile {walk_in_order} as $$ #variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_paused text[] := {blocked_kinds};
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
        select d.*, {schema}.seq_at(d.run_at) as seq from due d
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, {carried})
        select o.seq, o.job_id, {carried of o} from in_order o where o.kind <> all (v_paused)
    ), to_blocked as (
        insert into {schema}.blocked (job_id, since, run_at, seq, gate, key, {carried})
        select o.job_id, v_now, o.run_at, o.seq, 'paused', o.kind, {carried of o}
        from in_order o where o.kind = any (v_paused)
    )
    select o.queue::text, o.priority, count(*), max(o.run_at), bool_or(o.kind <> all (v_paused))
    from in_order o group by o.queue, o.priority;
    -- The last row has no queue and says when the next job is due.
    return query
    select null::text, null::int, 0::bigint, (
        select s.run_at from {schema}.scheduled s where s.run_at > p_run_floor order by s.run_at limit 1), false;
end $$;

-- Without an option that came later; a second function of this name would make calls ambiguous.
drop function if exists {schema}.unblock(uuid[], timestamptz);

-- Moves jobs from blocked to ready or scheduled, but those for which a limit has no slot. A job with a seq keeps it. first:
-- the lowest seq of those that are ready. p_rooms: as for take_limit_slots.
create or replace function {schema}.unblock(p_jobs uuid[], p_now timestamptz, p_rooms jsonb default null)
returns table (queue text, priority int, moved bigint, first bigint)
language plpgsql volatile {look_up_ids} as $$ #variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_seq bigint := {schema}.seq_at(v_now);
begin
    if exists (select 1 from {schema}.limit_rule) then p_jobs := {schema}.take_limit_slots(p_jobs, v_now, p_rooms); end if;
    return query
    with free as (
        delete from {schema}.blocked b where b.job_id = any (p_jobs) returning b.*
    ), in_order as (
        -- A job that waited for others became due only now.
        select f.*, coalesce(f.seq, case when f.gate <> 'dependency' then {schema}.seq_at(f.run_at) end, v_seq) as new_seq
        from free f
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, {carried})
        select o.new_seq, o.job_id, {carried of o} from in_order o where o.run_at is null or o.run_at <= v_now
    ), to_scheduled as (
        insert into {schema}.scheduled (run_at, job_id, {carried})
        select o.run_at, o.job_id, {carried of o} from in_order o where o.run_at > v_now
    )
    select o.queue::text, o.priority, count(*), min(o.new_seq) filter (where o.run_at is null or o.run_at <= v_now)
    from in_order o group by o.queue, o.priority;
end $$;

-- Moves ready jobs of kinds that are paused, or whose breaker is open, to blocked, so that claims do not scan past
-- them, and those that became ready before their kind was limited; each keeps its seq. Reads all of ready; returns how many were moved.
create or replace function {schema}.block_paused(p_kinds text[], p_limit int, p_now timestamptz) returns bigint
language plpgsql volatile as $$
declare v_moved bigint;
begin
    with stopped as (
        delete from {schema}.ready r
        where r.ctid = any (array(
            select x.ctid from {schema}.ready x
            where x.kind = any (p_kinds)
              and (x.kind = any ({stopped_kinds})
                   or not exists (select 1 from {schema}.limit_slot s where s.job_id = x.job_id offset 0))
            limit p_limit for update skip locked))
        returning r.*
    )
    insert into {schema}.blocked (job_id, since, seq, gate, key, {carried})
    select s.job_id, coalesce(p_now, clock_timestamp()), s.seq, 'paused', s.kind, {carried of s} from stopped s;
    get diagnostics v_moved = row_count;
    return v_moved;
end $$;

-- Gives jobs that have become due while their kind is paused a seq, as if they were ready; returns how many.
create or replace function {schema}.assign_due_seqs(p_limit int, p_now timestamptz) returns bigint
language plpgsql volatile {walk_in_order} as $$
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_tids   tid[];
    v_placed bigint := 0;
begin
    v_tids := array(
        select b.ctid from {schema}.blocked b
        where b.gate = 'paused' and b.seq is null and b.run_at <= v_now
        order by b.run_at, b.job_id
        limit p_limit
        for update skip locked);
    if cardinality(v_tids) > 0 then
        update {schema}.blocked b set seq = {schema}.seq_at(b.run_at) where b.ctid = any (v_tids);
        get diagnostics v_placed = row_count;
    end if;
    return v_placed;
end $$;

-- Moves jobs of kinds that are no longer paused, and whose breaker is closed, out of blocked, by seq.
create or replace function {schema}.unblock_resumed(p_limit int, p_now timestamptz)
returns table (queue text, priority int, moved bigint)
language plpgsql volatile {walk_in_order} as $$ #variable_conflict use_column
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_jobs  uuid[];
    v_kinds text[];
begin
    -- Kind by kind, so that jobs whose gate stays closed are not read.
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
        -- The offsets make these look-ups for each, however many are paused. A worker that has announced the limits of a
        -- kind may have died before it stored them.
        where not exists (
            select 1 from {schema}.pause p
            where p.scope in {blocking_scopes} and p.name = w.key
              and (p.scope <> 'limited' or p.since > v_now - interval '1 minute'
                   or exists (select 1 from {schema}.limit_kind k where k.kind = p.name offset 0))
            offset 0));
    v_jobs := array(
        select b.job_id
        from unnest(v_kinds) k
        cross join lateral (
            select x.job_id, x.seq from {schema}.blocked x
            where x.gate = 'paused' and x.key = k
            order by x.seq
            limit p_limit
            for update skip locked
        ) b
        order by b.seq
        limit p_limit);
    if cardinality(v_jobs) > 0 then 
        return query select u.queue, u.priority, u.moved from {schema}.unblock(v_jobs, v_now) u;
    end if;
end $$;
