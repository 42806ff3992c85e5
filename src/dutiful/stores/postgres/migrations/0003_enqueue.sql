-- How jobs come in.
--
-- The planner believes that queue tables are empty, and a plan cached while that was true would scan for ever after;
-- so the functions of the work path, here and in the files that follow, allow themselves walks along an index only,
-- which also holds behind a transaction pooler. Those that only look rows up do without plain index scans too: of a
-- table that is thought to be empty, the planner would walk the whole index and filter, for each row anew. A bitmap is
-- made from a condition, so it cannot.
-- Every p_now is for tests: null means the database's clock.

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
        insert into {schema}.blocked
            (job_id, since, run_at, seq, priority, attempt, crashes, gate, key, queue, kind, tenant)
        select m.id, v_now, m.run_at,
               case when m.run_at > v_now then null else nextval('{schema}.ready_seq') end,
               m.priority, 0, 0, 'paused', m.kind, m.queue, m.kind, m.tenant
        from made m
        where m.kind = any (v_paused)
    )
    select array_agg(m.id) into v_made from made m;
    return query
    select u.id from (select distinct unnest(p_ids) as id) u where u.id <> all (coalesce(v_made, '{}'));
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
    insert into {schema}.blocked
        (job_id, since, run_at, seq, priority, attempt, crashes, gate, key, queue, kind, tenant)
    select m.id, v_now, m.run_at,
           case when m.gate = 'paused' and (m.run_at is null or m.run_at <= v_now) then nextval('{schema}.ready_seq') end,
           m.priority, 0, 0, m.gate, case m.gate when 'paused' then m.kind else m.id::text end, m.queue, m.kind, m.tenant
    from (select * from made order by ord) m where m.gate is not null;

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

-- The options of a job that belongs to this trace, as W3C spells it. What is not spelt so is as good as none: a trace is
-- worth less than the job.
create function {schema}.traced(p_traceparent text) returns jsonb
language sql volatile as $$
    select jsonb_build_object('trace', jsonb_build_object(
        'traceparent', p_traceparent, 'at', round(extract(epoch from clock_timestamp()), 3)))
    where p_traceparent ~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'
$$;

-- For any language, in its own transaction: dutiful.enqueue('send_email', '{"to": "ada@example.org"}').
create function {schema}.enqueue(
    p_kind text, p_payload jsonb default '{}', p_queue text default 'default', p_priority int default 100,
    p_run_at timestamptz default null, p_max_attempts int default 5, p_tenant text default null,
    p_correlation_id text default null, p_subject jsonb default null, p_id uuid default null,
    p_notify boolean default true, p_traceparent text default null
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
        'subject', p_subject, 'created_by', session_user, 'options', {schema}.traced(p_traceparent))),
        null, p_notify) i;
    perform {schema}.check_stored(p_kind, v_stored.job_id, v_stored.insertion);
    return v_stored.job_id;
end $$;
