-- needs: claims_settle
-- Inserts jobs. Every p_now, here and in the other files, is for tests: null means the database's clock.
--
-- Those that insert have their owner's rights, so that a client's login writes no table by itself, and only the owner
-- may execute them until it is granted.

-- Raises unless who has logged in can write the tables anyway: others could forge history by a time of their own. It is
-- called by functions with their owner's rights.
create or replace function {schema}.check_own_time() returns void
language plpgsql stable as $$
begin
    if not has_table_privilege(session_user, '{schema}.job', 'insert') then
        raise exception 'p_now is for tests, of the owner' using errcode = 'insufficient_privilege';
    end if;
end $$;

-- Raises unless these are version 7 ids, whose time retention and lists go by.
create or replace function {schema}.check_ids(p_ids uuid[]) returns void
language plpgsql immutable as $$
begin
    if exists (select 1 from unnest(p_ids) u (id) where get_byte(uuid_send(u.id), 6) >> 4 <> 7) then
        raise exception 'an id must be a version 7 UUID, such as {schema}.new_id() makes: retention goes by its time'
            using errcode = 'invalid_parameter_value';
    end if;
end $$;

-- Wakes workers at commit, which is a hint: they poll, too. Any session that listens and keeps a transaction open lets the
-- server's queue of notifications grow, and when it is full, each commit with one fails. Inlined where it is used.
create or replace function {schema}.wake_workers(p_hint text) returns void
language sql volatile as $$
    select case when {notify_room} then pg_notify('{schema}', p_hint) end
$$;

-- Stores jobs that need no look-up; returns the ids that existed already. A column that is the same for all jobs may be
-- an array of one; one that no job has, null. p_hint: the payload of a NOTIFY at commit, null for none. One for any queue
-- ('[]') is sent besides if a p_run_at is near by this clock, because the caller's may be behind; unless p_hint is ''.
create or replace function {schema}.insert_plain(p_now timestamptz, p_hint text, {job_parameters}) returns setof uuid
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp {use_indexes} as $$
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_seq    bigint := {schema}.seq_at(v_now);
    v_paused text[] := {blocked_kinds};
    v_stopped text[];
    v_count  bigint;
    v_made   uuid[];
begin
    if p_now is not null then perform {schema}.check_own_time(); end if;
    perform {schema}.check_ids(p_id);
    if p_hint <> '' then perform {schema}.wake_workers(p_hint); end if;
    if p_run_at is null and p_delay is null and not v_paused && p_kind then
        -- The common case: everything is due now, so all jobs go to ready.
        if cardinality(p_id) >= 20 then
            -- A batch is assumed to be new: that saves each of its rows a probe and a second WAL record, and is worth a
            -- subtransaction. If one exists already, all are inserted again below.
            begin
                insert into {schema}.job (created_at, {job_columns})
                select v_now, {job_values}
                from {jobs_given};
                insert into {schema}.ready (seq, job_id, {carried})
                select v_seq + {seq_step} * (row_number() over () - 1), a.id, {carried_values}
                from {routes_given};
                return;
            exception when unique_violation then
            end;
        end if;
        with made as (
            insert into {schema}.job (created_at, {job_columns})
            select v_now, {job_values}
            from {jobs_given}
            on conflict (id) do nothing
            returning id, {route}
        )
        insert into {schema}.ready (seq, job_id, {carried})
        select v_seq + {seq_step} * (row_number() over () - 1), m.id, {carried_new of m}
        from made m;
        get diagnostics v_count = row_count;
        if v_count < cardinality(p_id) then
            -- New are those that this transaction has just written. The offset makes this a look-up for each.
            return query
            select u.id from (select distinct unnest(p_id) as id) u
            where not exists (select 1 from {schema}.ready r
                              where r.job_id = u.id and r.xmin = pg_current_xact_id()::xid offset 0);
        end if;
        return;
    end if;

    if p_hint is distinct from '' and p_hint is distinct from '[]'
       and exists (select 1 from unnest(p_run_at) r (at) where r.at < {near}) then
        perform {schema}.wake_workers('[]');
    end if;
    v_stopped := {stopped_kinds};
    with made as (
        insert into {schema}.job (created_at, run_at, {job_columns})
        select v_now, coalesce(a.run_at, v_now + a.delay), {job_values}
        from {jobs_given_with_times}
        on conflict (id) do nothing
        returning id, run_at, {route}
    ), in_order as (
        select m.*, case when m.run_at > v_now then null
                         else coalesce({schema}.seq_at(m.run_at), v_seq + {seq_step} * (row_number() over () - 1)) end as seq
        from made m
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, {carried})
        select m.seq, m.id, {carried_new of m}
        from in_order m where m.seq is not null and m.kind <> all (v_paused)
    ), to_scheduled as (
        insert into {schema}.scheduled (run_at, job_id, {carried})
        select m.run_at, m.id, {carried_new of m}
        from made m where m.run_at > v_now and m.kind <> all (v_stopped)
    ), to_blocked as (
        insert into {schema}.blocked (job_id, since, run_at, seq, gate, key, {carried})
        select m.id, v_now, m.run_at, m.seq, 'paused', m.kind, {carried_new of m}
        from in_order m where m.kind = any (case when m.seq is null then v_stopped else v_paused end)
    )
    select array_agg(m.id) into v_made from made m;
    return query
    select u.id from (select distinct unnest(p_id) as id) u where u.id <> all (coalesce(v_made, '{}'));
