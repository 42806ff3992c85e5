-- One process leads maintenance.

-- Returns whether leases that are over may be taken from their workers: not while the database may have been away so
-- lately that workers which live have not renewed. Where nothing has ever led, there is nothing to go by.
create or replace function {schema}.may_rescue(p_now timestamptz) returns boolean
language sql stable as $$
    select not exists (select 1 from {schema}.leader l
                       where l.name = 'services' and (l.rescue_from > p_now or l.next_by < p_now))
$$;

-- Takes or renews leadership, and returns what there is to do. p_run_floor: see promote. After more than p_gap without a
-- survey, no lease is rescued for p_hold. none_expired_at: how far a search for expired leases found none, where the next
-- one begins; less a margin for claims that commit late.
create or replace function {schema}.survey(
    p_worker uuid, p_ttl interval, p_run_floor timestamptz, p_none_expired_at timestamptz, p_gap interval, p_hold interval,
    p_now timestamptz
) returns table (
    leads boolean, now_at timestamptz, next_run_at timestamptz, next_fire_at timestamptz, expired boolean,
    blocked boolean, next_post_at timestamptz, reviewing boolean, unsealed boolean, limited boolean,
    waits boolean, none_expired_at timestamptz
)
language plpgsql volatile {walk_in_order} as $$ #variable_conflict use_column
declare
    v_now        timestamptz := coalesce(p_now, clock_timestamp());
    v_may_rescue boolean;
    v_expired    boolean;
begin
    insert into {schema}.leader as l (name, holder, term, expires_at, next_by, rescue_from)
    values ('services', p_worker, 1, v_now + p_ttl, v_now + p_gap, v_now + p_hold)
    on conflict (name) do update
    set holder = p_worker, expires_at = v_now + p_ttl, next_by = v_now + p_gap,
        rescue_from = case when l.next_by < v_now then v_now + p_hold else l.rescue_from end,
        term = l.term + case when l.holder = p_worker then 0 else 1 end
    where l.holder = p_worker or l.expires_at <= v_now;
    if not found then
        return query
        select false, v_now, null::timestamptz, null::timestamptz, false, false, null::timestamptz, false, false, false,
               false, null::timestamptz;
        return;
    end if;
    v_may_rescue := {schema}.may_rescue(v_now);
    v_expired := v_may_rescue and exists (
        select 1 from {schema}.lease l
        where l.expires_at > least(p_none_expired_at, v_now) - interval '2 seconds' and l.expires_at <= v_now);
    return query
    select true, v_now,
           (select s.run_at from {schema}.scheduled s where s.run_at > p_run_floor order by s.run_at limit 1),
           (select min(s.next_at) from {schema}.schedule s where s.enabled),
           v_expired,
           exists (select 1 from {schema}.blocked)
               or exists (select 1 from {schema}.pause where scope in ('kind', 'breaker')),
           (select p.next_at from {schema}.webhook_post p where p.state = 'pending' order by p.next_at limit 1),
           exists (select 1 from {schema}.bulk_run b where b.state = 'running')
               or exists (select 1 from {schema}.dead_letter d where d.status = 'reprocessing'),
           exists (select 1 from {schema}.audit_unsealed), exists (select 1 from {schema}.limit_rule),
           exists (select 1 from {schema}.sent_event e where not e.delivered)
               or exists (select 1 from {schema}.blocked b where b.gate = 'event' and b.run_at <= v_now),
           case when v_may_rescue and not v_expired then v_now end;
end $$;
