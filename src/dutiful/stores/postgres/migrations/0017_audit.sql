-- The audit trail: events are appended freely, sealed in order, and never changed. What retention deletes from the
-- beginning of the chain, an anchor stands for.
--
-- Triggers hold this against everybody who does not own the tables; `unsealed`, the seals and the anchor are written by
-- functions with the owner's rights only. Those see all tenants' events, whoever calls them.

create table {schema}.audit_event (
    id        uuid primary key,               -- version 7
    act       uuid not null,
    at        timestamptz not null,
    principal text not null,
    role      text check (role in ('viewer', 'staff', 'manager', 'admin')),
    origin    text not null check (origin in ('cli', 'api', 'python', 'service', 'sql')),
    action    text not null,
    outcome   text not null check (outcome in ('requested', 'succeeded', 'failed', 'refused')),
    target    text,
    tenant    text,
    reason    text,
    address   text,
    before    json,                           -- json keeps numbers as they were written, so that hashes hold
    after     json
);
create index audit_event_at on {schema}.audit_event (at);
create index audit_event_act on {schema}.audit_event (act);
create index audit_event_principal on {schema}.audit_event (principal, id);
create index audit_event_target on {schema}.audit_event (target, id);
create index audit_event_tenant on {schema}.audit_event (tenant, id) where tenant is not null;

-- Events that wait for their seal.
create table {schema}.audit_unsealed (
    event_id uuid primary key
);

create table {schema}.audit_seal (
    seq      bigint primary key,
    event_id uuid not null unique,
    hash     text not null
);

create table {schema}.audit_anchor (
    one  boolean primary key default true check (one),
    seq  bigint not null,
    hash text   not null,
    at   timestamptz not null
);

-- How long events are kept; null: for good. Only the owner writes it, so that who may trim cannot trim what is younger.
-- Its one row is what whoever changes the chain holds locked meanwhile.
create table {schema}.audit_policy (
    one  boolean primary key default true check (one),
    keep interval check (keep > '0')
);
insert into {schema}.audit_policy (keep) values (null);

revoke all on {schema}.audit_event, {schema}.audit_unsealed, {schema}.audit_seal, {schema}.audit_anchor,
    {schema}.audit_policy from public;

create function {schema}.note_unsealed() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into {schema}.audit_unsealed (event_id) select n.id from appended n;
    return null;
end $$;

create trigger note_unsealed after insert on {schema}.audit_event
    referencing new table as appended for each statement execute function {schema}.note_unsealed();

create function {schema}.refuse_audit_change() returns trigger
language plpgsql volatile
as $$
begin
    raise exception 'the audit trail is append-only: % of % is refused', lower(tg_op), tg_table_name
        using errcode = 'insufficient_privilege', hint = 'what is old is deleted by retention: `dutiful audit keep`';
end $$;

create trigger unchanged before update or truncate on {schema}.audit_event
    for each statement execute function {schema}.refuse_audit_change();
create trigger unchanged before update or truncate on {schema}.audit_seal
    for each statement execute function {schema}.refuse_audit_change();
create trigger unchanged before delete or truncate on {schema}.audit_anchor
    for each statement execute function {schema}.refuse_audit_change();

-- Only what the anchor covers may go.
create function {schema}.refuse_audit_loss() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_seq bigint;
begin
    if tg_table_name = 'audit_seal' then
        v_seq := old.seq;
    else
        select s.seq into v_seq from {schema}.audit_seal s where s.event_id = old.id;
    end if;
    if not exists (select 1 from {schema}.audit_anchor a where a.seq >= v_seq) then
        raise exception 'the audit trail is append-only: delete of % is refused', tg_table_name
            using errcode = 'insufficient_privilege', hint = 'what is old is deleted by retention: `dutiful audit keep`';
    end if;
    return old;
end $$;

create trigger covered before delete on {schema}.audit_event
    for each row execute function {schema}.refuse_audit_loss();
create trigger covered before delete on {schema}.audit_seal
    for each row execute function {schema}.refuse_audit_loss();

-- The anchor is a seal that was, and moves forward only.
create function {schema}.check_anchor() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'UPDATE' and new.seq <= old.seq
       or not exists (select 1 from {schema}.audit_seal s where s.seq = new.seq and s.hash = new.hash) then
        raise exception 'the audit anchor moves forward only, from seal to seal'
            using errcode = 'insufficient_privilege', hint = 'retention moves it: `dutiful audit keep`';
    end if;
    return new;
