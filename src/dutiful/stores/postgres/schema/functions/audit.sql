-- The audit trail: events are appended in any order, sealed in order, and never changed. An anchor replaces what
-- retention deletes from the beginning of the chain.
--
-- Triggers enforce this for every role but the tables' owner. `unsealed`, the seals and the anchor are written only by
-- functions with the owner's rights, which see all tenants' events.

create or replace function {schema}.note_unsealed() returns trigger
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into {schema}.audit_unsealed (event_id) select n.id from appended n;
    return null;
end $$;

create or replace trigger note_unsealed after insert on {schema}.audit_event
    referencing new table as appended for each statement execute function {schema}.note_unsealed();

create or replace function {schema}.refuse_audit_change() returns trigger
language plpgsql volatile as $$
begin
    raise exception 'the audit trail is append-only: % of % is refused', lower(tg_op), tg_table_name
        using errcode = 'insufficient_privilege', hint = 'what is old is deleted by retention: `dutiful audit keep`';
end $$;

create or replace trigger unchanged before update or truncate on {schema}.audit_event
    for each statement execute function {schema}.refuse_audit_change();

create or replace trigger unchanged before update or truncate on {schema}.audit_seal
    for each statement execute function {schema}.refuse_audit_change();

create or replace trigger unchanged before delete or truncate on {schema}.audit_anchor
    for each statement execute function {schema}.refuse_audit_change();

-- Allows deletes of what the anchor covers only.
create or replace function {schema}.refuse_audit_loss() returns trigger
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp {use_indexes} as $$
declare v_seq bigint;
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

create or replace trigger covered before delete on {schema}.audit_event
    for each row execute function {schema}.refuse_audit_loss();

create or replace trigger covered before delete on {schema}.audit_seal
    for each row execute function {schema}.refuse_audit_loss();

-- Checks that the anchor is the copy of a seal, moves forward only, and covers only what the policy no longer keeps.
create or replace function {schema}.check_anchor() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set timezone = 'UTC' {walk_indexes}  -- elsewhere, a day may have 23 hours
as $$
begin
    if tg_op = 'UPDATE' and new.seq <= old.seq
       or new.trimmed_at > clock_timestamp()
       or new.trimmed_at - new.keep > new.trimmed_at - interval '1 day'
       or not exists (select 1 from {schema}.audit_policy p where p.keep = new.keep)
       or not exists (
           select 1 from {schema}.audit_seal s join {schema}.audit_event e on e.id = s.event_id
           where s.seq = new.seq and s.hash = new.hash and e.at = new.at)
       or exists (
           select 1 from {schema}.audit_seal s left join {schema}.audit_event e on e.id = s.event_id
           where s.seq <= new.seq and (e.at is null or e.at >= new.trimmed_at - new.keep)) then
        raise exception 'the audit anchor moves forward only, from seal to seal, past events that are no longer kept'
            using errcode = 'insufficient_privilege', hint = 'retention moves it: `dutiful audit keep`';
    end if;
    return new;
end $$;

create or replace trigger forward before insert or update on {schema}.audit_anchor
    for each row execute function {schema}.check_anchor();

-- Refuses events of another time. A day's margin, because an append is repeated after an outage of the database; an hour
-- for clocks that are fast. The id has to be of that time, too: lists are in the order of the ids.
create or replace function {schema}.check_audit_time() returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    v_of_id timestamptz := to_timestamp(('x' || left(replace(new.id::text, '-', ''), 12))::bit(48)::bigint / 1000.0);
begin
    if new.at not between clock_timestamp() - interval '1 day' and clock_timestamp() + interval '1 hour'
       or v_of_id not between new.at - interval '1 day' and new.at + interval '1 day' then
        raise exception 'an audit event of % cannot be recorded at %', new.at, clock_timestamp()
            using errcode = 'check_violation',
                  hint = 'an event and its version 7 id are of the time when they are written: check the clock';
    end if;
    return new;
end $$;

create or replace trigger dated before insert on {schema}.audit_event
    for each row execute function {schema}.check_audit_time();

-- Refuses the record of a change of the policy by a role that may not change it: `audit verify` takes the last one for the
-- policy that should be in force.
create or replace function {schema}.check_audit_keep() returns trigger
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if not has_table_privilege('{schema}.audit_policy', 'update') then
        raise exception 'role % may not change how long audit events are kept, so it cannot record that it did', current_user
            using errcode = 'insufficient_privilege', hint = 'run `dutiful audit keep` as the owner of the schema';
    end if;
    return new;
end $$;

create or replace trigger kept before insert on {schema}.audit_event
    for each row when (new.action = 'audit.keep' and new.outcome = 'succeeded')
    execute function {schema}.check_audit_keep();