end $$;

-- Stores one job that needs no look-up; false: the id existed already. Most enqueues come one by one, and arrays, a
-- common table expression and a returned set would take a third of such a call's time.
create or replace function {schema}.insert_one(p_now timestamptz, p_hint text, {one_job_parameters}) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp {use_indexes} as $$
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_run_at timestamptz := coalesce(p_run_at, v_now + p_delay);
begin
    if p_now is not null then perform {schema}.check_own_time(); end if;
    if get_byte(uuid_send(p_id), 6) >> 4 <> 7 then perform {schema}.check_ids(array[p_id]); end if;
    if p_hint <> '' then
        perform {schema}.wake_workers(p_hint);
    elsif p_run_at is not null and p_hint is null and p_run_at < {near} then
        perform {schema}.wake_workers('[]');
    end if;
    insert into {schema}.job (created_at, run_at, {job_columns})
    values (v_now, v_run_at, {one_job_values})
    on conflict (id) do nothing;
    if not found then return false; end if;
    if v_run_at > v_now then
        insert into {schema}.scheduled (run_at, job_id, {carried})
        select v_run_at, p_id, {one_carried}
        where not exists (select 1 from {schema}.pause where name = p_kind and scope in {stopping_scopes});
    else
        insert into {schema}.ready (seq, job_id, {carried})
        select {schema}.seq_at(coalesce(v_run_at, v_now)), p_id, {one_carried}
        where not exists (select 1 from {schema}.pause where name = p_kind and scope in {blocking_scopes});
    end if;
    if not found then
        insert into {schema}.blocked (job_id, since, run_at, seq, gate, key, {carried})
        values (p_id, v_now, v_run_at,
                case when v_run_at > v_now then null else {schema}.seq_at(coalesce(v_run_at, v_now)) end,
                'paused', p_kind, {one_carried});
    end if;
    return true;
end $$;

-- Deletes a job that was just stored, and stands nowhere yet, because its key is taken.
create or replace function {schema}.withdraw_job(p_job uuid) returns void
language sql volatile {look_up_ids} as $$
    delete from {schema}.job j
    where j.id = p_job
      and not exists (select 1 from {schema}.ready x where x.job_id = p_job)
      and not exists (select 1 from {schema}.scheduled x where x.job_id = p_job)
      and not exists (select 1 from {schema}.blocked x where x.job_id = p_job)
      and not exists (select 1 from {schema}.lease x where x.job_id = p_job)
      and not exists (select 1 from {schema}.finished x where x.job_id = p_job)
$$;

-- Returns what a job's options keep of a unique key beside the key itself, in the words of Python.
create or replace function {schema}.unique_kept(p_unique jsonb) returns jsonb
language sql immutable as $$
    select case when k.held = '{}' then '{}' else jsonb_build_object('unique_as', k.held) end
    from (select jsonb_strip_nulls(jsonb_build_object(
              'scope', nullif(p_unique ->> 'scope', 'active'),
              'window_ms', p_unique -> 'window_ms',
              'across_kinds', nullif(p_unique -> 'across_kinds', 'false'))) as held) k
