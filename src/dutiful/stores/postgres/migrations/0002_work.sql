-- The work path: enqueue, claim, settle, renew. One function a verb.
--
-- The planner believes that queue tables are empty, and a plan cached while that was true would scan for ever after;
-- so each function allows itself walks along an index only, which also holds behind a transaction pooler. Those that
-- only look rows up do without plain index scans too: of a table that is thought to be empty, the planner would walk the
-- whole index and filter, for each row anew. A bitmap is made from a condition, so it cannot.
-- Every p_now is for tests: null means the database's clock.

-- A version 7 UUID, for callers that do not make their own.
create function {schema}.new_id(p_at timestamptz default null) returns uuid
language sql volatile as $$
    select encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                    placing substring(int8send(floor(extract(epoch from coalesce(p_at, clock_timestamp())) * 1000)::bigint)
                                      from 3)
                    from 1 for 6),
            52, 1), 53, 1), 'hex')::uuid
$$;

-- An id as people see it: Crockford's Base32 with two check digits, in four groups.
create function {schema}.public_id(p_id uuid) returns text
language sql immutable as $$
    with id as (
        select b'00' || ('x' || replace(p_id::text, '-', ''))::bit(128) as bits
    ), spelt as (
        select string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + substring(bits from 5 * n + 1 for 5)::int, 1), ''
                          order by n) as digits
        from id, generate_series(0, 25) n
    ), checked as (
        -- 2 ^ 32 is 35 modulo 97.
        select 98 - (100 * sum(substring(bits from 32 * n + 3 for 32)::bigint % 97
                               * (array[1, 35, 61, 1])[4 - n]) % 97)::int as sum
        from id, generate_series(0, 3) n
    )
    select regexp_replace(s.digits || lpad(c.sum::text, 2, '0'), '(.{7})(.{7})(.{7})(.{7})', '\1-\2-\3-\4')
    from spelt s, checked c
$$;

-- Store jobs that nothing has to be looked up for. Returns the ids that were there already: those are left alone.
-- A column that is the same for all may be given as an array of one; one that nobody has, as null.
-- p_hint: what to tell listeners at commit, if anything.
create function {schema}.insert_plain(
    p_ids uuid[], p_kinds text[], p_queues text[], p_payloads text[], p_priorities int[], p_max_attempts int[],
    p_run_ats timestamptz[], p_delays interval[], p_tenants text[], p_correlation_ids text[], p_parent_ids uuid[],
    p_retry_ofs uuid[], p_subjects text[], p_created_bys text[], p_options text[], p_now timestamptz, p_hint text
) returns setof uuid
language plpgsql volatile
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_paused text[] := array(select name from {schema}.pause where scope in ('kind', 'breaker', 'probing'));
    v_count  bigint;
    v_made   uuid[];
