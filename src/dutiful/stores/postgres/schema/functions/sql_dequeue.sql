-- Published for workers in plain SQL or any language: dequeue. A call that takes one job is a few small statements, because
-- a commit a job is all that a worker with a connection of its own can do about its rate.
--
-- A session remembers the queue levels in its settings, each with a floor, as Python workers do, so that dead index
-- entries are not read again. A rollback takes the settings back with the claim. Values are assigned instead of performed
-- where they matter to the rate: an assignment is evaluated without a query.

-- Returns the id by which a session's claims are known: its setting dutiful.worker, or one that it keeps from now on.
create or replace function {schema}.session_worker() returns uuid
language plpgsql volatile as $$
declare v_given text := nullif(current_setting('dutiful.worker', true), '');
begin
    if not pg_input_is_valid(v_given, 'uuid') then
        raise exception 'the setting dutiful.worker is no UUID: %', left(quote_literal(v_given), 200)
            using errcode = 'invalid_parameter_value',
                  hint = 'set it to one that no other worker has, such as gen_random_uuid(), or reset dutiful.worker, or give '
                         'p_worker';
    end if;
    return coalesce(v_given, set_config('dutiful.worker', gen_random_uuid()::text, false))::uuid;
end $$;

create or replace function {schema}.microseconds_since(p_at timestamptz) returns bigint
language sql volatile as $$
    select (extract(epoch from clock_timestamp() - p_at) * 1000000)::bigint
$$;

-- Returns all queue levels, by queue and priority. Below the floor of each there is no job of p_kinds.
create or replace function {schema}.look_at_levels(
    p_kinds text[], p_suspects boolean, p_recent bigint, out queues text[], out priorities int[], out floors bigint[]
)
language plpgsql stable {walk_in_order} as $$
begin
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
    select coalesce(array_agg(h.queue), '{}'), coalesce(array_agg(h.priority), '{}'),
           coalesce(array_agg(coalesce(f.seq - 1, p_recent)), '{}')
    into queues, priorities, floors
    from head h
    left join lateral (
        select r.seq from {schema}.ready r
        where r.queue = h.queue and r.priority = h.priority and r.seq >= h.seq
          and r.kind <> '' and r.kind = any (p_kinds) and (p_suspects or r.crashes = 0)
        order by r.seq limit 1
    ) f on true;
end $$;

-- Returns whether there is a queue level beside these, which are ordered: in a gap between two of them, or
-- behind the last.
create or replace function {schema}.is_level_missing(p_queues text[], p_priorities int[]) returns boolean
language plpgsql stable {walk_in_order} as $$
begin
    -- Two searches, because a gap without an end would keep the others from ending by the index.
    return exists (
        select 1
        from unnest(array['']::text[] || p_queues, array[0] || p_priorities, p_queues, p_priorities)
                 g (queue, priority, next_queue, next_priority)
        cross join lateral (
            select 1 from {schema}.ready r
            where r.kind <> '' and (r.queue, r.priority) > (g.queue, g.priority)
              and (r.queue, r.priority) < (g.next_queue, g.next_priority)
            order by r.queue, r.priority
            limit 1
        ) r
    ) or exists (
        select 1 from {schema}.ready r
        -- No queue has an empty name.
        where r.kind <> '' and (r.queue, r.priority) > (coalesce(p_queues[cardinality(p_queues)], ''),
                                                        coalesce(p_priorities[cardinality(p_priorities)], 0)));
end $$;

-- Returns the queue levels that have a job of p_kinds, best first: by priority, and queues of one priority in the order of
-- their first jobs. Each start is just below its first job.
--
-- Remembers them in settings of their own, because parsing them from one took longer than reading all. dutiful.levels: whose
-- they are (p_key; null: nothing is remembered); looked_at: when; counts_for: for how many microseconds that counts; quick:
-- whether another level would be found quickly; queues, priorities and floors: the levels; queue and priority: the one that
-- is alone, if it is. A look reads dead index entries, so looks may take a twentieth of the time, but one that was slow,
-- perhaps because it waited for a lock, counts for 5 s at most. While they are quick, what is below a floor is missed for a
-- tenth of a second at most, and that there is no job is the answer of a look.
create or replace function {schema}.session_levels(
    p_key text, p_kinds text[], p_queues text[], p_suspects boolean, p_at bigint, out queues text[],
    out priorities int[], out starts bigint[]
)
language plpgsql volatile {walk_in_order} as $$
declare
    v_recent     bigint := p_at - {late_commit};
    v_known      boolean := coalesce(current_setting('dutiful.levels', true) = p_key, false);
    v_queues     text[];
    v_priorities int[];
    v_floors     bigint[];
    v_often      bigint := 100000;
    v_longest    bigint := 5000000;
    v_pause      bigint;
    v_quick      boolean;
    v_looked     bigint;
    v_began      timestamptz;