$$;

-- Returns the live job that holds the first of the keys that a new job would inherit, or null.
create or replace function {schema}.inherited_holder(
    p_job uuid, p_tenant text, p_kind text, p_inherits jsonb, p_now timestamptz) returns uuid
language sql volatile as $$
    -- The limit makes this a look-up by key, whatever the statistics say.
    select k.job_id
    from jsonb_array_elements(p_inherits) with ordinality i (u, ord)
    cross join lateral (
        select x.job_id, x.scope, x.expires_at from {schema}.unique_key x
        where x.tenant = p_tenant and x.key = u ->> 'key'
          and x.kind = case when (u ->> 'across_kinds')::boolean then '' else p_kind end
        limit 1
    ) k
    where k.job_id <> p_job and (k.expires_at is null or k.expires_at > p_now)
      and exists (select 1 from {schema}.job j where j.id = k.job_id offset 0)
      and not exists (select 1 from {schema}.finished f where f.job_id = k.job_id offset 0)
      and not {schema}.is_key_orphaned(k.job_id, k.scope)
    order by i.ord limit 1
$$;

-- Gives back the keys of a new job that has lost one of them: inherited ones to the jobs that had them, others are
-- freed.
create or replace function {schema}.return_keys(p_jobs jsonb, p_moved jsonb, p_job uuid) returns void
language sql volatile as $$
    -- The limits make these look-ups by key, whatever the statistics say.
    update {schema}.unique_key k set job_id = m.other
    from (
        select f.ctid, a.other
        from jsonb_to_recordset(p_moved) a (tenant text, kind text, key text, id uuid, other uuid)
        cross join lateral (
            select x.ctid, x.job_id from {schema}.unique_key x
            where x.tenant = a.tenant and x.kind = a.kind and x.key = a.key limit 1
        ) f
        where a.id = p_job and f.job_id = p_job
    ) m
    where k.ctid = m.ctid;
    delete from {schema}.unique_key k
    where k.ctid = any (array(
        select f.ctid
        from jsonb_array_elements(p_jobs) e (v)
        cross join lateral (
            select v -> 'unique' as u
            union all
            select i.u from jsonb_array_elements(nullif(v -> 'inherits', 'null')) i (u)
        ) g
        cross join lateral (
            select x.ctid, x.job_id from {schema}.unique_key x
            where x.tenant = coalesce(v ->> 'tenant', '') and x.key = u ->> 'key'
              and x.kind = case when (u ->> 'across_kinds')::boolean then '' else v ->> 'kind' end
            limit 1
        ) f
        where (v ->> 'id')::uuid = p_job and f.job_id = p_job));
$$;

-- Stores jobs, given as a JSON array of objects with the names of table job, and besides:
--   delay_ms, unique {key, scope, on_conflict, window_ms, across_kinds},
--   depends_on [ids of jobs that exist, or come earlier in the array], policies [one for each: cancel, run, fail],
--   joins: a job; what waits for it waits for this one too, by the same policy,
--   inherits [{key, scope, …}]: keys that it takes over from ended jobs; a live holder rejects it.
-- Returns, in order, the job that represents each request, and what was done: made, existing, rejected, replaced.
-- p_notify: wake workers at commit; it takes a database-wide lock for the moment of the commit.
-- p_checked: the caller has applied the kinds' payload rules and defaults itself; the database may have those of another release.
create or replace function {schema}.insert_jobs(
    p_jobs jsonb, p_now timestamptz default null, p_notify boolean default false, p_checked boolean default false)