begin
    if p_hint is not null then
        perform pg_notify('{schema}', p_hint);
    end if;
    if p_run_ats is null and p_delays is null and cardinality(v_paused) = 0 then
        -- The common case: everything is due now. One place to write to, and nothing to sort out.
        if cardinality(p_ids) >= 20 then
            -- A batch is taken to be new: that saves each of its rows a probe and a second WAL record, and is worth a
            -- subtransaction. If one was there already, all begin again below.
            begin
                insert into {schema}.job
                    (id, created_at, parent_id, retry_of, priority, max_attempts, kind, queue, tenant,
                     correlation_id, created_by, payload, subject, options)
                select a.id, v_now, a.parent_id, a.retry_of, coalesce(a.priority, p_priorities[1]),
                       coalesce(a.max_attempts, p_max_attempts[1]), coalesce(a.kind, p_kinds[1]),
                       coalesce(a.queue, p_queues[1]), a.tenant, a.correlation_id, a.created_by,
                       a.payload::jsonb, a.subject::jsonb, a.options::jsonb
                from unnest(p_ids, p_kinds, p_queues, p_payloads, p_priorities, p_max_attempts,
                            p_tenants, p_correlation_ids, p_parent_ids, p_retry_ofs, p_subjects, p_created_bys,
                            p_options)
                  as a (id, kind, queue, payload, priority, max_attempts,
                        tenant, correlation_id, parent_id, retry_of, subject, created_by, options);
                insert into {schema}.ready (seq, job_id, priority, attempt, crashes, queue, kind, tenant)
                select nextval('{schema}.ready_seq'), a.id, coalesce(a.priority, p_priorities[1]), 0, 0,
                       coalesce(a.queue, p_queues[1]), coalesce(a.kind, p_kinds[1]), a.tenant
                from unnest(p_ids, p_kinds, p_queues, p_priorities, p_tenants) as a (id, kind, queue, priority, tenant);
                return;
            exception when unique_violation then
            end;
        end if;
        with made as (
            insert into {schema}.job
                (id, created_at, parent_id, retry_of, priority, max_attempts, kind, queue, tenant,
                 correlation_id, created_by, payload, subject, options)
            select a.id, v_now, a.parent_id, a.retry_of, coalesce(a.priority, p_priorities[1]),
                   coalesce(a.max_attempts, p_max_attempts[1]), coalesce(a.kind, p_kinds[1]),
                   coalesce(a.queue, p_queues[1]), a.tenant, a.correlation_id, a.created_by,
                   a.payload::jsonb, a.subject::jsonb, a.options::jsonb
            from unnest(p_ids, p_kinds, p_queues, p_payloads, p_priorities, p_max_attempts,
                        p_tenants, p_correlation_ids, p_parent_ids, p_retry_ofs, p_subjects, p_created_bys, p_options)
              as a (id, kind, queue, payload, priority, max_attempts,
                    tenant, correlation_id, parent_id, retry_of, subject, created_by, options)
            on conflict (id) do nothing
            returning id, kind, queue, priority, tenant
        )
        insert into {schema}.ready (seq, job_id, priority, attempt, crashes, queue, kind, tenant)
        select nextval('{schema}.ready_seq'), m.id, m.priority, 0, 0, m.queue, m.kind, m.tenant
        from made m;
        get diagnostics v_count = row_count;
        if v_count < cardinality(p_ids) then
            -- Ours are those that this transaction has just written.
            return query
            select u.id from (select distinct unnest(p_ids) as id) u
            where not exists (select 1 from {schema}.ready r where r.job_id = u.id and r.xmin = pg_current_xact_id()::xid);
        end if;
        return;
    end if;

    with made as (
        insert into {schema}.job
            (id, created_at, run_at, parent_id, retry_of, priority, max_attempts, kind, queue, tenant,
             correlation_id, created_by, payload, subject, options)
        select a.id, v_now, coalesce(a.run_at, v_now + a.delay), a.parent_id, a.retry_of,
               coalesce(a.priority, p_priorities[1]), coalesce(a.max_attempts, p_max_attempts[1]),
               coalesce(a.kind, p_kinds[1]), coalesce(a.queue, p_queues[1]), a.tenant, a.correlation_id, a.created_by,
               a.payload::jsonb, a.subject::jsonb, a.options::jsonb
        from unnest(p_ids, p_kinds, p_queues, p_payloads, p_priorities, p_max_attempts, p_run_ats, p_delays,
                    p_tenants, p_correlation_ids, p_parent_ids, p_retry_ofs, p_subjects, p_created_bys, p_options)
          as a (id, kind, queue, payload, priority, max_attempts, run_at, delay,
                tenant, correlation_id, parent_id, retry_of, subject, created_by, options)
        on conflict (id) do nothing
        returning id, kind, queue, priority, tenant, run_at
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, priority, attempt, crashes, queue, kind, tenant)
        select nextval('{schema}.ready_seq'), m.id, m.priority, 0, 0, m.queue, m.kind, m.tenant
        from made m
        where (m.run_at is null or m.run_at <= v_now) and m.kind <> all (v_paused)
    ), to_scheduled as (
        insert into {schema}.scheduled (run_at, job_id, priority, attempt, crashes, queue, kind, tenant)
        select m.run_at, m.id, m.priority, 0, 0, m.queue, m.kind, m.tenant
        from made m
        where m.run_at > v_now and m.kind <> all (v_paused)
    ), to_blocked as (
        insert into {schema}.blocked (job_id, since, run_at, priority, attempt, crashes, gate, key, queue, kind, tenant)
        select m.id, v_now, m.run_at, m.priority, 0, 0, 'paused', m.kind, m.queue, m.kind, m.tenant
        from made m
        where m.kind = any (v_paused)
    )
    select array_agg(m.id) into v_made from made m;
    return query
    select u.id from (select distinct unnest(p_ids) as id) u where u.id <> all (coalesce(v_made, '{}'));
end $$;

-- Write the dead letters of jobs that have just failed for good.
create function {schema}.bury(p_jobs uuid[], p_now timestamptz) returns void
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
    insert into {schema}.dead_letter
        (job_id, died_at, created_at, attempt, max_attempts, kind, queue, tenant, correlation_id, unique_key,
         error_class, error_type, message, fingerprint, job, errors, history)
    select j.id, p_now, j.created_at, f.attempt, j.max_attempts, j.kind, j.queue, j.tenant,
           coalesce(j.correlation_id, j.id::text), j.options ->> 'unique',
           f.errors #>> '{0,class}', f.errors #>> '{0,type}', f.errors #>> '{0,message}',
           f.errors #>> '{0,fingerprint}', to_jsonb(j), f.errors,
           (select jsonb_agg(to_jsonb(t) - '{id,next_at}'::text[] order by t.id) from {schema}.attempt t where t.job_id = j.id)
    from {schema}.job j join {schema}.finished f on f.job_id = j.id
    where j.id = any (p_jobs);
end $$;

-- End a job that waits as cancelled or failed. Returns whether it did; one that a claim holds locked is waited for.
create function {schema}.end_waiting(p_job uuid, p_state text, p_error jsonb, p_now timestamptz) returns boolean
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_done boolean;
begin
    with from_ready as (
        delete from {schema}.ready where job_id = p_job returning attempt, crashes
    ), from_scheduled as (
        delete from {schema}.scheduled where job_id = p_job returning attempt, crashes
    ), from_blocked as (
        delete from {schema}.blocked where job_id = p_job returning attempt, crashes
    ), freed as (
        insert into {schema}.finished (job_id, finished_at, attempt, crashes, state, errors)
        select p_job, v_now, w.attempt, w.crashes, p_state, jsonb_build_array(p_error)
        from (select * from from_ready union all select * from from_scheduled union all select * from from_blocked) w
        returning 1
    )
    select exists (select 1 from freed) into v_done;
    if v_done then
        delete from {schema}.unique_key where job_id = p_job and scope = 'active';
        delete from {schema}.unique_key where job_id = p_job and scope = 'queued';
        perform {schema}.cancel_phases(array[p_job], v_now);
        if p_state = 'failed' then
            perform {schema}.bury(array[p_job], v_now);
        end if;
        perform {schema}.announce(array[p_job], v_now);
    end if;
    return v_done;