begin
    if v_known then
        v_looked := current_setting('dutiful.looked_at');
        v_pause := current_setting('dutiful.counts_for');
        v_quick := current_setting('dutiful.quick');
        v_queues := current_setting('dutiful.queues');
        v_priorities := current_setting('dutiful.priorities');
        v_floors := string_to_array(current_setting('dutiful.floors'), ' ');
        v_known := p_at - v_looked between 0 and v_pause
                   and not (v_quick and {schema}.is_level_missing(v_queues, v_priorities));
    end if;
    loop
        if not v_known then
            -- Twice if it was slow, because the first time it is planned, and the machine may be busy.
            for v_try in 1 .. 2 loop
                v_began := clock_timestamp();
                select l.queues, l.priorities, l.floors into v_queues, v_priorities, v_floors
                from {schema}.look_at_levels(p_kinds, p_suspects, v_recent) l;
                v_pause := least(greatest(20 * {schema}.microseconds_since(v_began), v_often), v_longest);
                exit when v_pause = v_often;
                v_began := clock_timestamp();
                perform {schema}.is_level_missing(v_queues, v_priorities);
                v_quick := {schema}.microseconds_since(v_began) < 1000;
            end loop;
            v_quick := v_pause = v_often or v_quick;
            v_looked := {schema}.seq_at(clock_timestamp());
        end if;
        -- What became due lately is searched in any case, because it may have been committed after the last claim.
        select array_agg(l.queue order by l.priority, h.seq, l.queue) filter (where l.mine and h.seq is not null),
               array_agg(l.priority order by l.priority, h.seq, l.queue) filter (where l.mine and h.seq is not null),
               array_agg(h.seq - 1 order by l.priority, h.seq, l.queue) filter (where l.mine and h.seq is not null),
               array_agg(coalesce(h.seq - 1, v_recent) order by l.ord)
        into queues, priorities, starts, v_floors
        from (select u.queue, u.priority, u.floor, u.ord, p_queues is null or u.queue = any (p_queues) as mine
              from unnest(v_queues, v_priorities, v_floors) with ordinality u (queue, priority, floor, ord)) l
        left join lateral (
            select r.seq from {schema}.ready r
            where r.queue = l.queue and r.priority = l.priority and r.seq > least(l.floor, v_recent)
              and r.kind <> '' and r.kind = any (p_kinds) and (p_suspects or r.crashes = 0)
            order by r.seq
            limit 1
        ) h on true;
        exit when queues is not null or not v_known or v_pause > v_often;
        v_known := false;
    end loop;
    if p_key is not null then
        perform set_config('dutiful.levels', p_key, false),
                set_config('dutiful.looked_at', v_looked::text, false),
                set_config('dutiful.counts_for', v_pause::text, false),
                set_config('dutiful.quick', v_quick::text, false),
                set_config('dutiful.queues', v_queues::text, false),
                set_config('dutiful.priorities', v_priorities::text, false),
                set_config('dutiful.floors', array_to_string(v_floors, ' '), false),
                set_config('dutiful.queue', case cardinality(v_queues) when 1 then v_queues[1] end, false),
                set_config('dutiful.priority', v_priorities[1]::text, false);
    end if;
end $$;

-- Claims jobs as claim does, and returns them in the order of the queue levels. A suspect whose turn it is comes alone, and
-- what comes before it is claimed without what is of a worse level. What is paused, locked by others, or not of these
-- tenants, leaves its turn.
create or replace function {schema}.claim_in_order(
    p_worker uuid, p_lane text, p_queues text[], p_priorities int[], p_starts bigint[], p_kinds text[], p_limit int,
    p_suspects boolean, p_lease interval, p_tenants text[], p_now timestamptz
) returns table ({claim_types})
language plpgsql volatile {walk_indexes} as $$ #variable_conflict use_column
declare
    v_kinds text[] := array(select k from unnest(p_kinds) k
                            where not exists (select 1 from {schema}.pause p
                                              where p.scope in ('kind', 'breaker') and p.name = k));
    v_next  record;    -- the first suspect of a level
    v_from  int := 1;  -- the level from which on other jobs have not been searched
    v_to    int;
    v_turn  boolean;   -- whether a suspect is wanted