returns table (ord bigint, job_id uuid, insertion text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp {walk_indexes}
as $$ #variable_conflict use_column
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_seq     bigint := {schema}.seq_at(v_now);
    v_paused  text[] := {blocked_kinds};
    v_stopped text[] := {stopped_kinds};
    v_made    uuid[];  -- the new jobs, without those that lost a key
    v_holders uuid[] := '{}';
    v_losers  uuid[] := '{}';
    v_actions text[] := '{}';
    v_key     record;
    v_other   uuid;
    v_heir_of uuid;
    v_lost    uuid;
    v_moved   jsonb := '[]';  -- inherited keys, with the jobs that had them
    v_looks   int := 0;
    v_places  jsonb := '{}';  -- of the new jobs in the array, if any depends on another
begin
    if p_now is not null then perform {schema}.check_own_time(); end if;
    if not p_checked and exists (select 1 from {schema}.payload_rule) then
        p_jobs := {schema}.apply_rules(p_jobs);
    end if;
    if not p_checked and exists (select 1 from {schema}.kind_default) then
        p_jobs := {schema}.apply_defaults(p_jobs);
    end if;
    -- The job rows come first: a repeat of this call waits here until the first one has committed.
    with asked as (
        select distinct on (j.id) j.* from (
            select e.ordinality as ord, (e.value ->> 'id')::uuid as id,
                   -- The job keeps its key for display, also when it is free again.
                   case when e.value #>> '{unique,key}' is null then e.value
                        else e.value || jsonb_build_object('options',
                             coalesce(nullif(e.value -> 'options', 'null'), '{}')
                             || jsonb_build_object('unique', e.value #>> '{unique,key}')
                             || {schema}.unique_kept(e.value -> 'unique')) end as v
            from jsonb_array_elements(p_jobs) with ordinality e
        ) j order by j.id, j.ord
    ), made as (
        insert into {schema}.job (created_at, run_at, {job_columns})
        select v_now,
               coalesce((v ->> 'run_at')::timestamptz, v_now + (v ->> 'delay_ms')::bigint * interval '1 millisecond'),
               {job_values_of_json}
        from asked a
        on conflict (id) do nothing
        returning id
    )
    select coalesce(array_agg(m.id), '{}') into v_made from made m;
    perform {schema}.check_ids(v_made);

    -- Keys are taken in sorted order, so that two callers cannot wait for each other.
    for v_key in
        select (v ->> 'id')::uuid as id, coalesce(v ->> 'tenant', '') as tenant, u ->> 'key' as key,
               case when (u ->> 'across_kinds')::boolean then '' else v ->> 'kind' end as kind,
               v ->> 'kind' as own_kind, nullif(v -> 'inherits', 'null') as inherits,
               u ->> 'scope' as scope, inherited, case when inherited then 'reject' else u ->> 'on_conflict' end as action,
               v_now + (u ->> 'window_ms')::bigint * interval '1 millisecond' as expires_at
        from jsonb_array_elements(p_jobs) with ordinality e (v, ord),
             lateral (select nullif(v -> 'unique', 'null') as u, false as inherited
                      union all
                      select i.u, true from jsonb_array_elements(nullif(v -> 'inherits', 'null')) i (u)) k
        where u is not null and (v ->> 'id')::uuid = any (v_made)
        order by 2, 4, 3, ord
    loop
        continue when v_key.id <> all (v_made);  -- it has lost another key
        -- Found by its key first; by scope and time, all expired keys would be read.
        delete from {schema}.unique_key k
        where k.ctid = (select x.ctid from {schema}.unique_key x
                        where x.tenant = v_key.tenant and x.kind = v_key.kind and x.key = v_key.key)
          and k.scope = 'window' and k.expires_at <= v_now;
        loop
            insert into {schema}.unique_key (tenant, kind, key, job_id, expires_at, scope)
            values (v_key.tenant, v_key.kind, v_key.key, v_key.id, v_key.expires_at, v_key.scope)
            on conflict do nothing;
            exit when found;
            -- Read without a lock, because it would be held until the caller commits, and others need the row.
            select k.job_id into v_other from {schema}.unique_key k
            where k.tenant = v_key.tenant and k.kind = v_key.kind and k.key = v_key.key;
            continue when not found;  -- freed between the two statements: try again
            exit when v_other = v_key.id;
            if v_key.inherited
               and (exists (select 1 from {schema}.finished f where f.job_id = v_other)
                    or not exists (select 1 from {schema}.job j where j.id = v_other)) then
                update {schema}.unique_key k set job_id = v_key.id
                where k.tenant = v_key.tenant and k.kind = v_key.kind and k.key = v_key.key and k.job_id = v_other;
                continue when not found;  -- freed or moved meanwhile
                v_moved := v_moved || jsonb_build_object(
                    'tenant', v_key.tenant, 'kind', v_key.kind, 'key', v_key.key, 'id', v_key.id, 'other', v_other);
                exit;
            end if;
            -- A key that was locked when its holder no longer needed it is orphaned, and free.
            delete from {schema}.unique_key k
            where k.tenant = v_key.tenant and k.kind = v_key.kind and k.key = v_key.key and k.job_id = v_other
              and {schema}.is_key_orphaned(k.job_id, k.scope);
            continue when found;
            -- Inherited keys reject a job before its own key does anything; of several holders the first is named.
            v_heir_of := case when v_key.inherits is not null then {schema}.inherited_holder(
                v_key.id, v_key.tenant, v_key.own_kind, v_key.inherits, v_now) end;
            if v_heir_of is not null then
                v_key.action := 'reject';
                v_other := v_heir_of;
            end if;
            if v_key.action = 'replace' and v_other <> all (v_made)
               and {schema}.cancel_waiting(v_other, 'replaced by ' || {schema}.public_id(v_key.id), v_now) then
                delete from {schema}.unique_key k
                where k.tenant = v_key.tenant and k.kind = v_key.kind and k.key = v_key.key;
                v_losers := v_losers || v_key.id;
                v_holders := v_holders || v_key.id;
                v_actions := v_actions || 'replaced'::text;
                continue;
            end if;
            if v_key.action = 'replace' and v_other <> all (v_made) then
                -- Not found, it moved meanwhile, for example by promotion: try again.
                v_looks := v_looks + 1;
                continue when v_looks < 100
                    and not exists (select 1 from {schema}.lease l where l.job_id = v_other)
                    and not exists (select 1 from {schema}.finished f where f.job_id = v_other);
            end if;
            -- Another transaction may have replaced the holder during the wait.
            continue when v_heir_of is null and not exists (
                select 1 from {schema}.unique_key k
                where k.tenant = v_key.tenant and k.kind = v_key.kind and k.key = v_key.key and k.job_id = v_other);
            v_losers := v_losers || v_key.id;
            v_holders := v_holders || v_other;
            v_actions := v_actions || case v_key.action when 'reject' then 'rejected' else 'existing' end;
            v_made := array_remove(v_made, v_key.id);
            perform {schema}.return_keys(p_jobs, v_moved, v_key.id);
            perform {schema}.withdraw_job(v_key.id);
            exit;
        end loop;
    end loop;

    -- Locked until commit, so that retention cannot delete a job that another is about to depend on.
    perform 1 from {schema}.job j
    where j.id = any (array(select jsonb_array_elements_text(nullif(v -> 'depends_on', 'null'))::uuid
                            from jsonb_array_elements(p_jobs) e (v)))
      and j.id <> all (v_made)
    order by j.id
    for key share;
    if found or exists (select 1 from jsonb_array_elements(p_jobs) e (v) where nullif(v -> 'depends_on', 'null') is not null) then
        select coalesce(jsonb_object_agg(m.id, m.ord), '{}') into v_places
        from (select (v ->> 'id')::uuid as id, min(o) as ord
              from jsonb_array_elements(p_jobs) with ordinality e (v, o) group by 1) m
        where m.id = any (v_made);
    end if;
    select n.id into v_lost
    from jsonb_array_elements(p_jobs) with ordinality j (v, ord),
         lateral (select jsonb_array_elements_text(nullif(v -> 'depends_on', 'null'))::uuid as id) n
    where (v ->> 'id')::uuid = any (v_made)
      -- Another tenant's job counts as missing; and a later one of the same call, so that there can be no cycle.
      and (not exists (select 1 from {schema}.job x
                       where x.id = n.id and x.tenant is not distinct from v ->> 'tenant' offset 0)
           or (v_places ->> n.id::text)::bigint >= j.ord)
    limit 1;
    if found then
        raise exception 'no job has the id %, which this job is to depend on', v_lost
            using errcode = 'foreign_key_violation', detail = v_lost::text;
    end if;
    insert into {schema}.dependency (job_id, needs_id, policy)
    select (v ->> 'id')::uuid, n.id::uuid, coalesce(v -> 'policies' ->> (n.nth - 1)::int, 'cancel')
    from jsonb_array_elements(p_jobs) j (v),
         lateral jsonb_array_elements_text(nullif(v -> 'depends_on', 'null')) with ordinality n (id, nth)
    where (v ->> 'id')::uuid = any (v_made)
    on conflict do nothing;

    insert into {schema}.dependency (job_id, needs_id, policy)
    select w.job_id, (v ->> 'id')::uuid, w.policy
    from jsonb_array_elements(p_jobs) j (v),
         lateral (
             select d.job_id, d.policy from {schema}.dependency d
             where d.needs_id = (v ->> 'joins')::uuid
               and exists (select 1 from {schema}.job x
                           where x.id = d.job_id and x.tenant is not distinct from v ->> 'tenant' offset 0)
             -- Locked, so that it is not released meanwhile; if it was, it waits for nothing any more.
               and exists (select 1 from {schema}.blocked b
                           where b.job_id = d.job_id and b.gate = 'dependency' offset 0 for update)
             offset 0
         ) w
    where nullif(v -> 'joins', 'null') is not null and (v ->> 'id')::uuid = any (v_made)
    on conflict do nothing;

    with made as (
        select j.*, m.ord, w.needs_id as watched,
               case when w.needs_id is not null then 'dependency'
                    when j.kind = any (case when j.run_at > v_now then v_stopped else v_paused end)
                    then 'paused' end as gate
        from (
            select (v ->> 'id')::uuid as id, min(o) as ord, bool_or(nullif(v -> 'depends_on', 'null') is not null) as depends
            from jsonb_array_elements(p_jobs) with ordinality e (v, o) group by 1
        ) m
        -- The limit makes this a look-up by id, as the offsets do, also if the planner believes the table to be empty.
        cross join lateral (select x.* from {schema}.job x where x.id = m.id limit 1) j
        -- The newest job that it waits for: it is the last to end, if they end in the order in which they were made. The
        -- offset keeps the order out of the look-up: for it, a plan for an empty table would walk the index of needs_id.
        left join lateral (
            select d.needs_id
            from (select x.needs_id, x.policy from {schema}.dependency x where x.job_id = m.id and m.depends offset 0) d
            where not exists (select 1 from {schema}.finished f
                              where f.job_id = d.needs_id
                                and (d.policy = 'run' or f.state in ('completed', 'completed_with_errors')) offset 0)
            order by d.needs_id desc limit 1
        ) w on true
        where m.id = any (v_made)
    ), in_order as (
        select m.*, case when m.gate = 'dependency' or m.run_at > v_now then null
                         else coalesce({schema}.seq_at(m.run_at), v_seq + {seq_step} * (m.ord - 1)) end as seq
        from made m
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, {carried})
        select m.seq, m.id, {carried_new of m}
        from in_order m where m.gate is null and m.seq is not null
    ), to_scheduled as (
        insert into {schema}.scheduled (run_at, job_id, {carried})
        select m.run_at, m.id, {carried_new of m}
        from made m where m.gate is null and m.run_at > v_now
    )
    insert into {schema}.blocked (job_id, since, run_at, seq, gate, key, {carried})
    select m.id, v_now, m.run_at, m.seq, m.gate, case m.gate when 'paused' then m.kind else m.watched::text end,
           {carried_new of m}
    from in_order m where m.gate is not null;

    -- For any queue: the commit may be so late that the jobs are below the floors of workers.
    if p_notify then perform {schema}.wake_workers('[]'); end if;

    return query
    select a.ord, coalesce(b.holder, a.id),
           coalesce(b.action, case when a.id = any (v_made) and a.nth = 1 then 'made' else 'existing' end)
    from (
        select o as ord, (v ->> 'id')::uuid as id, row_number() over (partition by v ->> 'id' order by o) as nth
        from jsonb_array_elements(p_jobs) with ordinality e (v, o)
    ) a
    left join unnest(v_losers, v_holders, v_actions) b (id, holder, action) on b.id = a.id and a.nth = 1
    order by a.ord;
end $$;

-- By their names: while a release is deployed, there may be two of one, with other parameters.
do $$
declare v_function regprocedure;
begin
    for v_function in
        select p.oid::regprocedure from pg_proc p
        where p.pronamespace = '{schema}'::regnamespace and p.proname in ('insert_plain', 'insert_one', 'insert_jobs')
    loop
        execute format('revoke execute on function %s from public', v_function);
    end loop;
end $$;