end $$;

create function {schema}.cancel_waiting(p_job uuid, p_reason text, p_now timestamptz) returns boolean
language sql volatile as $$
    select {schema}.end_waiting(p_job, 'cancelled', jsonb_build_object('type', 'Cancelled', 'message', p_reason), p_now)
$$;

-- Whether a key's holder no longer needs it: freeing skips a row that is locked, and then this stays true.
create function {schema}.is_left_behind(p_job uuid, p_scope text) returns boolean
language sql stable as $$
    select case p_scope
        when 'queued' then exists (select 1 from {schema}.lease l where l.job_id = p_job)
                        or exists (select 1 from {schema}.finished f where f.job_id = p_job)
        when 'active' then exists (select 1 from {schema}.finished f where f.job_id = p_job)
        else false end
$$;

-- Free the keys of jobs that are final. Never waits: somebody's open transaction may hold one.
create function {schema}.free_active(p_jobs uuid[]) returns void
language plpgsql volatile as $$
begin
    delete from {schema}.unique_key u
    where u.ctid = any (array(
        select k.ctid from {schema}.unique_key k
        where k.scope = 'active' and k.job_id = any (p_jobs)
        for update skip locked));
end $$;

-- Store jobs, given as a JSON array of objects with the names of table job, and besides:
--   delay_ms, unique {key, scope, on_conflict, window_ms, across_kinds}, depends_on [ids].
-- Answers, in order, the job that stands for each request and what was done: made, existing, rejected, replaced.
-- p_notify: wake workers at commit; it takes a database-wide lock for the moment of the commit.
-- p_checked: code that has the kinds' rules has judged these jobs by them; other rules may be declared here at the time.
create function {schema}.insert_jobs(
    p_jobs jsonb, p_now timestamptz default null, p_notify boolean default false, p_checked boolean default false)
returns table (ord bigint, job_id uuid, insertion text)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_paused text[] := array(select name from {schema}.pause where scope in ('kind', 'breaker', 'probing'));
    v_made   uuid[];  -- the jobs of ours, those that lost a key taken out again
    v_holder uuid[] := '{}';
    v_beaten uuid[] := '{}';
    v_words  text[] := '{}';
    v_key    record;
    v_other  uuid;
    v_lost   uuid;
    v_looks  int := 0;