-- Lets a client, which has no more rights than to enqueue and cancel, record that, and under which login it did.
create or replace function {schema}.check_audit_client() returns trigger
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if not has_table_privilege('{schema}.pause', 'insert') then
        if new.action not in ('job.cancel', 'job.enqueue') then
            raise exception 'role % may not do %, so it cannot record that it did', current_user, new.action
                using errcode = 'insufficient_privilege', hint = 'log in as a role of the group {schema}_operator';
        end if;
        new.principal := left(new.principal, 100) || ' (' || session_user || ')';
    end if;
    return new;
end $$;

create or replace trigger by_client before insert on {schema}.audit_event
    for each row execute function {schema}.check_audit_client();

-- Appends events, given as a JSON array of objects with the names of table audit_event; known ids are skipped.
create or replace function {schema}.append_audit(p_events json) returns void
language sql volatile as $$
    insert into {schema}.audit_event ({audit})
    select {audit of e} from json_populate_recordset(null::{schema}.audit_event, p_events) e
    order by e.id
    on conflict (id) do nothing
$$;

-- Appends seals to the chain. False: nothing was written, because the first does not follow, or an event is sealed.
create or replace function {schema}.seal_audit(p_seqs bigint[], p_events uuid[], p_hashes text[]) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' {use_indexes}
as $$
begin
    -- One at a time, because two sealers could both follow one head.
    perform 1 from {schema}.audit_policy for update;
    if p_seqs[1] is distinct from 1 + coalesce(
           (select s.seq from {schema}.audit_seal s order by s.seq desc limit 1),
           (select a.seq from {schema}.audit_anchor a), 0)
       or exists (select 1 from {schema}.audit_seal s where s.event_id = any (p_events))
       -- Only events that wait, each once, without a gap: a worker may call this, and a wrong seal would stop the chain.
       or exists (select 1 from unnest(p_seqs) with ordinality n (seq, ord)
                  where n.seq is distinct from p_seqs[1] + n.ord - 1)
       or cardinality(p_seqs) <> (select count(*) from {schema}.audit_unsealed u where u.event_id = any (p_events)) then
        return false;
    end if;
    insert into {schema}.audit_seal (seq, event_id, hash)
    select n.seq, n.event_id, n.hash from unnest(p_seqs, p_events, p_hashes) n (seq, event_id, hash);
    delete from {schema}.audit_unsealed u where u.event_id = any (p_events);
    return true;
end $$;

-- Deletes up to p_limit sealed events from the beginning of the chain that are older than the policy keeps them, and
-- leaves an anchor. A policy below a day deletes nothing. p_now is for tests, and never later than the clock.
create or replace function {schema}.trim_audit(p_limit int, p_now timestamptz default null) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '5s' set timezone = 'UTC' {walk_indexes}
as $$
declare
    v_before text := coalesce(current_setting('dutiful.tenant', true), '');
    v_now    timestamptz := least(p_now, clock_timestamp());
    v_keep   interval;
    v_cutoff timestamptz;
    v_seq    bigint;
    v_events uuid[];
    v_count  bigint;
begin
    if not exists (select 1 from {schema}.audit_policy p where p.keep is not null) then return 0; end if;
    select p.keep, v_now - p.keep into v_keep, v_cutoff from {schema}.audit_policy p for update;
    if v_cutoff > v_now - interval '1 day' then return 0; end if;
    -- All tenants' events. Not by a clause of the function, because only a superuser could create it then.
    perform set_config('dutiful.tenant', '*', true);
    -- Up to the last old event before a younger or missing one: an anchor beyond a missing event would hide its loss.
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
    insert into {schema}.audit_anchor as a (seq, hash, at, keep, trimmed_at)
    select s.seq, s.hash, e.at, v_keep, v_now
    from {schema}.audit_seal s join {schema}.audit_event e on e.id = s.event_id
    where s.seq = v_seq
    on conflict (one) do update
    set seq = excluded.seq, hash = excluded.hash, at = excluded.at, keep = excluded.keep, trimmed_at = excluded.trimmed_at;
    v_events := array(select s.event_id from {schema}.audit_seal s where s.seq <= v_seq);
    -- The events first, because the trigger needs their seals.
    delete from {schema}.audit_event e where e.id = any (v_events);
    get diagnostics v_count = row_count;
    delete from {schema}.audit_seal s where s.seq <= v_seq;
    perform set_config('dutiful.tenant', v_before, true);
    return v_count;
end $$;

revoke all on function {schema}.seal_audit(bigint[], uuid[], text[]), {schema}.trim_audit(int, timestamptz),
    {schema}.note_unsealed(), {schema}.refuse_audit_loss(), {schema}.check_anchor(), {schema}.check_audit_time(),
    {schema}.check_audit_keep() from public;
