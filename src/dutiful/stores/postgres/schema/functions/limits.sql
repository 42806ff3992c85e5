-- Limits: which blocked jobs may become ready, so that no more run at once, or start within a time, than a limit allows.
-- Jobs of a limited kind are blocked until they are admitted, so that claims never read past them. One that is admitted
-- takes a slot of each of its limits. Nothing frees a slot when its job ends: admission looks which have ended.

-- The gate of a job that waits for a limit.
create or replace function {schema}.limit_gate(p_name text, p_key text) returns text
language sql immutable as $$ select jsonb_build_array(p_name, p_key)::text $$;

-- How far back the starts of a limit count.
create or replace function {schema}.limit_since(p_rule {schema}.limit_rule, p_now timestamptz) returns timestamptz
language sql stable as $$
    select case when p_rule.fixed
                then date_bin(p_rule.per, p_now, '2000-01-01Z') - interval '1 microsecond'
                else p_now - p_rule.per end
$$;

-- How far back its starts count, or may count towards the burst, which does not end with a fixed window.
create or replace function {schema}.limit_kept_since(p_rule {schema}.limit_rule, p_now timestamptz) returns timestamptz
language sql stable as $$
    select case when p_rule.burst is null then {schema}.limit_since(p_rule, p_now) else p_now - p_rule.per end
$$;

-- Within which only the burst of a limit starts; null: all may start together. What an operator has chosen counts.
create or replace function {schema}.limit_burst_window(p_rule {schema}.limit_rule) returns interval
language sql immutable as $$
    select case when p_rule.burst < coalesce(p_rule.chosen, p_rule.most)
                then p_rule.per * (p_rule.burst::float8 / coalesce(p_rule.chosen, p_rule.most)) end
$$;

-- Blocks ready jobs that these limits have admitted, each at its gate, until they are admitted anew; what is being claimed
-- starts. Their slots are freed by the next admission. Returns how many.
create or replace function {schema}.block_admitted(p_jobs uuid[], p_names text[], p_now timestamptz) returns bigint
language plpgsql volatile {walk_indexes} as $$
declare v_moved bigint;
begin
    with back as (
        delete from {schema}.ready r
        where r.ctid = any (array(
            select x.ctid from unnest(p_jobs) a (id)
            cross join lateral (
                select y.ctid from {schema}.ready y
                where y.job_id = a.id and exists (
                    select 1 from {schema}.limit_kind k where k.kind = y.kind and k.name = any (p_names) offset 0)
                limit 1 for update of y skip locked
            ) x))
        returning r.*
    )
    insert into {schema}.blocked (job_id, since, seq, gate, key, {carried})
    select b.job_id, p_now, b.seq, 'limit', s.gate, {carried of b}
    from back b
    cross join lateral (
        select {schema}.limit_gate(x.name, x.key) as gate from {schema}.limit_slot x
        where x.job_id = b.job_id and x.name = any (p_names) limit 1) s;
    get diagnostics v_moved = row_count;
    return v_moved;
end $$;

-- Lets new jobs of kinds that get their first limit wait until put_limits has stored it, so that none becomes ready while
-- it counts. Returns whether there is such a kind.
create or replace function {schema}.announce_limits(p_kinds text[], p_now timestamptz) returns boolean
language plpgsql volatile set lock_timeout = '2s' {use_indexes} as $$
begin
    insert into {schema}.pause (scope, name, since)
    select 'limited', k, coalesce(p_now, clock_timestamp()) from (select distinct unnest(p_kinds) as k) a order by k
    on conflict do nothing;
    return exists (
        select 1 from unnest(p_kinds) k where not exists (select 1 from {schema}.limit_kind x where x.kind = k));
end $$;

-- With another type.
drop function if exists {schema}.put_limits(
    text[], text[], text[], text[], text[], int[], interval[], int[], boolean[], boolean[], timestamptz);

