-- What workers have counted.
--
-- A sketch is JSON: how many by the number of their bucket. None of the tables belongs to a tenant.

-- All that was ever counted.
create table {schema}.tally_total (
    count             bigint not null,
    payload_bytes     bigint not null,
    payload_most      bigint not null,
    run_microseconds  bigint not null,
    wait_microseconds bigint not null,
    kind              text   not null,
    outcome           text   not null,
    run               jsonb  not null,
    wait              jsonb  not null,
    primary key (kind, outcome)
) with (fillfactor = 50);

create table {schema}.tally_minute (
    minute timestamptz not null,              -- when it began
    like {schema}.tally_total,
    primary key (minute, kind, outcome)
) with (fillfactor = 70);

create table {schema}.tally_hour (
    hour timestamptz not null,
    like {schema}.tally_total,
    primary key (hour, kind, outcome)
) with (fillfactor = 70);

-- As workers hand it over; folded into minutes, hours and totals soon after.
create table {schema}.tally (
    worker_id uuid   not null,
    turn      bigint not null,
    at        timestamptz not null,
    like {schema}.tally_total,
    primary key (worker_id, turn, kind, outcome)
);

-- The last turn of each worker, so that one which is repeated after its rows were folded counts nothing twice.
create table {schema}.tally_turn (
    worker_id uuid primary key,
    turn      bigint not null,
    at        timestamptz not null
) with (fillfactor = 50);

create function {schema}.sum_sketches(p_sketches jsonb[]) returns jsonb
language sql immutable as $$
    select coalesce(jsonb_object_agg(b.bucket, b.times), '{}')
    from (select e.key as bucket, sum(e.value::bigint) as times
          from unnest(p_sketches) s, jsonb_each_text(s) e
          group by e.key) b
$$;

-- Add what a worker has counted, unless it has come this far before.
create function {schema}.add_tallies(p_worker uuid, p_turn bigint, p_tallies jsonb, p_now timestamptz) returns void
language plpgsql volatile
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    insert into {schema}.tally_turn as t (worker_id, turn, at) values (p_worker, p_turn, v_now)
    on conflict (worker_id) do update set turn = excluded.turn, at = excluded.at where t.turn < excluded.turn;
    if not found then
        return;
    end if;
    insert into {schema}.tally
        (worker_id, turn, at, count, payload_bytes, payload_most, run_microseconds, wait_microseconds, kind, outcome,
         run, wait)
    select p_worker, p_turn, v_now, t.count, t.payload_bytes, t.payload_most, t.run_microseconds, t.wait_microseconds,
           t.kind, t.outcome, t.run, t.wait
    from jsonb_to_recordset(p_tallies) as t (
        kind text, outcome text, count bigint, payload_bytes bigint, payload_most bigint,
        run_microseconds bigint, wait_microseconds bigint, run jsonb, wait jsonb);
end $$;

-- Fold up to p_limit rows, and forget as many of the minutes and hours that are over; returns whether there may be
-- more. Two at once take different rows, and add to minutes, hours and totals in one order.
create function {schema}.fold_tallies(p_limit int, p_fine interval, p_keep interval, p_now timestamptz) returns boolean
language plpgsql volatile
set lock_timeout = '2s' set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_folded  bigint;
    v_minutes bigint;
    v_hours   bigint;