begin
    for v_next in
        select l.ord, s.seq, s.job_id
        from unnest(p_queues, p_priorities) with ordinality l (queue, priority, ord)
        cross join lateral (
            select r.seq, r.job_id from {schema}.ready r
            where r.queue = l.queue and r.priority = l.priority and r.crashes > 0 and r.kind = any (v_kinds)
              and (p_tenants is null or r.tenant = any (p_tenants))
            order by r.seq, r.job_id
            limit 1
        ) s
        where p_suspects
          and not exists (select 1 from {schema}.pause p where p.scope = 'queue' and p.name = l.queue)
        union all
        select cardinality(p_queues) + 1, null, null  -- all levels are searched if no suspect can be claimed
        order by 1
    loop
        v_to := v_next.ord - 1;
        if exists (
            select 1 from {schema}.ready r
            where p_tenants is null and r.queue = p_queues[v_next.ord] and r.priority = p_priorities[v_next.ord]
              and r.seq > p_starts[v_next.ord] and (r.seq, r.job_id) < (v_next.seq, v_next.job_id)
              and r.crashes = 0 and r.kind <> '' and r.kind = any (v_kinds)
        ) or exists (
            select 1
            from unnest(p_tenants) t (tenant)
            cross join lateral (
                select 1 from {schema}.ready r
                where r.tenant = t.tenant and r.queue = p_queues[v_next.ord] and r.priority = p_priorities[v_next.ord]
                  and r.seq > p_starts[v_next.ord] and (r.seq, r.job_id) < (v_next.seq, v_next.job_id)
                  and r.crashes = 0 and r.kind = any (v_kinds)
                limit 1
            ) r
        ) then
            v_to := v_next.ord;
        end if;
        foreach v_turn in array array[false, true] loop
            if v_turn then v_from := v_next.ord; v_to := v_next.ord; end if;
            continue when v_from > v_to;
            return query
            select c.*
            from {schema}.claim(
                p_worker, p_lane, p_queues[v_from:v_to], p_priorities[v_from:v_to], p_starts[v_from:v_to], p_kinds,
                p_limit => case when v_turn then 0 else p_limit end, p_suspects => case when v_turn then 1 else 0 end,
                p_lease => p_lease, p_tenants => p_tenants, p_now => p_now) c
            join unnest(p_queues, p_priorities) with ordinality o (queue, priority, ord)
              on o.queue = c.queue and o.priority = c.priority
            order by o.ord, c.seq, c.job_id;
            if found then return; end if;
        end loop;
    end loop;
end $$;

-- Claims up to p_limit jobs of these kinds, in the order of priority, due time and arrival; p_queues null: of all queues.
-- Each is this worker's until expires_at, unless it is renewed. A suspect, which ran when a worker died, comes alone, and
-- only if p_suspects: a worker that runs several jobs at once takes one suspect at a time.
create or replace function {schema}.dequeue(
    p_kinds text[], p_queues text[] default null, p_limit int default 1, p_lease interval default '5 minutes',
    p_worker uuid default null, p_tenants text[] default null, p_suspects boolean default true,
    p_lane text default 'sql', p_now timestamptz default null
) returns setof {schema}.claimed_job
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp {walk_one}
as $$
declare
    v_before     text := coalesce(current_setting('dutiful.tenant', true), '');
    v_all        text := set_config('dutiful.tenant', '*', true);
    v_now        timestamptz := coalesce(p_now, clock_timestamp());
    v_at         bigint := {schema}.seq_at(v_now);
    v_worker     uuid := coalesce(p_worker, case when pg_input_is_valid(current_setting('dutiful.worker', true), 'uuid')
                                                 then current_setting('dutiful.worker')::uuid end,
                                  {schema}.session_worker());
    -- Whose levels are remembered. Tests that give the time may set it back, so nothing is remembered for them.
    v_key        text := case when p_now is null then concat('{schema} ', p_suspects, p_kinds) end;
    v_queues     text[];
    v_priorities int[];
    v_starts     bigint[];
    v_n          int;
    v_queue      text;  -- the level that is searched, and from where on
    v_priority   int;
    v_start      bigint;
    v_job        uuid;
    v_claim      bigint;
    v_expires    timestamptz;
    v_seq        bigint;
    v_attempt    int;
    v_crashes    int;
    v_unique     boolean;