-- Stores the limits that kinds declare; those of other kinds stay. A kind without any is no longer limited. False: limits
-- are to be announced again, because another release has just removed those that were there.
create or replace function {schema}.put_limits(
    p_all text[], p_kinds text[], p_kind_names text[], p_fields text[], p_names text[], p_most int[], p_per interval[],
    p_burst int[], p_fixed boolean[], p_feedback boolean[], p_now timestamptz
) returns boolean
language plpgsql volatile set lock_timeout = '2s' {use_indexes} as $$
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_turned text[];
    v_other  text[];
    v_gained text[];
    v_lost   text[];
    v_free   text[];
    v_ready  uuid[];
begin
    perform 1 from {schema}.limit_rule r order by r.name for update;
    if exists (select 1 from unnest(p_kinds) k where not exists (
        select 1 from {schema}.pause p where p.scope = 'limited' and p.name = k))
    then
        return false;
    end if;
    -- From what runs at once to what starts within a time, or back: what was counted counts for nothing now.
    v_turned := array(
        select r.name from {schema}.limit_rule r
        join unnest(p_names, p_per) a (name, per) on a.name = r.name
        where (r.per is null) <> (a.per is null));
    v_other := array(
        select r.name from {schema}.limit_rule r
        join unnest(p_names, p_most, p_per, p_burst, p_fixed) a (name, most, per, burst, fixed) on a.name = r.name
        where (r.most, r.per, r.burst, r.fixed) is distinct from (a.most, a.per, a.burst, a.fixed));
    -- In order, so that two workers that start together cannot wait for each other.
    insert into {schema}.limit_rule as r (name, most, per, burst, fixed, feedback)
    select * from unnest(p_names, p_most, p_per, p_burst, p_fixed, p_feedback) a (name, most, per, burst, fixed, feedback)
    order by a.name
    on conflict (name) do update
    set most = excluded.most, per = excluded.per, burst = excluded.burst, fixed = excluded.fixed,
        feedback = excluded.feedback
    where (r.most, r.per, r.burst, r.fixed, r.feedback)
          is distinct from (excluded.most, excluded.per, excluded.burst, excluded.fixed, excluded.feedback);
    perform 1 from {schema}.limit_rule r order by r.name for update;
    v_gained := array(
        select a.kind from unnest(p_kinds, p_kind_names) a (kind, name)
        where not exists (select 1 from {schema}.limit_kind x where x.kind = a.kind and x.name = a.name)
        union
        select x.kind from {schema}.limit_kind x where x.name = any (v_turned));
    with gone as (
        delete from {schema}.limit_kind x
        where x.kind = any (p_all)
          and not exists (select 1 from unnest(p_kinds, p_kind_names) a (kind, name)
                          where a.kind = x.kind and a.name = x.name)
        returning x.kind
    )
    select array_agg(distinct g.kind) into v_lost from gone g;
    insert into {schema}.limit_kind as x (kind, name, field)
    select * from unnest(p_kinds, p_kind_names, p_fields) a (kind, name, field) order by a.kind, a.name
    on conflict (kind, name) do update set field = excluded.field where x.field is distinct from excluded.field;
    v_free := array(
        select p.name from {schema}.pause p
        where p.scope = 'limited' and p.name = any (p_all) and p.name <> all (p_kinds)
          -- What another release has just announced stays.
          and (p.name = any (v_lost) or p.since <= v_now - interval '1 minute'));
    delete from {schema}.pause p where p.scope = 'limited' and p.name = any (v_free);
    -- What waited for a limit that its kind has no more waits for the next admission or, if it has no other, for the sweep.
    update {schema}.blocked b set gate = 'paused', key = b.kind
    where b.gate = 'limit' and b.kind = any (v_lost || v_free);
    delete from {schema}.limit_rule r where not exists (select 1 from {schema}.limit_kind x where x.name = r.name);
    delete from {schema}.limit_slot s
    where not exists (select 1 from {schema}.limit_rule r where r.name = s.name)
       or s.name = any (v_turned) and s.started_at is not null;
    delete from {schema}.limit_hold h
    where not exists (select 1 from {schema}.limit_rule r where r.name = h.name and r.feedback);
    -- What other numbers have admitted, and is ready, is admitted anew.
    perform {schema}.block_admitted(
        array(select s.job_id from {schema}.limit_slot s where s.name = any (v_other) and s.started_at is null),
        v_other, v_now);
    if v_gained = '{}' then return true; end if;
    -- So is what is ready of kinds that have a new limit. It waits for a claim that is under way, because what that takes
    -- runs, and counts.
    with back as (
        delete from {schema}.ready r where r.kind = any (v_gained) returning r.*
    ), moved as (
        insert into {schema}.blocked (job_id, since, seq, gate, key, {carried})
        select b.job_id, v_now, b.seq, 'paused', b.kind, {carried of b} from back b
        returning job_id
    )
    select array_agg(m.job_id) into v_ready from moved m;
    -- The offsets and the limit make these, and those of what runs, look-ups for each job, whatever the statistics say.
    delete from {schema}.limit_slot s
    where s.id = any (array(
        select o.id from unnest(v_ready) a (id)
        cross join lateral (select x.id, x.started_at from {schema}.limit_slot x where x.job_id = a.id offset 0) o
        where o.started_at is null));
    -- What runs already counts.
    insert into {schema}.limit_slot (job_id, admitted_at, started_at, name, key)
    select l.job_id, v_now, case when r.per is not null then l.claimed_at end, r.name, g.key
    from {schema}.lease l
    cross join lateral (select x as job, x.kind from {schema}.job x where x.id = l.job_id limit 1) j
    join {schema}.limit_kind k on k.kind = j.kind
    join {schema}.limit_rule r on r.name = k.name
    cross join lateral {schema}.limit_key(j.job, k) g (key)
    where j.kind = any (v_gained) and g.key is not null
      and not exists (
          select 1 from (select x.name from {schema}.limit_slot x where x.job_id = l.job_id offset 0) s
          where s.name = r.name);
    return true;