begin
    if not p_checked and exists (select 1 from {schema}.payload_rule) then
        p_jobs := {schema}.follow_rules(p_jobs);
    end if;
    -- The job rows come first: a repeat of this call waits here until the first one has committed.
    with asked as (
        select distinct on (j.id) j.* from (
            select e.ordinality as ord, (e.value ->> 'id')::uuid as id, e.value as v
            from jsonb_array_elements(p_jobs) with ordinality e
        ) j order by j.id, j.ord
    ), made as (
        insert into {schema}.job
            (id, created_at, run_at, parent_id, retry_of, priority, max_attempts, kind, queue, tenant,
             correlation_id, created_by, payload, subject, options)
        select a.id, v_now,
               coalesce((v ->> 'run_at')::timestamptz, v_now + (v ->> 'delay_ms')::bigint * interval '1 millisecond'),
               (v ->> 'parent_id')::uuid, (v ->> 'retry_of')::uuid, coalesce((v ->> 'priority')::int, 100),
               coalesce((v ->> 'max_attempts')::int, 5), v ->> 'kind', coalesce(v ->> 'queue', 'default'),
               v ->> 'tenant', v ->> 'correlation_id', v ->> 'created_by', coalesce(v -> 'payload', '{}'),
               nullif(v -> 'subject', 'null'),
               -- A job keeps its key, which is free again one day, to be shown.
               case when v #>> '{unique,key}' is null then nullif(v -> 'options', 'null')
                    else coalesce(nullif(v -> 'options', 'null'), '{}')
                         || jsonb_build_object('unique', v #>> '{unique,key}') end
        from asked a
        on conflict (id) do nothing
        returning id
    )
    select coalesce(array_agg(m.id), '{}') into v_made from made m;

    -- Keys are taken in sorted order, so that two callers cannot wait for each other.
    for v_key in
        select (v ->> 'id')::uuid as id, coalesce(v ->> 'tenant', '') as tenant, u ->> 'key' as key,
               case when (u ->> 'across_kinds')::boolean then '' else v ->> 'kind' end as kind,
               u ->> 'scope' as scope, u ->> 'on_conflict' as action,
               v_now + (u ->> 'window_ms')::bigint * interval '1 millisecond' as expires_at
        from jsonb_array_elements(p_jobs) with ordinality e (v, ord),
             lateral (select nullif(v -> 'unique', 'null') as u) k
        where u is not null and (v ->> 'id')::uuid = any (v_made)
        order by 2, 4, 3, ord
    loop
        delete from {schema}.unique_key k
        where k.tenant = v_key.tenant and k.kind = v_key.kind and k.key = v_key.key
          and k.scope = 'window' and k.expires_at <= v_now;
        loop
            insert into {schema}.unique_key (tenant, kind, key, job_id, expires_at, scope)
            values (v_key.tenant, v_key.kind, v_key.key, v_key.id, v_key.expires_at, v_key.scope)
            on conflict do nothing;
            exit when found;
            -- Looked at without a lock: ours would be held until the caller commits, and others need the row.
            select k.job_id into v_other from {schema}.unique_key k
            where k.tenant = v_key.tenant and k.kind = v_key.kind and k.key = v_key.key;
            continue when not found;  -- freed between the two statements: try again
            exit when v_other = v_key.id;
            -- A key that was locked when its holder moved on was left behind: it is free.
            delete from {schema}.unique_key k
            where k.tenant = v_key.tenant and k.kind = v_key.kind and k.key = v_key.key and k.job_id = v_other
              and {schema}.is_left_behind(k.job_id, k.scope);
            continue when found;
            if v_key.action = 'replace' and v_other <> all (v_made)
               and {schema}.cancel_waiting(v_other, 'replaced by ' || v_key.id, v_now) then
                delete from {schema}.unique_key k
                where k.tenant = v_key.tenant and k.kind = v_key.kind and k.key = v_key.key;
                v_beaten := v_beaten || v_key.id;
                v_holder := v_holder || v_key.id;
                v_words := v_words || 'replaced'::text;
                continue;
            end if;
            if v_key.action = 'replace' and v_other <> all (v_made) then
                -- Found in no place means that it moved while we looked, as when it was promoted: look again.
                v_looks := v_looks + 1;
                continue when v_looks < 100
                    and not exists (select 1 from {schema}.lease l where l.job_id = v_other)
                    and not exists (select 1 from {schema}.finished f where f.job_id = v_other);
            end if;
            -- Another one may have replaced the holder while we waited for it.
            continue when not exists (
                select 1 from {schema}.unique_key k
                where k.tenant = v_key.tenant and k.kind = v_key.kind and k.key = v_key.key and k.job_id = v_other);
            v_beaten := v_beaten || v_key.id;
            v_holder := v_holder || v_other;
            v_words := v_words || case v_key.action when 'reject' then 'rejected' else 'existing' end;
            v_made := array_remove(v_made, v_key.id);
            delete from {schema}.job where id = v_key.id;
            exit;
        end loop;
    end loop;

    -- Held until commit, so that retention cannot take a needed job away between our look and our commit.
    perform 1 from {schema}.job j
    where j.id in (select jsonb_array_elements_text(nullif(v -> 'depends_on', 'null'))::uuid
                   from jsonb_array_elements(p_jobs) e (v))
    order by j.id
    for key share;
    select n.id into v_lost
    from jsonb_array_elements(p_jobs) j (v),
         lateral (select jsonb_array_elements_text(nullif(v -> 'depends_on', 'null'))::uuid as id) n
    where (v ->> 'id')::uuid = any (v_made)
      -- One of another tenant is told from none in no way.
      and not exists (select 1 from {schema}.job x where x.id = n.id and x.tenant is not distinct from v ->> 'tenant')
    limit 1;
    if found then
        raise exception 'no job has the id %, which this job is to depend on', v_lost
            using errcode = 'foreign_key_violation', detail = v_lost::text;
    end if;
    insert into {schema}.dependency (job_id, needs_id)
    select (v ->> 'id')::uuid, n.id
    from jsonb_array_elements(p_jobs) j (v),
         lateral (select jsonb_array_elements_text(nullif(v -> 'depends_on', 'null'))::uuid as id) n
    where (v ->> 'id')::uuid = any (v_made)
    on conflict do nothing;

    with made as (
        select j.*, m.ord,
               case when exists (
                        select 1 from {schema}.dependency d
                        where d.job_id = j.id and not exists (
                            select 1 from {schema}.finished f
                            where f.job_id = d.needs_id and f.state in ('completed', 'completed_with_errors')))
                    then 'dependency'
                    when j.kind = any (v_paused) then 'paused' end as gate
        from (
            select (v ->> 'id')::uuid as id, min(o) as ord
            from jsonb_array_elements(p_jobs) with ordinality e (v, o) group by 1
        ) m
        join {schema}.job j on j.id = m.id
        where m.id = any (v_made)
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, priority, attempt, crashes, queue, kind, tenant)
        select nextval('{schema}.ready_seq'), m.id, m.priority, 0, 0, m.queue, m.kind, m.tenant
        from (select * from made order by ord) m
        where m.gate is null and (m.run_at is null or m.run_at <= v_now)
    ), to_scheduled as (
        insert into {schema}.scheduled (run_at, job_id, priority, attempt, crashes, queue, kind, tenant)
        select m.run_at, m.id, m.priority, 0, 0, m.queue, m.kind, m.tenant
        from made m where m.gate is null and m.run_at > v_now
    )
    insert into {schema}.blocked (job_id, since, run_at, priority, attempt, crashes, gate, key, queue, kind, tenant)
    select m.id, v_now, m.run_at, m.priority, 0, 0, m.gate,
           case m.gate when 'paused' then m.kind else m.id::text end, m.queue, m.kind, m.tenant
    from made m where m.gate is not null;

    if p_notify then
        perform pg_notify('{schema}', coalesce((
            select jsonb_agg(distinct jsonb_build_array(
                       coalesce(v ->> 'queue', 'default'), coalesce((v ->> 'priority')::int, 100)))::text
            from jsonb_array_elements(p_jobs) j (v)
            having count(distinct v ->> 'queue') < 50), '[]'));
    end if;

    return query
    select a.ord, coalesce(b.holder, a.id),
           coalesce(b.word, case when a.id = any (v_made) and a.nth = 1 then 'made' else 'existing' end)
    from (
        select o as ord, (v ->> 'id')::uuid as id, row_number() over (partition by v ->> 'id' order by o) as nth
        from jsonb_array_elements(p_jobs) with ordinality e (v, o)
    ) a
    left join unnest(v_beaten, v_holder, v_words) b (id, holder, word) on b.id = a.id and a.nth = 1
    order by a.ord;
