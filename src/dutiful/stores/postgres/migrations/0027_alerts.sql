-- Alerts: how each rule stands for each series of its metric. One that never was beyond its threshold has no row.

create table {schema}.alert (
    rule       text not null,
    series     text not null,
    state      text not null check (state in ('ok', 'pending', 'firing')),
    value      double precision,
    since      timestamptz not null,
    calm_since timestamptz,
    fired_at   timestamptz,
    cleared_at timestamptz,
    summary    text not null,
    primary key (rule, series)
);

-- When somebody looked last, and until when there is to be another look: one row.
create table {schema}.alert_look (
    only_one boolean primary key default true check (only_one),
    at       timestamptz not null,
    until    timestamptz not null
);

-- Apply the changes whose alerts still stand as was seen, and write what is to be posted of them; returns which.
create function {schema}.change_alerts(p_changes jsonb, p_now timestamptz)
returns table (rule text, series text)
language plpgsql volatile
set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_change jsonb;
    b        {schema}.alert;
    a        {schema}.alert;
begin
    -- In one order, so that two that watch at once wait for each other, and not both.
    for v_change in
        select c.value from jsonb_array_elements(p_changes) c
        order by c.value #>> '{after,rule}', c.value #>> '{after,series}'
    loop
        a := jsonb_populate_record(null::{schema}.alert, v_change -> 'after');
        if jsonb_typeof(v_change -> 'before') = 'null' then
            insert into {schema}.alert
                (rule, series, state, value, since, calm_since, fired_at, cleared_at, summary)
            values (a.rule, a.series, a.state, a.value, a.since, a.calm_since, a.fired_at, a.cleared_at, a.summary)
            on conflict do nothing;
        else
            b := jsonb_populate_record(null::{schema}.alert, v_change -> 'before');
            update {schema}.alert x
            set state = a.state, value = a.value, since = a.since, calm_since = a.calm_since, fired_at = a.fired_at,
                cleared_at = a.cleared_at, summary = a.summary
            where x.rule = b.rule and x.series = b.series and x.state = b.state and x.since = b.since
              and row(x.value, x.calm_since) is not distinct from row(b.value, b.calm_since);
        end if;
        continue when not found;
        if v_change ->> 'event' is not null then
            insert into {schema}.webhook_post
                (id, job_id, created_at, next_at, updated_at, attempts, webhook, url, event, state, data)
            select {schema}.new_id(v_now), null, v_now, v_now, v_now, 0, w.name, w.url, v_change ->> 'event', 'pending',
                   v_change -> 'data'
            from {schema}.webhook w where w.enabled and w.alerts;
        end if;
        rule := a.rule;
        series := a.series;
        return next;
    end loop;
end $$;