end $$;

-- The key of a job: as it was enqueued, or the payload's field. Null: the limit does not apply to it.
create or replace function {schema}.limit_key(p_job {schema}.job, p_kind {schema}.limit_kind) returns text
language sql immutable as $$
    select case when p_job.options -> 'limits' ? p_kind.name then p_job.options -> 'limits' ->> p_kind.name
                when p_kind.field = 'tenant' and not p_job.payload ? 'tenant' then coalesce(p_job.tenant, '')
                else left(coalesce(p_job.payload ->> p_kind.field, ''), 200) end
$$;

-- Frees slots of jobs that are neither ready nor running: of these jobs or, if null, of all. Of limits on starts, it notes
-- when the job began. Returns the gates at which jobs may wait for them.
create or replace function {schema}.free_ended_slots(p_jobs uuid[], p_now timestamptz) returns text[]
language plpgsql volatile {walk_indexes} as $$
declare
    v_open  bigint[];
    v_gates text[];
begin
    if p_jobs is null then
        v_open := array(select o.id from {schema}.limit_slot o where o.started_at is null);
    else
        v_open := array(
            select o.id from unnest(p_jobs) a (id)
            -- Not in one condition, for which the index of all open slots would be walked.
            cross join lateral (select s.id, s.started_at from {schema}.limit_slot s where s.job_id = a.id offset 0) o
            where o.started_at is null);
    end if;
    if cardinality(v_open) = 0 then return '{}'; end if;
    -- In one statement, because a job that is claimed and ends between two would have a slot but no start. A start is known
    -- from its claim. The offsets make these look-ups for each slot, whatever the statistics say.
    with looked as materialized (
        select o.id, o.admitted_at,
               exists (select 1 from {schema}.lease l where l.job_id = o.job_id offset 0) as runs,
               case when (select r.per is not null from {schema}.limit_rule r where r.name = o.name) then coalesce(
                   (select l.claimed_at from {schema}.lease l where l.job_id = o.job_id limit 1),
                   (select f.claimed_at from {schema}.finished f where f.job_id = o.job_id limit 1),
                   -- A claim that was given back may not have begun; see count_starts.
                   (select max(a.claimed_at) from {schema}.attempt a
                    where a.job_id = o.job_id and a.outcome <> 'released')) end as at
        from unnest(v_open) a (id)
        cross join lateral (select x.* from {schema}.limit_slot x where x.id = a.id offset 0) o
        where o.started_at is null
          and not exists (select 1 from {schema}.ready r where r.job_id = o.job_id offset 0)
    ), noted as (
        update {schema}.limit_slot s set started_at = w.at
        from looked w
        where s.id = any (array[w.id]) and w.at >= w.admitted_at
    ), ended as (
        delete from {schema}.limit_slot s
        where s.id = any (array(select w.id from looked w where not w.runs and coalesce(w.at < w.admitted_at, true)))
          and s.started_at is null
        returning s.name, s.key
    )
    select array_agg(distinct {schema}.limit_gate(e.name, e.key)) into v_gates from ended e;
    return coalesce(v_gates, '{}');