end $$;

-- A payload may have a unique key in it, by its kind's rules: an enqueue that was rejected for that must not go unnoticed.
create function {schema}.check_stored(p_kind text, p_holder uuid, p_insertion text) returns void
language plpgsql immutable as $$
begin
    if p_insertion = 'rejected' then
        raise exception 'kind %: job % holds the unique key', p_kind, p_holder
            using errcode = 'unique_violation', hint = 'the payload is to have another key, or nothing is to be done';
    end if;
end $$;

-- For any language, in its own transaction: dutiful.enqueue('send_email', '{"to": "ada@example.org"}').
create function {schema}.enqueue(
    p_kind text, p_payload jsonb default '{}', p_queue text default 'default', p_priority int default 100,
    p_run_at timestamptz default null, p_max_attempts int default 5, p_tenant text default null,
    p_correlation_id text default null, p_subject jsonb default null, p_id uuid default null,
    p_notify boolean default true
) returns uuid
language plpgsql volatile as $$
declare
    v_id     uuid := coalesce(p_id, {schema}.new_id());
    v_stored record;
begin
    if get_byte(uuid_send(v_id), 6) >> 4 <> 7 then
        raise exception 'p_id must be a version 7 UUID, such as {schema}.new_id() makes: retention goes by its time';
    end if;
    select i.job_id, i.insertion into v_stored
    from {schema}.insert_jobs(jsonb_build_array(jsonb_build_object(
        'id', v_id, 'kind', p_kind, 'payload', p_payload, 'queue', p_queue, 'priority', p_priority, 'run_at', p_run_at,
        'max_attempts', p_max_attempts, 'tenant', p_tenant, 'correlation_id', p_correlation_id,
        'subject', p_subject, 'created_by', session_user)), null, p_notify) i;
    perform {schema}.check_stored(p_kind, v_stored.job_id, v_stored.insertion);
    return v_stored.job_id;
end $$;

-- Every line that has a job of p_kinds, and its first one's seq: one walk over the heads of the lines.
create function {schema}.peek(p_kinds text[])
returns table (queue text, priority int, seq bigint)
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    with recursive head as (
        (select r.queue, r.priority, r.seq from {schema}.ready r order by r.queue, r.priority, r.seq limit 1)
        union all
        select n.queue, n.priority, n.seq
        from head h, lateral (
            select r.queue, r.priority, r.seq from {schema}.ready r
            where (r.queue, r.priority) > (h.queue, h.priority)
            order by r.queue, r.priority, r.seq limit 1
        ) n
    )
    select h.queue::text, h.priority, f.seq
    from head h, lateral (
        select r.seq from {schema}.ready r
        where r.queue = h.queue and r.priority = h.priority and r.seq >= h.seq and r.kind = any (p_kinds)
        order by r.seq limit 1
    ) f;
end $$;

-- Lock up to p_limit jobs of these tenants, in order of the lines. What several tenants have too many of stays locked
-- until the end of the claim, and nobody waits for it.
create function {schema}.lock_of_tenants(
    p_tenants text[], p_queues text[], p_priorities int[], p_floors bigint[], p_kinds text[], p_limit int
) returns tid[]
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
    return array(
        select r.tid
        from unnest(p_queues, p_priorities, p_floors) with ordinality as l (queue, priority, floor, ord)
        cross join lateral (
            select h.tid
            from unnest(p_tenants) t (tenant)
            cross join lateral (
                select x.ctid as tid, x.seq from {schema}.ready x
                where x.tenant = t.tenant and x.queue = l.queue and x.priority = l.priority and x.seq > l.floor
                  and x.crashes = 0 and x.kind = any (p_kinds)
                order by x.seq
                limit p_limit
                for update skip locked
            ) h
            order by h.seq
            limit p_limit
        ) r
        limit p_limit);
end $$;

-- Take jobs from lines, in their order, each beyond its floor: dead index entries below it are never scanned.
-- p_tenants: only jobs of these; null: anybody's, even nobody's.
create function {schema}.claim(
    p_worker uuid, p_lane text, p_queues text[], p_priorities int[], p_floors bigint[], p_kinds text[],
    p_limit int, p_suspects int, p_lease interval, p_tenants text[], p_now timestamptz
) returns table (
    job_id uuid, claim_id bigint, attempt int, crashes int, seq bigint, kind text, queue text, payload jsonb,
    priority int, max_attempts int, tenant text, correlation_id text, parent_id uuid, subject jsonb, options jsonb,
    waited double precision
)
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_kinds  text[] := p_kinds;
    v_queues text[] := p_queues;
    v_tids   tid[];
    v_more   tid[];
