-- Webhooks: writes posts to the outbox, takes and settles them.

-- Writes the posts of jobs that become final in this transaction; one that names its own webhook is posted to no other.
-- Options that were written by SQL may be malformed: such a post fails at once, because it must not keep a job alive.
create or replace function {schema}.write_webhook_posts(p_jobs uuid[], p_now timestamptz) returns void
language plpgsql volatile set timezone = 'UTC' {look_up_ids} as $$
begin
    insert into {schema}.webhook_post
        (id, job_id, created_at, next_at, ended_at, updated_at, attempts, webhook, url, event, state, error, tenant,
         data)
    select {schema}.new_id(p_now), j.id, p_now, case when w.valid then p_now end, case when not w.valid then p_now end,
           p_now, 0, w.name, w.url, 'job.' || f.state, case when w.valid then 'pending' else 'failed' end,
           case when not w.valid then
               'the job''s option webhook must be {"url": "https://…", "states": ["failed"] or null}' end,
           j.tenant,
           jsonb_build_object(
               'id', j.id, 'kind', j.kind, 'queue', j.queue, 'state', f.state, 'attempt', f.attempt,
               'result', f.result,
               -- Tracebacks are only for readers of the job itself.
               'errors', coalesce((select jsonb_agg(e.value - 'traceback' order by e.ordinality)
                                   from jsonb_array_elements(f.errors) with ordinality e), '[]'),
               'tenant', j.tenant, 'correlation_id', coalesce(j.correlation_id, j.id::text), 'parent_id', j.parent_id,
               'subject', j.subject, 'created_at', j.created_at, 'started_at', f.claimed_at,
               'finished_at', f.finished_at)
    from {schema}.finished f
    join {schema}.job j on j.id = any (array[f.job_id])
    cross join lateral (
        select null::text as name, coalesce(o.url #>> '{}', '') as url,
               o.of = 'object' and o.url is not null
                   and coalesce(jsonb_typeof(o.states), 'null') in ('array', 'null') as valid
        from (select jsonb_typeof(j.options -> 'webhook') as of, j.options #> '{webhook,states}' as states,
                     case 'string' when jsonb_typeof(j.options -> 'webhook') then j.options -> 'webhook'
                                   when jsonb_typeof(j.options #> '{webhook,url}') then j.options #> '{webhook,url}'
                     end as url) o
        where o.of <> 'null' and (coalesce(jsonb_typeof(o.states), 'null') <> 'array' or o.states ? f.state)
        union all
        select h.name, h.url, true from {schema}.webhook h
        where h.enabled and coalesce(jsonb_typeof(j.options -> 'webhook'), 'null') = 'null'
          and (h.kinds is null or j.kind = any (h.kinds)) and f.state = any (h.states)
    ) w
    where f.job_id = any (p_jobs);
end $$;

-- Takes due posts, the longest due first. p_hold: how long they are not taken again; p_avoid: prefixes of URLs that are
-- passed over; p_names: of which webhooks, beside jobs' own URLs, null for all; p_retries: how many at most that were
-- tried before, null for any number.
create or replace function {schema}.take_posts(
    p_limit int, p_hold interval, p_avoid text[], p_names text[], p_retries int, p_now timestamptz
) returns setof {schema}.webhook_post
language plpgsql volatile {walk_in_order} as $$ #variable_conflict use_column
declare v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    return query
    with due as materialized (
        select d.tid, d.id, d.due_at
        from (values (false, p_limit), (true, least(p_limit, p_retries))) r (again, room)
        cross join lateral (
            select p.ctid as tid, p.id, p.next_at as due_at from {schema}.webhook_post p
            where p.state = 'pending' and p.next_at <= v_now and (p.attempts > 0) = r.again
              and (p_names is null or p.webhook is null or p.webhook = any (p_names))
              and not exists (select 1 from unnest(p_avoid) a where starts_with(p.url || '/', a))
            order by p.next_at
            limit r.room
            for update skip locked
        ) d
        order by d.due_at, d.id
        limit p_limit
    ), taken as (
        update {schema}.webhook_post p set attempts = p.attempts + 1, next_at = v_now + p_hold
        from due d where p.ctid = d.tid
        returning p as post, d.due_at
    )
    select (t.post).* from taken t order by t.due_at, (t.post).id;
end $$;

-- Writes the result of one attempt to post. False: the post is gone, or was taken again since.
create or replace function {schema}.settle_post(
    p_id uuid, p_attempts int, p_state text, p_delay interval, p_status int, p_error text, p_now timestamptz
) returns boolean
language plpgsql volatile {use_indexes} as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_tid tid;
begin
    -- Found by its id first; by its state, all pending posts might be read.
    select p.ctid into v_tid from {schema}.webhook_post p where p.id = p_id for update;
    update {schema}.webhook_post p
    set state = p_state, status = p_status, error = p_error, updated_at = v_now,
        next_at = case when p_state = 'pending' then v_now + coalesce(p_delay, '0') end,
        ended_at = case when p_state <> 'pending' then v_now end
    where p.ctid = v_tid and p.attempts = p_attempts and p.state = 'pending';
    -- Or this call is a repeat, because the reply to the first was lost.
    return found or exists (
        select 1 from {schema}.webhook_post p
        where p.ctid = v_tid and p.attempts = p_attempts and p.state = p_state
          and row(p.status, p.error) is not distinct from row(p_status, p_error));
end $$;

-- Disables a webhook, with p_url only if that is its URL, and fails its pending posts. False: it was not enabled.
create or replace function {schema}.disable_webhook(p_name text, p_reason text, p_url text, p_now timestamptz)
returns boolean
language plpgsql volatile {use_indexes} as $$
declare v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    update {schema}.webhook w set enabled = false, disabled_at = v_now, reason = p_reason
    where w.name = p_name and w.enabled and (p_url is null or w.url = p_url);
    if not found then return false; end if;
    update {schema}.webhook_post p
    set state = 'failed', next_at = null, ended_at = v_now, updated_at = v_now, error = p_reason
    where p.webhook = p_name and p.state = 'pending';
    return true;
end $$;

-- Deletes a webhook and fails its pending posts. False: there is none.
create or replace function {schema}.remove_webhook(p_name text, p_now timestamptz) returns boolean
language plpgsql volatile {use_indexes} as $$
begin
    perform {schema}.disable_webhook(p_name, 'the webhook was removed', null, p_now);
    delete from {schema}.webhook w where w.name = p_name;
    return found;
end $$;