end $$;

-- Frees slots of jobs that have ended, as above, and of starts that no longer count; returns their gates.
create or replace function {schema}.free_limit_slots(p_jobs uuid[], p_now timestamptz) returns text[]
language plpgsql volatile {walk_indexes} as $$
declare
    v_ended text[] := {schema}.free_ended_slots(p_jobs, p_now);
    v_gates text[];
begin
    with over as (
        delete from {schema}.limit_slot s
        where s.id = any (array(
            select x.id from {schema}.limit_rule r
            cross join lateral (
                select o.id from {schema}.limit_slot o
                where o.name = r.name and o.started_at is not null and o.started_at <= {schema}.limit_kept_since(r, p_now)
                offset 0
            ) x
            where r.per is not null))
        returning s.name, s.key
    ), waited as (
        delete from {schema}.limit_hold h where h.until <= p_now returning h.name, h.key
    )
    select array_agg(distinct {schema}.limit_gate(g.name, g.key)) into v_gates
    from (
        select * from over union all select * from waited union all
        -- These count, but no longer towards the burst; or only towards it, as the fixed window is over.
        select b.name, b.key
        from {schema}.limit_rule r
        cross join lateral (
            select s.name, s.key from {schema}.limit_slot s
            where s.name = r.name
              and s.started_at <= greatest({schema}.limit_since(r, p_now), p_now - {schema}.limit_burst_window(r))
            offset 0
        ) b
        where {schema}.limit_burst_window(r) is not null
    ) g;
    return array(select unnest(v_ended) union select unnest(v_gates));
end $$;

-- Notes when jobs began that are given back: their attempts do not tell them from those that never began.
create or replace function {schema}.count_starts(p_jobs uuid[], p_at timestamptz[]) returns void
language plpgsql volatile {look_up_ids} as $$
begin
    update {schema}.limit_slot s set started_at = a.at
    from unnest(p_jobs, p_at) a (job_id, at)
    where s.job_id = any (array[a.job_id]) and s.started_at is null and s.admitted_at <= a.at
      and exists (select 1 from {schema}.limit_rule r where r.name = s.name and r.per is not null);
end $$;

-- How many slots a key has left: of the limit itself, and of what may start together; none while its service waits.
create or replace function {schema}.limit_room(p_rule {schema}.limit_rule, p_key text, p_now timestamptz) returns bigint
language plpgsql stable as $$
declare
    v_since timestamptz := {schema}.limit_since(p_rule, p_now);
    v_burst timestamptz := p_now - {schema}.limit_burst_window(p_rule);
    v_room  bigint;
