-- Alerts: the state of each rule for each series of its metric.

-- Applies the changes of alerts that are still as the caller read them, and writes the posts about them; returns which.
create or replace function {schema}.change_alerts(p_changes jsonb, p_now timestamptz)
returns table (rule text, series text)
language plpgsql volatile {use_indexes} as $$ #variable_conflict use_column
declare
    v_now    timestamptz := coalesce(p_now, clock_timestamp());
    v_change jsonb;
    b        {schema}.alert;
    a        {schema}.alert;
begin
    -- In one order, so that two processes that check at once cannot deadlock.
    for v_change in
        select c.value from jsonb_array_elements(p_changes) c
        order by c.value #>> '{after,rule}', c.value #>> '{after,series}'
    loop
        a := jsonb_populate_record(null::{schema}.alert, v_change -> 'after');
        if jsonb_typeof(v_change -> 'before') = 'null' then
            insert into {schema}.alert ({alert}) values ({alert of a}) on conflict do nothing;
        else
            b := jsonb_populate_record(null::{schema}.alert, v_change -> 'before');
            update {schema}.alert x set ({alert}) = ({alert of a})
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
