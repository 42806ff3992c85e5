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
    role      text,
    origin    text not null,
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

revoke all on {schema}.audit_event, {schema}.audit_unsealed, {schema}.audit_seal, {schema}.audit_anchor from public;

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
        using errcode = 'insufficient_privilege', hint = 'what is old is deleted by retention: audit_retention';
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
            using errcode = 'insufficient_privilege', hint = 'what is old is deleted by retention: audit_retention';
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
            using errcode = 'insufficient_privilege', hint = 'retention moves it: audit_retention';
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
set search_path = pg_catalog, pg_temp set enable_seqscan = off set plan_cache_mode = force_generic_plan
as $$
begin
    -- One at a time, or two sealers could both follow one head.
    perform pg_advisory_xact_lock(hashtextextended('{schema} audit', 0));
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

-- Delete up to p_limit sealed events from the beginning of the chain that are older than p_cutoff, and leave an anchor.
create function {schema}.trim_audit(p_cutoff timestamptz, p_limit int) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
    v_before text := coalesce(current_setting('dutiful.tenant', true), '');
    v_seq    bigint;
    v_events uuid[];
    v_count  bigint;
begin
    -- All tenants' events. Not by a clause of the function: only a superuser could create it then.
    perform set_config('dutiful.tenant', '*', true);
    perform pg_advisory_xact_lock(hashtextextended('{schema} audit', 0));
    -- Up to the last old one that no younger one stands before, and none that somebody has deleted: an anchor beyond it
    -- would hide that.
    with head as materialized (
        select s.seq, s.event_id, e.at
        from (select x.seq, x.event_id from {schema}.audit_seal x order by x.seq limit p_limit) s
        left join {schema}.audit_event e on e.id = s.event_id
    ), aged as (
        select h.seq from head h
        where h.at < p_cutoff
          and h.seq < coalesce((select y.seq from head y where y.at >= p_cutoff or y.at is null order by y.seq limit 1), h.seq + 1)
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

revoke all on function {schema}.seal_audit(bigint[], uuid[], text[]), {schema}.trim_audit(timestamptz, int),
    {schema}.note_unsealed(), {schema}.refuse_audit_loss(), {schema}.check_anchor() from public;