begin
    if p_rule.feedback and exists (
        select 1 from {schema}.limit_hold h where h.name = p_rule.name and h.key = p_key and h.until > p_now
    ) then
        return 0;
    end if;
    select least(coalesce(p_rule.chosen, p_rule.most) - count(*) filter (where s.started_at is null or s.started_at > v_since),
                 case when v_burst is not null
                      then p_rule.burst - count(*) filter (where s.started_at is null or s.started_at > v_burst) end)
    into v_room
    from {schema}.limit_slot s where s.name = p_rule.name and s.key = p_key;
    return v_room;
end $$;

-- Holds the keys of jobs whose service has asked to wait, in their limits with feedback. Jobs of these keys that are ready
-- are blocked again, and give their slots back; returns how many.
create or replace function {schema}.hold_limits(p_jobs uuid[], p_waits interval[], p_now timestamptz) returns bigint
language plpgsql volatile set lock_timeout = '2s' {walk_indexes} as $$
declare
    v_now   timestamptz := coalesce(p_now, clock_timestamp());
    v_names text[];
    v_keys  text[];
begin
    perform 1 from {schema}.limit_rule r order by r.name for update;
    with held as (
        insert into {schema}.limit_hold as h (name, key, until)
        select r.name, g.key, max(v_now + a.wait)
        from unnest(p_jobs, p_waits) a (id, wait)
        cross join lateral (select x as job, x.kind from {schema}.job x where x.id = a.id limit 1) j
        join {schema}.limit_kind k on k.kind = j.kind
        join {schema}.limit_rule r on r.name = k.name and r.feedback
        cross join lateral {schema}.limit_key(j.job, k) g (key)
        where g.key is not null
        group by r.name, g.key
        order by r.name, g.key
        on conflict (name, key) do update set until = greatest(h.until, excluded.until)
        returning h.name, h.key
    )
    select array_agg(h.name), array_agg(h.key) into v_names, v_keys from held h;
    return {schema}.block_admitted(
        array(select s.job_id from unnest(v_names, v_keys) h (name, key)
              join {schema}.limit_slot s on s.name = h.name and s.key = h.key and s.started_at is null),
        v_names, v_now);
end $$;

-- Sets how many may run or start instead of the declared number; null: that, and no wait that a service has asked for.
-- What more than that have admitted, and is ready, is admitted anew. Returns whether there is such a limit.
create or replace function {schema}.choose_limit(p_name text, p_most int, p_now timestamptz) returns boolean
language plpgsql volatile set lock_timeout = '2s' {walk_indexes} as $$
declare v_before int;
begin
    perform 1 from {schema}.limit_rule r order by r.name for update;
    select coalesce(r.chosen, r.most) into v_before from {schema}.limit_rule r where r.name = p_name;
    if not found then return false; end if;
    if p_most is null then delete from {schema}.limit_hold h where h.name = p_name; end if;
    update {schema}.limit_rule r set chosen = p_most where r.name = p_name;
    if coalesce(p_most, (select r.most from {schema}.limit_rule r where r.name = p_name)) < v_before then
        perform {schema}.block_admitted(
            array(select s.job_id from {schema}.limit_slot s where s.name = p_name and s.started_at is null),
            array[p_name], coalesce(p_now, clock_timestamp()));
    end if;
    return true;
end $$;

-- Without an option that came later.
drop function if exists {schema}.take_slots_of_one(uuid[], timestamptz);
drop function if exists {schema}.take_limit_slots(uuid[], timestamptz);

-- Takes the slots of jobs whose kinds have one limit at most: the first jobs of each key take what it has left. Returns
-- those that have theirs.
create or replace function {schema}.take_slots_of_one(p_jobs uuid[], p_now timestamptz, p_rooms jsonb) returns uuid[]
language plpgsql volatile {walk_indexes} as $$
declare
    v_taken uuid[];
