-- Counters that workers write, and their roll-up.

create or replace function {schema}.sum_sketches(p_sketches jsonb[]) returns jsonb
language sql immutable as $$
    select coalesce(jsonb_object_agg(b.bucket, b.times), '{}')
    from (select e.key as bucket, sum(e.value::bigint) as times
          from unnest(p_sketches) s, jsonb_each_text(s) e
          group by e.key) b
$$;

-- Adds what a worker has counted, unless this turn of it was added before.
create or replace function {schema}.add_counters(p_worker uuid, p_turn bigint, p_counters jsonb, p_now timestamptz)
returns void
language plpgsql volatile {use_indexes} as $$
declare v_now timestamptz := coalesce(p_now, clock_timestamp());
begin
    insert into {schema}.counter_turn as t (worker_id, turn, at) values (p_worker, p_turn, v_now)
    on conflict (worker_id) do update set turn = excluded.turn, at = excluded.at where t.turn < excluded.turn;
    if not found then return; end if;
    insert into {schema}.counter (worker_id, turn, at, {stats})
    select p_worker, p_turn, v_now, {stats of t}
    from jsonb_populate_recordset(null::{schema}.counter_total, p_counters) t;
end $$;

-- Rolls up to p_limit rows up, and deletes as many expired minutes and hours; returns whether there may be more. Two at
-- once take different rows, and add to minutes, hours and totals in one order.
create or replace function {schema}.roll_up_counters(
    p_limit int, p_fine interval, p_keep interval, p_last int, p_window interval, p_now timestamptz)
returns boolean
language plpgsql volatile set lock_timeout = '2s' {use_indexes} as $$
declare
    v_now     timestamptz := coalesce(p_now, clock_timestamp());
    v_rolled  bigint;
    v_kinds   text[];
    v_minutes bigint;
    v_hours   bigint;
begin
    with taken as (
        delete from {schema}.counter t
        where t.ctid = any (array(select x.ctid from {schema}.counter x limit p_limit for update skip locked))
        -- The clock of another session may have been ahead.
        returning least(t.at, v_now) as at, {stats of t}
    ), minutes as (
        insert into {schema}.counter_minute as m (minute, {stats})
        select date_trunc('minute', t.at, 'UTC') as minute, {counters_summed}
        from taken t group by 1, 2, 3 order by 1, 2, 3
        on conflict (minute, kind, outcome) do update set {counters_added}
    ), hours as (
        insert into {schema}.counter_hour as m (hour, {stats})
        select date_trunc('hour', t.at, 'UTC') as hour, {counters_summed}
        from taken t group by 1, 2, 3 order by 1, 2, 3
        on conflict (hour, kind, outcome) do update set {counters_added}
    ), totals as (
        insert into {schema}.counter_total as m ({stats})
        select {counters_summed}
        from taken t group by 1, 2 order by 1, 2
        on conflict (kind, outcome) do update set {counters_added}
    ), lasts as (
        insert into {schema}.counter_last as m (kind, minute, count, failed)
        select t.kind, date_trunc('minute', t.at, 'UTC') as minute, {last_summed}
        from taken t where t.outcome in ({ends}) group by 1, 2 order by 1, 2
        on conflict (kind, minute) do update set count = m.count + excluded.count, failed = m.failed + excluded.failed
    )
    select count(*), array_agg(distinct t.kind) into v_rolled, v_kinds from taken t;
    delete from {schema}.counter_last l
    where l.ctid = any (array(
        select x.ctid from {schema}.counter_last x
        where x.kind = any (v_kinds) and x.minute < date_trunc('minute', v_now - p_window, 'UTC')
          and x.minute < (
              select max(s.minute)
              from (select y.minute, sum(y.count) over (order by y.minute desc) as enough
                    from {schema}.counter_last y where y.kind = x.kind) s
              where s.enough >= p_last)
        for update skip locked));
    delete from {schema}.counter_minute m
    where m.ctid = any (array(
        select x.ctid from {schema}.counter_minute x
        where x.minute < date_trunc('minute', v_now - least(p_fine, p_keep), 'UTC')
        limit p_limit
        for update skip locked));
    get diagnostics v_minutes = row_count;
    delete from {schema}.counter_hour h
    where h.ctid = any (array(
        select x.ctid from {schema}.counter_hour x
        where x.hour < date_trunc('hour', v_now - p_keep, 'UTC')
        limit p_limit
        for update skip locked));
    get diagnostics v_hours = row_count;
    -- One row for each recent worker.
    delete from {schema}.counter_turn t where t.at < v_now - greatest(p_keep, interval '1 day');
    return p_limit in (v_rolled, v_minutes, v_hours);
end $$;