begin
    if exists (select 1 from {schema}.pause) then
        if exists (select 1 from {schema}.pause where scope = 'lane' and name in (p_lane, '*')) then
            return;
        end if;
        v_kinds := array(select k from unnest(p_kinds) k
                         where not exists (select 1 from {schema}.pause where scope in ('kind', 'breaker') and name = k));
        v_queues := array(select case when exists (select 1 from {schema}.pause where scope = 'queue' and name = q)
                                      then null else q end
                          from unnest(p_queues) with ordinality u (q, o) order by o);
    end if;

    if p_tenants is not null then
        v_tids := {schema}.lock_of_tenants(p_tenants, v_queues, p_priorities, p_floors, v_kinds, p_limit);
    elsif p_limit > 0 then
        v_tids := array(
            select r.tid
            from unnest(v_queues, p_priorities, p_floors) with ordinality as l (queue, priority, floor, ord)
            cross join lateral (
                select x.ctid as tid from {schema}.ready x
                where x.queue = l.queue and x.priority = l.priority and x.seq > l.floor
                  and x.crashes = 0 and x.kind = any (v_kinds)
                order by x.seq
                limit p_limit
                for update skip locked
            ) r
            limit p_limit);
    end if;
    if p_suspects > 0 and exists (select 1 from {schema}.ready x where x.crashes > 0) then
        -- A job that was there when a worker died is taken one at a time, so that it condemns no neighbour.
        v_more := array(
            select r.tid
            from unnest(v_queues, p_priorities) with ordinality as l (queue, priority, ord)
            cross join lateral (
                select x.ctid as tid from {schema}.ready x
                where x.queue = l.queue and x.priority = l.priority and x.crashes > 0 and x.kind = any (v_kinds)
                  and (p_tenants is null or x.tenant = any (p_tenants))
                order by x.seq
                limit p_suspects
                for update skip locked
            ) r
            limit p_suspects);
        v_tids := v_tids || v_more;
    end if;
    if v_tids is null or cardinality(v_tids) = 0 then
        return;
    end if;

    return query
    with taken as (
        delete from {schema}.ready x where x.ctid = any (v_tids)
        returning x.job_id, x.seq, x.attempt, x.crashes
    ), leased as (
        insert into {schema}.lease (job_id, claim_id, worker_id, seq, claimed_at, expires_at, attempt, crashes)
        select t.job_id, nextval('{schema}.claim_seq'), p_worker, t.seq, v_now, v_now + p_lease, t.attempt + 1, t.crashes
        from taken t
        returning job_id, claim_id, attempt, crashes, seq
    ), freed as (
        -- Never waited for: somebody's open transaction may hold one. What is skipped counts as free from now on.
        delete from {schema}.unique_key u
        where u.ctid = any (array(
            select k.ctid from {schema}.unique_key k
            where k.scope = 'queued' and k.job_id = any (array(select t.job_id from taken t))
            for update skip locked))
    )
    select l.job_id, l.claim_id, l.attempt, l.crashes, l.seq, j.kind, j.queue, j.payload,
           j.priority, j.max_attempts, j.tenant, j.correlation_id, j.parent_id, j.subject, j.options,
           greatest(extract(epoch from v_now - greatest(j.created_at, j.run_at))::float8, 0)
    from leased l
    -- With its limit this is a look-up by id, whatever the planner believes of the table.
    cross join lateral (select x.* from {schema}.job x where x.id = l.job_id limit 1) j;
end $$;

-- The common end: done. Returns those that were not applied: 'locked', or null where the claim was not held.
-- p_webhooks: which jobs name a webhook of their own; null: none does. p_skip_locked: wait for nobody's transaction.
create function {schema}.complete(
    p_jobs uuid[], p_claims bigint[], p_results text[], p_webhooks boolean[], p_skip_locked boolean, p_now timestamptz
) returns table (job_id uuid, claim_id bigint, verdict text)
language plpgsql volatile
set lock_timeout = '2s' set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_gone   uuid[];
    v_claims bigint[];
    v_free   bigint[];
begin
    if p_skip_locked then
        v_free := array(
            select l.claim_id from {schema}.lease l
            where l.job_id = any (p_jobs) and l.claim_id = any (p_claims)
            for update skip locked);
    end if;
    with gone as (
        delete from {schema}.lease l
        using unnest(p_jobs, p_claims, p_results) as a (job_id, claim_id, result)
        where l.job_id = a.job_id and l.claim_id = a.claim_id
          and (not p_skip_locked or l.claim_id = any (v_free))
        returning l.job_id, l.claim_id, l.worker_id, l.claimed_at, l.attempt, l.crashes, a.result
    ), ended as (
        insert into {schema}.finished
            (job_id, claim_id, worker_id, claimed_at, finished_at, attempt, crashes, state, result)
        select g.job_id, g.claim_id, g.worker_id, g.claimed_at, v_now, g.attempt, g.crashes, 'completed', g.result::jsonb
        from gone g
    )
    select array_agg(g.job_id), array_agg(g.claim_id) into v_gone, v_claims from gone g;
    perform {schema}.free_active(v_gone);
    if exists (select 1 from {schema}.webhook where enabled and states <> '{}') then
        perform {schema}.announce(v_gone, v_now);
    elsif p_webhooks is not null then
        perform {schema}.announce(
            array(select a.job_id from unnest(p_jobs, p_webhooks) a (job_id, own) where a.own and a.job_id = any (v_gone)),
            v_now);
    end if;
    if coalesce(cardinality(v_claims), 0) < cardinality(p_jobs) then
        return query
        select a.job_id, a.claim_id,
               (select 'locked' from {schema}.lease l
                where p_skip_locked and l.job_id = a.job_id and l.claim_id = a.claim_id)
        from unnest(p_jobs, p_claims) a (job_id, claim_id)
        where a.claim_id <> all (coalesce(v_claims, '{}'));
    end if;
end $$;