begin
    with asked as materialized (
        select a.ord, b.job_id, b.gate, b.key as at, r as rule, r.name, g.key,
               row_number() over (partition by r.name, g.key order by a.ord) as place
        from unnest(p_jobs) with ordinality a (id, ord)
        cross join lateral (
            select x.job_id, x.gate, x.key, x.kind from {schema}.blocked x where x.job_id = a.id limit 1) b
        cross join lateral (select x as job from {schema}.job x where x.id = a.id limit 1) j
        left join {schema}.limit_kind k on k.kind = b.kind
        left join {schema}.limit_rule r on r.name = k.name
        left join lateral {schema}.limit_key(j.job, k) g (key) on k.name is not null
    ), seen as materialized (
        -- Counted once for each key, because a limit may allow very many starts.
        select s.*, s.key is null or s.place <= first_value(
                   case when s.place = 1 and s.key is not null then
                       coalesce((p_rooms ->> {schema}.limit_gate(s.name, s.key))::bigint,
                                {schema}.limit_room(s.rule, s.key, p_now)) end
               ) over (partition by s.name, s.key order by s.place) as fits
        from asked s
    ), took as (
        insert into {schema}.limit_slot (job_id, admitted_at, name, key)
        select s.job_id, p_now, s.name, s.key from seen s where s.fits and s.key is not null order by s.ord
    ), refused as (
        -- By their places: a join by id may be planned as a walk over all that are blocked.
        update {schema}.blocked b
        set gate = 'limit', key = w.gate, seq = coalesce(b.seq, {schema}.seq_at(coalesce(b.run_at, p_now)))
        from (
            select x.ctid, {schema}.limit_gate(s.name, s.key) as gate
            from seen s
            cross join lateral (select y.ctid from {schema}.blocked y where y.job_id = s.job_id limit 1) x
            where not s.fits and (s.gate <> 'limit' or s.at <> {schema}.limit_gate(s.name, s.key))
            offset 0
        ) w
        where b.ctid = w.ctid
    )
    select array_agg(s.job_id order by s.ord) into v_taken from seen s where s.fits;
    return coalesce(v_taken, '{}');
end $$;

-- Takes the slots that each of these jobs needs, in their order; jobs of kinds without limits need none. Returns those
-- that have theirs; the others wait at the gate of the first limit that is full. What is read and written is so for all at
-- once, because a statement for each job would cost more than all else. p_rooms: how many slots are left at gates that
-- the caller has counted.
create or replace function {schema}.take_limit_slots(p_jobs uuid[], p_now timestamptz, p_rooms jsonb) returns uuid[]
language plpgsql volatile {walk_indexes} as $$
declare
    v_taken   uuid[] := '{}';
    v_several text[];
    -- Counted once for each key, because a limit may allow very many starts.
    v_gates   text[] := '{}';
    v_room    bigint[] := '{}';
    v_used    int[];
    v_at      int;
    v_full    text;
    v_job     record;
    -- The slots that are taken, and the jobs that have to wait with their gates.
    v_owners  uuid[] := '{}';
    v_names   text[] := '{}';
    v_keys    text[] := '{}';
    v_waiting uuid[] := '{}';
    v_before  text[] := '{}';