end $$;

create trigger forward before insert or update on {schema}.audit_anchor
    for each row execute function {schema}.check_anchor();

-- Append events, given as a JSON array of objects with the names of table audit_event; one whose id is there already is
-- left as it is.
create function {schema}.append_audit(p_events json) returns void
language sql volatile as $$
    insert into {schema}.audit_event
        (id, act, at, principal, role, origin, action, outcome, target, tenant, reason, address, before, after)
    select e.id, e.act, e.at, e.principal, e.role, e.origin, e.action, e.outcome, e.target, e.tenant, e.reason,
           e.address, e.before, e.after
    from json_to_recordset(p_events) e (
        id uuid, act uuid, at timestamptz, principal text, role text, origin text, action text, outcome text,
        target text, tenant text, reason text, address text, before json, after json)
    order by e.id
    on conflict (id) do nothing
$$;

-- Append links to the chain; false, and nothing is written, if the first does not follow its head, or an event has one.
create function {schema}.seal_audit(p_seqs bigint[], p_events uuid[], p_hashes text[]) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    -- One at a time, or two sealers could both follow one head.
    perform 1 from {schema}.audit_policy for update;
    if p_seqs[1] is distinct from 1 + coalesce(
           (select s.seq from {schema}.audit_seal s order by s.seq desc limit 1),
           (select a.seq from {schema}.audit_anchor a), 0)
       or exists (select 1 from {schema}.audit_seal s where s.event_id = any (p_events)) then
        return false;
    end if;
    insert into {schema}.audit_seal (seq, event_id, hash)
    select n.seq, n.event_id, n.hash from unnest(p_seqs, p_events, p_hashes) n (seq, event_id, hash);
    delete from {schema}.audit_unsealed u where u.event_id = any (p_events);
    return true;
end $$;

-- Delete up to p_limit sealed events from the beginning of the chain that are older than the policy keeps them, and leave
-- an anchor. p_now is for tests, and never later than the clock.
create function {schema}.trim_audit(p_limit int, p_now timestamptz default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_before text := coalesce(current_setting('dutiful.tenant', true), '');
    v_cutoff timestamptz;
    v_seq    bigint;
    v_events uuid[];
    v_count  bigint;
begin
    if not exists (select 1 from {schema}.audit_policy p where p.keep is not null) then
        return 0;
    end if;
    select least(p_now, clock_timestamp()) - p.keep into v_cutoff from {schema}.audit_policy p for update;
    -- All tenants' events. Not by a clause of the function: only a superuser could create it then.
    perform set_config('dutiful.tenant', '*', true);
    -- Up to the last old one that no younger one stands before, and none that somebody has deleted: an anchor beyond it
    -- would hide that.
    with head as materialized (
        select s.seq, s.event_id, e.at
        from (select x.seq, x.event_id from {schema}.audit_seal x order by x.seq limit p_limit) s
        left join {schema}.audit_event e on e.id = s.event_id
    ), aged as (
        select h.seq from head h
        where h.at < v_cutoff
          and h.seq < coalesce((select y.seq from head y where y.at >= v_cutoff or y.at is null order by y.seq limit 1), h.seq + 1)
    )
    select max(a.seq) into v_seq from aged a;
    if v_seq is null then
        perform set_config('dutiful.tenant', v_before, true);
        return 0;
    end if;
    insert into {schema}.audit_anchor as a (seq, hash, at)
    select s.seq, s.hash, e.at
    from {schema}.audit_seal s join {schema}.audit_event e on e.id = s.event_id
    where s.seq = v_seq
    on conflict (one) do update set seq = excluded.seq, hash = excluded.hash, at = excluded.at;
    v_events := array(select s.event_id from {schema}.audit_seal s where s.seq <= v_seq);
    -- The events first: it is their seals that say that they may go.
    delete from {schema}.audit_event e where e.id = any (v_events);
    get diagnostics v_count = row_count;
    delete from {schema}.audit_seal s where s.seq <= v_seq;
    perform set_config('dutiful.tenant', v_before, true);
    return v_count;
end $$;

revoke all on function {schema}.seal_audit(bigint[], uuid[], text[]), {schema}.trim_audit(int, timestamptz),
    {schema}.note_unsealed(), {schema}.refuse_audit_loss(), {schema}.check_anchor() from public;