-- The same for one job in a transaction of the user's own; with errors, it is completed in spite of them. Its last phase
-- ends with it, for nobody can say so earlier or later.
create function {schema}.complete_one(p_job uuid, p_claim bigint, p_result text, p_errors text) returns setof uuid
language plpgsql volatile
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_lease {schema}.lease;
    v_lost  boolean;
begin
    if p_errors is null then
        return query
        select c.job_id from {schema}.complete(array[p_job], array[p_claim], array[p_result], array[true], false, null) c;
    else
        select l.* into v_lease from {schema}.lease l where l.job_id = p_job and l.claim_id = p_claim;
        return query
        select s.job_id
        from {schema}.settle(
            array[p_job], array[p_claim], array['completed_with_errors'], array['partial'], array[v_lease.attempt],
            array[v_lease.crashes], array[null::interval], array[p_result], array[p_errors], array[false],
            array[null::text], false, false, null) s;
    end if;
    v_lost := found;
    if not v_lost then
        update {schema}.phase
        set state = 'completed', claim_id = p_claim, ended_at = clock_timestamp(), result = p_result::jsonb
        where job_id = p_job and state = 'running';
        if found then
            update {schema}.progress
            set percent = 100, overall = 100, updated_at = clock_timestamp()
            where job_id = p_job;
        end if;
    end if;
end $$;

-- Of jobs that a breaker has barred again, only the last time is kept, however long it is open.
create function {schema}.forget_barred(p_jobs uuid[]) returns void
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
    delete from {schema}.attempt t
    using unnest(p_jobs) b (job_id),
          lateral (select a.error ->> 'breaker' as breaker from {schema}.attempt a
                   where a.job_id = b.job_id order by a.id desc limit 1) this,
          lateral (select a.id, a.outcome, a.error ->> 'breaker' as breaker from {schema}.attempt a
                   where a.job_id = b.job_id order by a.id desc offset 1 limit 1) before
    where t.id = before.id and before.outcome = 'snoozed' and before.breaker = this.breaker;
end $$;

-- Write decided changes. Returns those not applied: 'cancel_requested', 'locked', or null where the claim was not held.
create function {schema}.settle(
    p_jobs uuid[], p_claims bigint[], p_to text[], p_outcomes text[], p_attempts int[], p_crashes int[],
    p_delays interval[], p_results text[], p_errors text[], p_keep_seq boolean[], p_phase_to text[],
    p_lapsed_only boolean, p_skip_locked boolean, p_now timestamptz
) returns table (job_id uuid, claim_id bigint, verdict text)
language plpgsql volatile
set lock_timeout = '2s' set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_paused text[] := array(select name from {schema}.pause where scope in ('kind', 'breaker', 'probing'));
    v_gone   bigint[];
    v_final  uuid[];
    v_dead   uuid[];
    v_free   bigint[];
    v_phased uuid[];
    v_phases text[];
    v_errors jsonb[];
    v_halted uuid[];
    v_tell   uuid[];
    v_barred uuid[];