begin
    -- One level, as there mostly is, is searched from its floor on, if there is no other and nothing is paused.
    if coalesce(current_setting('dutiful.levels', true) = v_key, false) and p_limit = 1 and p_tenants is null
       and v_at - current_setting('dutiful.looked_at')::bigint between 0 and current_setting('dutiful.counts_for')::bigint
       and p_lease > interval '0' and p_lease <= interval '1 day' and current_setting('dutiful.queue') <> ''
       and (p_queues is null or current_setting('dutiful.queue') = any (p_queues)) then
        v_queue := current_setting('dutiful.queue');
        v_priority := current_setting('dutiful.priority');
        v_start := least(current_setting('dutiful.floors')::bigint, v_at - {late_commit});
    end if;
    loop
        if v_queue is not null then
            delete from {schema}.ready x
            where x.ctid = (
                select r.ctid from {schema}.ready r
                where r.queue = v_queue and r.priority = v_priority and r.seq > v_start
                  and r.kind <> '' and r.kind = any (p_kinds) and (p_suspects or r.crashes = 0)
                order by r.seq, r.job_id
                limit 1
                for update skip locked)
              and (v_n > 0
                   or not (exists (select 1 from {schema}.pause where scope <> 'limited')
                           or current_setting('dutiful.quick', true) = 'true'
                              and (exists (select 1 from {schema}.ready r
                                           where r.kind <> '' and (r.queue, r.priority) < (v_queue, v_priority))
                                   -- Its own queue's lower priorities have to wait.
                                   or exists (select 1 from {schema}.ready r
                                              where r.kind <> '' and r.queue > v_queue))))
            -- Bounded as in claim.
            returning x.job_id, x.seq, least(x.attempt, 2147483646) + 1, least(x.crashes, 2147483646),
                      nextval('{schema}.claim_seq'), exists (
                          select 1 from {schema}.unique_key k where k.scope = 'queued' and k.job_id = x.job_id)
            into v_job, v_seq, v_attempt, v_crashes, v_claim, v_unique;
            exit when found;
        end if;
        if v_n is null then
            v_all := {schema}.act_for_all(p_now);
            perform {schema}.check_lease(p_lease);
            if coalesce(p_limit < 1, true) or p_kinds is null then
                raise exception 'p_kinds must be given, and p_limit must be 1 or more'
                    using errcode = 'invalid_parameter_value';
            end if;
            select l.queues, l.priorities, l.starts into v_queues, v_priorities, v_starts
            from {schema}.session_levels(v_key, p_kinds, p_queues, p_suspects, v_at) l;
            if p_limit > 1 or p_tenants is not null or exists (select 1 from {schema}.pause where scope <> 'limited') then
                -- They are claimed after they are found, so each lease ends a little later than is said here.
                return query
                select c.job_id, c.claim_id, c.kind, c.queue, c.priority, c.payload, c.attempt, c.max_attempts,
                       c.crashes, c.tenant, c.correlation_id, c.parent_id, c.subject, c.options, c.seq, v_now + p_lease
                from {schema}.claim_in_order(v_worker, p_lane, v_queues, v_priorities, v_starts, p_kinds, p_limit,
                                             p_suspects, p_lease, p_tenants, p_now) c;
                exit;
            end if;
            v_n := 0;
        end if;
        v_n := v_n + 1;
        v_queue := v_queues[v_n];
        exit when v_queue is null;
        v_priority := v_priorities[v_n];
        v_start := v_starts[v_n];
    end loop;
    if v_job is not null then
        v_now := coalesce(p_now, clock_timestamp());  -- as in claim
        v_expires := v_now + p_lease;
        insert into {schema}.lease (job_id, claim_id, worker_id, seq, claimed_at, expires_at, attempt, crashes)
        values (v_job, v_claim, v_worker, v_seq, v_now, v_expires, v_attempt, v_crashes);
        if v_unique then
            -- A locked key is skipped instead of waiting for a user's open transaction. A skipped key counts as free.
            delete from {schema}.unique_key u
            where u.ctid = any (array(
                select k.ctid from {schema}.unique_key k
                where k.scope = 'queued' and k.job_id = v_job
                for update skip locked));
        end if;
        return query
        select v_job, v_claim, j.kind::text, j.queue::text, j.priority::int, j.payload::jsonb, v_attempt,
               j.max_attempts::int, v_crashes, j.tenant::text, j.correlation_id::text, j.parent_id, j.subject::jsonb,
               j.options::jsonb, v_seq, v_expires
        from {schema}.job j where j.id = v_job;
        if v_n is null then
            v_all := set_config('dutiful.floors', (v_seq - 1)::text, false);
        end if;
    end if;
    v_all := set_config('dutiful.tenant', v_before, true);
end $$;

revoke execute on function {schema}.dequeue(
    text[], text[], int, interval, uuid, text[], boolean, text, timestamptz) from public;
