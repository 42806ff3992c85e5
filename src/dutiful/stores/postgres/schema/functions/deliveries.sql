-- Deliveries of ready jobs to a broker.

-- Records deliveries that the broker has accepted. The same one again was sent because the broker had lost it. Numbers
-- follow each other: a client that gave the largest one would leave none for the next delivery.
--
-- A transaction of any client may hold one of these rows for as long as it likes. So the others are recorded without it,
-- and it is sent again, which changes nothing.
create or replace function {schema}.record_deliveries(
    p_jobs uuid[], p_ids text[], p_numbers int[], p_attempts int[], p_now timestamptz
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' {walk_indexes} as $$
declare v record;
begin
    if p_now is not null then perform {schema}.check_own_time(); end if;
    if cardinality(p_jobs) = 1 then perform set_config('lock_timeout', '2ms', true); end if;
    insert into {schema}.delivery as d (job_id, backend_job_id, number, attempt, delivered_at)
    select a.job_id, a.id, a.number, a.attempt, coalesce(p_now, clock_timestamp())
    from unnest(p_jobs, p_ids, p_numbers, p_attempts) a (job_id, id, number, attempt)
    cross join lateral (select 1 from {schema}.job j where j.id = a.job_id limit 1) j
    left join lateral (select y.number from {schema}.delivery y where y.job_id = a.job_id limit 1) last on true
    where a.number between 1 and coalesce(last.number, 0) + 1
    order by a.job_id
    on conflict (job_id) do update
    set backend_job_id = excluded.backend_job_id, number = excluded.number, attempt = excluded.attempt,
        delivered_at = excluded.delivered_at, taken = d.taken and d.number = excluded.number
    where excluded.number >= d.number;
exception when lock_not_available then
    if cardinality(p_jobs) > 1 then
        for v in select a.* from unnest(p_jobs, p_ids, p_numbers, p_attempts) a (job_id, id, number, attempt) loop
            perform {schema}.record_deliveries(array[v.job_id], array[v.id], array[v.number], array[v.attempt], p_now);
        end loop;
    end if;
end $$;

revoke execute on function {schema}.record_deliveries from public;

-- Without those that another transaction holds: Redis is asked for them, and they are sent again.
create or replace function {schema}.take_deliveries(p_jobs uuid[], p_ids text[]) returns void
language plpgsql volatile {look_up_ids} as $$
declare v_jobs uuid[] := array(
    select d.job_id from {schema}.delivery d where d.job_id = any (p_jobs) for update skip locked);
begin
    update {schema}.delivery d set taken = true
    from unnest(p_jobs, p_ids) a (job_id, id)
    where d.job_id = any (array[a.job_id]) and a.job_id = any (v_jobs) and d.backend_job_id = a.id and not d.taken;
end $$;

-- Returns a page of ready jobs by queue, priority and order, each with its last delivery.
create or replace function {schema}.waiting_jobs(
    p_queue text, p_priority int, p_seq bigint, p_job uuid, p_limit int
) returns table (
    job_id uuid, kind text, queue text, priority int, seq bigint, attempt int, backend_job_id text, number int,
    delivered_at timestamptz, outstanding boolean
)
language plpgsql stable {walk_in_order} as $$ #variable_conflict use_column
begin
    return query
    select r.job_id, r.kind::text, r.queue::text, r.priority, r.seq, r.attempt, d.backend_job_id,
           coalesce(d.number, 0), d.delivered_at, coalesce(d.attempt = r.attempt and not d.taken, false)
    from (
        select x.* from {schema}.ready x
        where x.kind <> '' and (x.queue, x.priority, x.seq, x.job_id) > (p_queue, p_priority, p_seq, p_job)
        order by x.queue, x.priority, x.seq, x.job_id
        limit p_limit
    ) r
    left join lateral (select y.* from {schema}.delivery y where y.job_id = r.job_id limit 1) d on true;
end $$;