begin
    if p_lapsed_only or p_skip_locked then
        -- A lease that somebody holds locked is being renewed or settled: not lapsed, and not worth a wait.
        v_free := array(
            select l.claim_id from {schema}.lease l
            where l.job_id = any (p_jobs) and l.claim_id = any (p_claims)
              and (not p_lapsed_only or l.expires_at <= v_now)
            for update skip locked);
    end if;
    with asked as (
        select * from unnest(p_jobs, p_claims, p_to, p_outcomes, p_attempts, p_crashes, p_delays, p_results, p_errors,
                             p_keep_seq, p_phase_to)
          as a (job_id, claim_id, target, outcome, attempt, crashes, delay, result, errors, keep_seq, phase_to)
    ), gone as (
        -- The expiry and the cancel are tested in the DELETE itself: it waits for a renewal and then looks again.
        delete from {schema}.lease l
        using asked a
        where l.job_id = a.job_id and l.claim_id = a.claim_id
          and (not p_lapsed_only or l.expires_at <= v_now)
          and (v_free is null or l.claim_id = any (v_free))
          and (l.cancel_requested_at is null or a.target not in ('ready', 'scheduled', 'blocked'))
        returning l.job_id, l.claim_id, l.worker_id, l.claimed_at, l.attempt as this_attempt, l.seq,
                  a.target, a.outcome, a.attempt, a.crashes, a.delay, a.result, a.keep_seq, a.phase_to,
                  -- Whoever asked for the end has said why.
                  case when a.target = 'cancelled' and l.cancel_reason is not null
                       then jsonb_build_array(jsonb_build_object('type', 'Cancelled', 'message', l.cancel_reason))
                       else a.errors::jsonb end as errors
    ), moved as (
        select g.*, j.queue, j.kind, j.priority, j.tenant,
               j.options ? 'phases' as phased, j.options ? 'webhook' as telling,
               case when g.target in ('ready', 'scheduled') and j.kind = any (v_paused) then 'blocked'
                    else g.target end as place
        from gone g join {schema}.job j on j.id = g.job_id
    ), ended as (
        insert into {schema}.finished
            (job_id, claim_id, worker_id, claimed_at, finished_at, attempt, crashes, state, result, errors)
        select m.job_id, m.claim_id, m.worker_id, m.claimed_at, v_now, m.attempt, m.crashes, m.place,
               m.result::jsonb, m.errors
        from moved m where m.place not in ('ready', 'scheduled', 'blocked')
    ), tried as (
        insert into {schema}.attempt
            (job_id, claim_id, worker_id, claimed_at, ended_at, next_at, attempt, outcome, error)
        select m.job_id, m.claim_id, m.worker_id, m.claimed_at, v_now, v_now + m.delay, m.this_attempt, m.outcome,
               m.errors -> 0
        from moved m where m.place in ('ready', 'scheduled', 'blocked') and m.outcome <> 'released'
    ), to_ready as (
        insert into {schema}.ready (seq, job_id, priority, attempt, crashes, queue, kind, tenant)
        select case when m.keep_seq then m.seq else nextval('{schema}.ready_seq') end,
               m.job_id, m.priority, m.attempt, m.crashes, m.queue, m.kind, m.tenant
        from moved m where m.place = 'ready'
    ), to_scheduled as (
        insert into {schema}.scheduled (run_at, job_id, priority, attempt, crashes, queue, kind, tenant)
        select v_now + m.delay, m.job_id, m.priority, m.attempt, m.crashes, m.queue, m.kind, m.tenant
        from moved m where m.place = 'scheduled'
    ), to_blocked as (
        insert into {schema}.blocked (job_id, since, run_at, priority, attempt, crashes, gate, key, queue, kind, tenant)
        select m.job_id, v_now, v_now + m.delay, m.priority, m.attempt, m.crashes, 'paused', m.kind, m.queue, m.kind,
               m.tenant
        from moved m where m.place = 'blocked'
    )
    select array_agg(m.claim_id), array_agg(m.job_id) filter (where m.place not in ('ready', 'scheduled', 'blocked')),
           array_agg(m.job_id) filter (where m.place = 'failed'),
           array_agg(m.job_id) filter (where m.phase_to is not null),
           array_agg(m.phase_to) filter (where m.phase_to is not null),
           array_agg(m.errors -> 0) filter (where m.phase_to is not null),
           array_agg(m.job_id) filter (where m.phase_to = 'cancelled' and m.phased),
           array_agg(m.job_id) filter (where m.place not in ('ready', 'scheduled', 'blocked') and m.telling),
           array_agg(m.job_id) filter (where m.outcome = 'snoozed' and m.errors -> 0 ? 'breaker')
    into v_gone, v_final, v_dead, v_phased, v_phases, v_errors, v_halted, v_tell, v_barred from moved m;

    if v_barred is not null then
        perform {schema}.forget_barred(v_barred);
    end if;
    if v_dead is not null then
        perform {schema}.bury(v_dead, v_now);
    end if;
    perform {schema}.free_active(v_final);
    if v_phased is not null then
        perform {schema}.end_phases(v_phased, v_phases, v_errors, v_now);
    end if;
    if v_halted is not null then
        perform {schema}.cancel_phases(v_halted, v_now);
    end if;
    if v_final is not null and exists (select 1 from {schema}.webhook where enabled and states <> '{}') then
        perform {schema}.announce(v_final, v_now);
    elsif v_tell is not null then
        perform {schema}.announce(v_tell, v_now);
    end if;
    return query
    select a.job_id, a.claim_id,
           (select case when p_skip_locked and l.claim_id <> all (v_free) then 'locked'
                        when l.cancel_requested_at is not null then 'cancel_requested' end
            from {schema}.lease l
            where l.job_id = a.job_id and l.claim_id = a.claim_id
              and (not p_lapsed_only or l.expires_at <= v_now))
    from unnest(p_jobs, p_claims) a (job_id, claim_id)
    where a.claim_id <> all (coalesce(v_gone, '{}'));
end $$;

-- Why were these not applied? 'repeated' if they had been before, else 'lost', which leaves a record.
create function {schema}.refuse(p_jobs uuid[], p_claims bigint[], p_outcomes text[], p_now timestamptz)
returns table (job_id uuid, claim_id bigint, verdict text)
language plpgsql volatile
set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query
    with asked as (
        select a.job_id, a.claim_id, a.outcome,
               exists (select 1 from {schema}.finished f
                       where f.job_id = a.job_id and f.claim_id = a.claim_id
                         -- A success is no repeat of what somebody else has ended otherwise.
                         and not (a.outcome in ('done', 'partial') and f.state in ('failed', 'cancelled')))
               or exists (select 1 from {schema}.attempt t
                          where t.job_id = a.job_id and t.claim_id = a.claim_id and t.outcome = a.outcome)
               -- Giving back leaves no row; a claim that was taken from us has left one.
               or (a.outcome = 'released' and not exists (
                       select 1 from {schema}.attempt t where t.job_id = a.job_id and t.claim_id = a.claim_id))
                  as repeated
        from unnest(p_jobs, p_claims, p_outcomes) a (job_id, claim_id, outcome)
    ), noted as (
        insert into {schema}.attempt (job_id, claim_id, ended_at, attempt, outcome, error)
        select a.job_id, a.claim_id, v_now,
               coalesce((select max(t.attempt) from {schema}.attempt t
                         where t.job_id = a.job_id and t.claim_id = a.claim_id), 0),
               'refused',
               jsonb_build_object('type', 'ClaimLost', 'message', 'came too late with: ' || a.outcome)
        from asked a
        where not a.repeated
          and exists (select 1 from {schema}.job j where j.id = a.job_id)
          and not exists (select 1 from {schema}.attempt t
                          where t.job_id = a.job_id and t.claim_id = a.claim_id and t.outcome = 'refused')
    )
    select a.job_id, a.claim_id, case when a.repeated then 'repeated' else 'lost' end from asked a;
end $$;

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