begin
    -- One at a time, so that two cannot take the same slot.
    perform 1 from {schema}.limit_rule r order by r.name for update;
    perform {schema}.free_ended_slots(p_jobs, p_now);  -- what they had before
    v_several := array(select k.kind from {schema}.limit_kind k group by k.kind having count(*) > 1);
    if cardinality(v_several) = 0 or not exists (
        select 1 from unnest(p_jobs) a (id)
        cross join lateral (select x.kind from {schema}.blocked x where x.job_id = a.id limit 1) b
        where b.kind = any (v_several)
    ) then
        return {schema}.take_slots_of_one(p_jobs, p_now, p_rooms);
    end if;
    for v_job in
        select b.job_id, b.gate, b.key, l.names, l.keys, l.gates
        from unnest(p_jobs) with ordinality a (id, ord)
        cross join lateral (
            select x.job_id, x.gate, x.key, x.kind from {schema}.blocked x where x.job_id = a.id limit 1) b
        cross join lateral (select x as job from {schema}.job x where x.id = a.id limit 1) j
        cross join lateral (
            select array_agg(k.name::text order by k.name) as names, array_agg(g.key order by k.name) as keys,
                   array_agg({schema}.limit_gate(k.name, g.key) order by k.name) as gates
            from {schema}.limit_kind k
            cross join lateral {schema}.limit_key(j.job, k) g (key)
            where k.kind = b.kind and g.key is not null
        ) l
        order by a.ord
    loop
        v_full := null;
        v_used := '{}';
        for n in 1 .. coalesce(cardinality(v_job.gates), 0) loop
            v_at := array_position(v_gates, v_job.gates[n]);
            if v_at is null then
                v_gates := v_gates || v_job.gates[n];
                v_room := v_room || coalesce((p_rooms ->> v_job.gates[n])::bigint, (
                    select {schema}.limit_room(r, v_job.keys[n], p_now) from {schema}.limit_rule r where r.name = v_job.names[n]));
                v_at := cardinality(v_gates);
            end if;
            if v_room[v_at] <= 0 then
                v_full := v_job.gates[n];
                exit;
            end if;
            v_used := v_used || v_at;
        end loop;
        if v_full is null then
            foreach v_at in array v_used loop
                v_owners := v_owners || v_job.job_id;
                v_room[v_at] := v_room[v_at] - 1;
            end loop;
            v_names := v_names || v_job.names;
            v_keys := v_keys || v_job.keys;
            v_taken := v_taken || v_job.job_id;
        elsif v_job.gate <> 'limit' or v_job.key <> v_full then
            v_waiting := v_waiting || v_job.job_id;
            v_before := v_before || v_full;
        end if;
    end loop;
    insert into {schema}.limit_slot (job_id, admitted_at, name, key)
    select a.job_id, p_now, a.name, a.key from unnest(v_owners, v_names, v_keys) a (job_id, name, key);
    if cardinality(v_waiting) > 0 then
        update {schema}.blocked b
        set gate = 'limit', key = w.gate, seq = coalesce(b.seq, {schema}.seq_at(coalesce(b.run_at, p_now)))
        from (
            select x.tid, a.gate
            from unnest(v_waiting, v_before) a (job_id, gate)
            cross join lateral (
                select y.ctid as tid from {schema}.blocked y where y.job_id = a.job_id limit 1 for update) x
        ) w
        where b.ctid = w.tid;
    end if;
    return v_taken;
end $$;

-- Admits jobs of limited kinds: those that wait at gates where slots were freed (p_everywhere: at all gates), and then new
-- ones. p_ended: only slots of these jobs are looked at, because the caller knows that they have ended. Returns the levels
-- that got jobs, each with the seq of the first, and at the end a row without a queue, which says how many jobs were seen,
-- and how long the next start counts.
create or replace function {schema}.admit_limited(
    p_everywhere boolean, p_limit int, p_ended uuid[], p_now timestamptz
)
returns table (queue text, priority int, moved bigint, first bigint, wait interval)
language plpgsql volatile set lock_timeout = '2s' {walk_in_order} as $$ #variable_conflict use_column
declare
    v_now     timestamptz;
    v_stopped text[];
    v_gates   text[];
    v_jobs    uuid[];
    v_from    text[];
    v_rooms   jsonb;
    v_more    bigint := 1;
    v_seen    bigint := 0;
