-- Ids: made in SQL, and as people see them.

-- Returns a version 7 UUID, for callers that do not make their own.
create or replace function {schema}.new_id(p_at timestamptz default null) returns uuid
language sql volatile as $$
    select encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                    placing substring(int8send(floor(extract(epoch from coalesce(p_at, clock_timestamp())) * 1000)::bigint)
                                      from 3)
                    from 1 for 6),
            52, 1), 53, 1), 'hex')::uuid
$$;

-- Returns the smallest version 7 UUID of a millisecond.
create or replace function {schema}.floor_id(p_at timestamptz) returns uuid
language sql immutable strict as $$
    select (lpad(to_hex(greatest(0, floor(extract(epoch from p_at) * 1000))::bigint), 12, '0')
            || '70008000000000000000')::uuid
$$;

-- Returns when a version 7 UUID was made.
create or replace function {schema}.id_time(p_id uuid) returns timestamptz
language sql immutable as $$
    select to_timestamp(('x' || left(replace(p_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)
$$;

-- Returns an id as people see it: Crockford's Base32 with two check digits, in four groups.
create or replace function {schema}.public_id(p_id uuid) returns text
language sql immutable as $$
    with id as (
        select b'00' || ('x' || replace(p_id::text, '-', ''))::bit(128) as bits
    ), spelt as (
        select string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + substring(bits from 5 * n + 1 for 5)::int, 1), ''
                          order by n) as digits
        from id, generate_series(0, 25) n
    ), checked as (
        -- 2 ^ 32 is 35 modulo 97.
        select 98 - (100 * sum(substring(bits from 32 * n + 3 for 32)::bigint % 97
                               * (array[1, 35, 61, 1])[4 - n]) % 97)::int as sum
        from id, generate_series(0, 3) n
    )
    select regexp_replace(s.digits || lpad(c.sum::text, 2, '0'), '(.{7})(.{7})(.{7})(.{7})', '\1-\2-\3-\4')
    from spelt s, checked c
$$;