begin
    with taken as (
        delete from {schema}.tally t
        where t.ctid = any (array(select x.ctid from {schema}.tally x limit p_limit for update skip locked))
        -- A clock that was ahead: nobody counts before the time.
        returning least(t.at, v_now) as at, t.count, t.payload_bytes, t.payload_most, t.run_microseconds,
                  t.wait_microseconds, t.kind, t.outcome, t.run, t.wait
    ), minutes as (
        insert into {schema}.tally_minute as m
            (minute, count, payload_bytes, payload_most, run_microseconds, wait_microseconds, kind, outcome, run, wait)
        select date_trunc('minute', t.at, 'UTC'), sum(t.count), sum(t.payload_bytes), max(t.payload_most),
               sum(t.run_microseconds), sum(t.wait_microseconds), t.kind, t.outcome,
               {schema}.sum_sketches(array_agg(t.run)), {schema}.sum_sketches(array_agg(t.wait))
        from taken t
        group by date_trunc('minute', t.at, 'UTC'), t.kind, t.outcome
        order by date_trunc('minute', t.at, 'UTC'), t.kind, t.outcome
        on conflict (minute, kind, outcome) do update
        set count = m.count + excluded.count, payload_bytes = m.payload_bytes + excluded.payload_bytes,
            payload_most = greatest(m.payload_most, excluded.payload_most),
            run_microseconds = m.run_microseconds + excluded.run_microseconds,
            wait_microseconds = m.wait_microseconds + excluded.wait_microseconds,
            run = {schema}.sum_sketches(array[m.run, excluded.run]),
            wait = {schema}.sum_sketches(array[m.wait, excluded.wait])
    ), hours as (
        insert into {schema}.tally_hour as m
            (hour, count, payload_bytes, payload_most, run_microseconds, wait_microseconds, kind, outcome, run, wait)
        select date_trunc('hour', t.at, 'UTC'), sum(t.count), sum(t.payload_bytes), max(t.payload_most),
               sum(t.run_microseconds), sum(t.wait_microseconds), t.kind, t.outcome,
               {schema}.sum_sketches(array_agg(t.run)), {schema}.sum_sketches(array_agg(t.wait))
        from taken t
        group by date_trunc('hour', t.at, 'UTC'), t.kind, t.outcome
        order by date_trunc('hour', t.at, 'UTC'), t.kind, t.outcome
        on conflict (hour, kind, outcome) do update
        set count = m.count + excluded.count, payload_bytes = m.payload_bytes + excluded.payload_bytes,
            payload_most = greatest(m.payload_most, excluded.payload_most),
            run_microseconds = m.run_microseconds + excluded.run_microseconds,
            wait_microseconds = m.wait_microseconds + excluded.wait_microseconds,
            run = {schema}.sum_sketches(array[m.run, excluded.run]),
            wait = {schema}.sum_sketches(array[m.wait, excluded.wait])
    ), totals as (
        insert into {schema}.tally_total as m
            (count, payload_bytes, payload_most, run_microseconds, wait_microseconds, kind, outcome, run, wait)
        select sum(t.count), sum(t.payload_bytes), max(t.payload_most),
               sum(t.run_microseconds), sum(t.wait_microseconds), t.kind, t.outcome,
               {schema}.sum_sketches(array_agg(t.run)), {schema}.sum_sketches(array_agg(t.wait))
        from taken t
        group by t.kind, t.outcome
        order by t.kind, t.outcome
        on conflict (kind, outcome) do update
        set count = m.count + excluded.count, payload_bytes = m.payload_bytes + excluded.payload_bytes,
            payload_most = greatest(m.payload_most, excluded.payload_most),
            run_microseconds = m.run_microseconds + excluded.run_microseconds,
            wait_microseconds = m.wait_microseconds + excluded.wait_microseconds,
            run = {schema}.sum_sketches(array[m.run, excluded.run]),
            wait = {schema}.sum_sketches(array[m.wait, excluded.wait])
    )
    select count(*) into v_folded from taken;
    delete from {schema}.tally_minute m
    where m.ctid = any (array(
        select x.ctid from {schema}.tally_minute x
        where x.minute < date_trunc('minute', v_now - least(p_fine, p_keep), 'UTC')
        limit p_limit
        for update skip locked));
    get diagnostics v_minutes = row_count;
    delete from {schema}.tally_hour h
    where h.ctid = any (array(
        select x.ctid from {schema}.tally_hour x
        where x.hour < date_trunc('hour', v_now - p_keep, 'UTC')
        limit p_limit
        for update skip locked));
    get diagnostics v_hours = row_count;
    -- There is one for each worker of late.
    delete from {schema}.tally_turn t where t.at < v_now - greatest(p_keep, interval '1 day');
    return p_limit in (v_folded, v_minutes, v_hours);
end $$;