begin
    perform 1 from {schema}.limit_rule r order by r.name for update;
    if not found then return; end if;
    v_now := coalesce(p_now, clock_timestamp());  -- after the wait for the lock
    v_stopped := array(select p.name from {schema}.pause p where p.scope in {stopping_scopes});
    v_gates := {schema}.free_limit_slots(p_ended, v_now);
    if p_everywhere then
        v_gates := array(
            with recursive gates as (
                (select b.key from {schema}.blocked b where b.gate = 'limit' order by b.key limit 1)
                union all
                select n.key from gates g, lateral (
                    select b.key from {schema}.blocked b where b.gate = 'limit' and b.key > g.key
                    order by b.key limit 1
                ) n
            )
            select g.key from gates g);
        -- A stopped kind's jobs wait for its pause or breaker, where probes are chosen.
        if cardinality(v_stopped) > 0 then
            update {schema}.blocked b set gate = 'paused', key = b.kind
            where b.ctid = any (array(
                select x.ctid from unnest(v_stopped) k
                cross join lateral (
                    select x.ctid from {schema}.blocked x where x.gate = 'limit' and x.kind = k
                    limit p_limit for update skip locked
                ) x
                limit p_limit));
        end if;
    end if;
    while cardinality(v_gates) > 0 and v_seen < p_limit loop
        select array_agg(a.job_id), array_agg(a.gate), jsonb_object_agg(a.gate, a.free) into v_jobs, v_from, v_rooms
        from (
            select w.job_id, g.key as gate, room.free
            from unnest(v_gates) g (key)
            join {schema}.limit_rule r on r.name = (g.key::jsonb ->> 0)
            cross join lateral (select {schema}.limit_room(r, g.key::jsonb ->> 1, v_now) as free offset 0) room
            cross join lateral (
                select b.job_id from {schema}.blocked b
                where b.gate = 'limit' and b.key = g.key and b.kind <> all (v_stopped)
                order by b.priority, b.seq, b.job_id
                limit greatest(room.free, 0) * v_more
                for update skip locked
            ) w
            limit p_limit - v_seen
        ) a;
        exit when v_jobs is null;
        v_seen := v_seen + cardinality(v_jobs);
        return query
        select u.queue, u.priority, u.moved, u.first, null::interval
        from {schema}.unblock(v_jobs, v_now, v_rooms) u where u.first is not null;
        -- Jobs that another of their limits refuses have gone on to its gate, and left slots to those behind them.
        v_gates := array(
            select distinct a.gate from unnest(v_jobs, v_from) a (id, gate)
            cross join lateral (select b.key from {schema}.blocked b where b.job_id = a.id limit 1) b
            where b.key <> a.gate);
        v_more := v_more * 2;
    end loop;
    v_jobs := array(
        select w.job_id
        from (select distinct k.kind from {schema}.limit_kind k) k
        cross join lateral (
            select b.job_id from {schema}.blocked b
            where b.gate = 'paused' and b.key = k.kind and b.seq is not null
            order by b.seq
            limit p_limit
            for update skip locked
        ) w
        where k.kind <> all (v_stopped)
        limit p_limit);
    if cardinality(v_jobs) > 0 then
        v_seen := v_seen + cardinality(v_jobs);
        return query
        select u.queue, u.priority, u.moved, u.first, null::interval
        from {schema}.unblock(v_jobs, v_now) u where u.first is not null;
    end if;
    return query
    select null::text, null::int, v_seen, null::bigint, least((select min(h.until) - v_now from {schema}.limit_hold h), (
        select min(case when r.fixed and w.length = r.per then date_bin(r.per, v_now, '2000-01-01Z') + r.per
                        else f.started_at + w.length end) - v_now
        from {schema}.limit_rule r
        -- Starts count for the whole time, and for a part of it towards the burst.
        cross join lateral unnest(array[r.per, {schema}.limit_burst_window(r)]) w (length)
        cross join lateral (
            select s.started_at from {schema}.limit_slot s
            where s.name = r.name
              and s.started_at > case when w.length = r.per then {schema}.limit_since(r, v_now) else v_now - w.length end
            order by s.started_at limit 1
        ) f
        where r.per is not null and exists (select 1 from {schema}.blocked b where b.gate = 'limit' offset 0)));
end $$;
