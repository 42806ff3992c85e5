-- Payload rules for jobs that are inserted by SQL: what can be checked without the kind's code is checked here, before
-- the job is stored. The rest is checked before it runs.

-- Returns how many blanks Postgres puts into its text of a JSON value: one after each comma and colon.
create or replace function {schema}.json_blanks(p_value jsonb) returns bigint
language sql immutable as $$
    select coalesce(sum(case jsonb_typeof(v)
               when 'object' then greatest(2 * (select count(*) from jsonb_object_keys(v)) - 1, 0)
               when 'array' then greatest(jsonb_array_length(v) - 1, 0)
               else 0 end), 0)::bigint
    from jsonb_path_query(p_value, 'strict $.**') v
$$;

-- Returns whether a JSON value is a reference: a whole number, or a short text without spaces.
create or replace function {schema}.is_id(p_value jsonb) returns boolean
language sql immutable as $$
    select case jsonb_typeof(p_value)
        when 'number' then p_value::text ~ '^-?[0-9]+$'
        when 'string' then p_value #>> '{}' ~ '^[^[:space:][:cntrl:]]{1,200}$'
        else false end
$$;

-- Returns what is wrong with a field's value, null if nothing is; never the value. The types are those of Python that
-- the database can check alike; others are checked before the job runs.
create or replace function {schema}.type_problem(p_value jsonb, p_type text) returns text
language sql immutable as $$
    select case p_type
        when 'id' then case
            when jsonb_typeof(p_value) <> 'array' and {schema}.is_id(p_value) then null
            when jsonb_typeof(p_value) = 'array' and p_value <> '[]'
                 and not exists (select 1 from jsonb_array_elements(p_value) e (v) where not {schema}.is_id(e.v)) then null
            else 'is not a reference: a whole number, or a text of at most 200 characters without spaces' end
        when 'integer' then case
            when jsonb_typeof(p_value) = 'number' and p_value::text ~ '^-?[0-9]+(\.0+)?$' then null
            else 'is not a whole number' end
        when 'number' then case when jsonb_typeof(p_value) = 'number' then null else 'is not a number' end
        when 'boolean' then case when jsonb_typeof(p_value) = 'boolean' then null else 'is neither true nor false' end
        when 'string' then case when jsonb_typeof(p_value) = 'string' then null else 'is not a text' end
        when 'uuid' then case
            when p_value #>> '{}' ~* '^[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}$' and jsonb_typeof(p_value) = 'string'
            then null else 'is not a UUID' end
        when 'date' then case
            when jsonb_typeof(p_value) = 'string' and p_value #>> '{}' ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}$' then null
            else 'is not a date' end
        when 'time' then case
            when jsonb_typeof(p_value) = 'string'
                 and p_value #>> '{}' ~* '^[0-9]{4}-[0-9]{2}-[0-9]{2}[t ][0-9]{2}(:[0-9]{2}){2}([.][0-9]+)?(z|[+-][0-9]{2}:?[0-9]{2})?$'
            then null else 'is not a time' end
        end
$$;

-- Returns whether a payload is an envelope with nothing beside it; whether it can be opened, only a worker knows.
create or replace function {schema}.is_sealed(p_payload jsonb) returns boolean
language sql immutable as $$
    select coalesce(p_payload - '$sealed' = '{}'
                    and p_payload -> '$sealed' ?& '{v,key,of,text}'
                    and (p_payload -> '$sealed') - '{v,key,of,text}'::text[] = '{}', false)
$$;

-- Checks one job, as insert_jobs takes it, and adds what its payload says of it.
create or replace function {schema}.apply_rule(p_job jsonb, p_rule {schema}.payload_rule) returns jsonb
language plpgsql stable as $$
declare
    v_payload jsonb := coalesce(nullif(p_job -> 'payload', 'null'), '{}');
    v_job     jsonb := p_job;
    v_kind    text := p_rule.kind;
    v_size    bigint := octet_length(v_payload::text);
    v_version text;
    v_missing text;
    v_tenant  text := v_payload ->> p_rule.tenant_field;
    v_key     text := v_payload ->> p_rule.unique_field;
    v_chain   text := v_payload ->> p_rule.correlation_field;
    v_held    jsonb := p_rule.unique_as || jsonb_build_object('key', v_key);
    v_given   jsonb := jsonb_strip_nulls(nullif(p_job -> 'unique', 'null'));
    v_secret  text;
    v_wrong   text;
    v_unknown text;
    v_sealed  boolean := {schema}.is_sealed(v_payload);
begin
    if jsonb_typeof(v_payload) <> 'object' then
        return p_job;  -- the table refuses it
    end if;
    if p_rule.sealed and not v_sealed then
        raise exception 'kind %: it is encrypted, and SQL has no key to seal the payload with', v_kind
            using errcode = 'check_violation', hint = 'enqueue it from Python, with encryption_keys';
    end if;
    if v_size > p_rule.size_limit and not v_sealed then
        -- Reprocessing makes the key longer: a payload of full size stays within its limit.
        v_size := v_size - {schema}.json_blanks(v_payload)
                  - coalesce(length(substring(right(v_key, 500) from '(?:_retry_[0-9]{10}[.][0-9]{3})+$')), 0);
    end if;
    if v_size > p_rule.size_limit and not v_sealed then
        raise exception 'kind %: the payload has % bytes, more than the limit of %', v_kind, v_size, p_rule.size_limit
            using errcode = 'check_violation', hint = 'keep content elsewhere and pass a reference';
    end if;
    v_secret := coalesce(
        case when not v_sealed then
            'payload has ' || {schema}.secret_of(v_payload, p_rule.allowed, p_rule.forbidden) end,
        'subject has ' || {schema}.secret_of(v_job -> 'subject', p_rule.allowed, p_rule.forbidden));
    if v_secret is not null then
        raise exception 'kind %: the %', v_kind, v_secret
            using errcode = 'check_violation',
                  hint = 'keep it elsewhere and pass a reference, or allow the name in the rules';
    end if;
    if v_sealed then
        return p_job;  -- all else was checked before it was sealed, or is checked once it is opened
    end if;
    if cardinality(p_rule.versions) > 0 then
        if not v_payload ? p_rule.version_field then
            v_payload := v_payload || jsonb_build_object(p_rule.version_field, p_rule.default_version);
            v_job := v_job || jsonb_build_object('payload', v_payload);
        end if;
        v_version := v_payload ->> p_rule.version_field;
        if v_version is null or v_version <> all (p_rule.versions) then
            raise exception 'kind %: its % is not accepted', v_kind, p_rule.version_field
                using errcode = 'check_violation',
                      hint = 'accepted are: ' || array_to_string(p_rule.versions, ', ');
        end if;
    end if;
    -- Fields that an older version lacks may be added by the upgrade that the kind's code has.
    if v_version is null or v_version = p_rule.versions[cardinality(p_rule.versions)] then
        select string_agg(f.name, ', ' order by f.ord) into v_missing
        from unnest(p_rule.required) with ordinality f (name, ord)
        where coalesce(btrim(v_payload ->> f.name), '') = '';
        if v_missing is not null then
            raise exception 'kind %: the payload lacks: %', v_kind, v_missing
                using errcode = 'check_violation', hint = 'these fields are required, and must not be empty';
        end if;
        select string_agg(distinct f.name || ' ' || coalesce(f.problem, 'is missing'), '; ') into v_wrong
        from (
            select t.name, {schema}.type_problem(v_payload -> t.name, t.type) as problem
            from jsonb_to_recordset(p_rule.fields) t (name text, type text, nullable boolean, required boolean)
            where case
                when not v_payload ? t.name then coalesce(t.required, true)
                when v_payload -> t.name = 'null' then not coalesce(t.nullable, false)
                else {schema}.type_problem(v_payload -> t.name, t.type) is not null end
        ) f;
        if v_wrong is not null then
            raise exception 'kind %: in the payload, %', v_kind, v_wrong
                using errcode = 'check_violation', hint = 'the types are those of the kind''s rules and handler';
        end if;
        -- Their names are no secrets: those were refused above.
        select string_agg(left(k.name, 80), ', ' order by k.name) into v_unknown
        from (select n from jsonb_object_keys(v_payload) n where n <> all (p_rule.known) order by n limit 20) k (name);
        if v_unknown is not null then
            raise exception 'kind %: the payload has fields that are unknown: %', v_kind, v_unknown
                using errcode = 'check_violation',
                      hint = 'its fields are: ' || array_to_string(p_rule.known, ', ');
        end if;
    end if;
    -- They become columns of the job, and the key is indexed.
    select string_agg(c.name || ' must be a whole number, or a text of at most ' || c.longest
                      || ' characters without outer spaces', '; ') into v_wrong
    from (values (p_rule.tenant_field, v_tenant, 200), (p_rule.correlation_field, v_chain, 200),
                 (p_rule.unique_field, v_key, 500)) c (name, content, longest)
    where length(c.content) > c.longest or c.content ~ '^[[:space:]]|[[:space:]]$'
       or jsonb_typeof(v_payload -> c.name) = 'number' and abs((v_payload ->> c.name)::numeric) >= 2::numeric ^ 63;
    if v_wrong is not null then
        raise exception 'kind %: in the payload, %', v_kind, v_wrong
            using errcode = 'check_violation', hint = 'they are kept beside the payload, to find the job by';
    end if;
    if v_tenant is not null and coalesce(v_job ->> 'tenant', v_tenant) <> v_tenant then
        raise exception 'kind %: the payload''s % is another tenant than the job''s own', v_kind, p_rule.tenant_field
            using errcode = 'check_violation', hint = 'leave the job''s tenant out: it is taken from the payload';
    end if;
    -- A requeued job keeps the correlation id of the first, which may be older than the rules.
    if v_chain is not null and coalesce(v_job ->> 'correlation_id', v_chain) <> v_chain and not exists (
        select 1 from {schema}.job j
        where j.id = (v_job ->> 'retry_of')::uuid
          and coalesce(j.correlation_id, j.id::text) = v_job ->> 'correlation_id') then
        raise exception 'kind %: the payload''s % is another than the job''s own', v_kind, p_rule.correlation_field
            using errcode = 'check_violation', hint = 'leave the correlation id out: it is taken from the payload';
    end if;
    -- A stricter on_conflict is allowed: reject instead of return.
    if v_key is not null
       and not v_given - (case v_given ->> 'on_conflict' when 'reject' then 'on_conflict' else '' end) <@ v_held then
        raise exception 'kind %: the unique key is not the payload''s %, or is not held as the rules say',
            v_kind, p_rule.unique_field
            using errcode = 'check_violation', hint = 'leave unique out: it is taken from the payload';
    end if;
    v_job := v_job || jsonb_strip_nulls(jsonb_build_object(
        'tenant', v_tenant, 'correlation_id', coalesce(v_job ->> 'correlation_id', v_chain)));
    if v_key is not null and v_given is null then
        v_job := v_job || jsonb_build_object(
            'unique', v_held,
            'options', coalesce(nullif(v_job -> 'options', 'null'), '{}')
                       || jsonb_build_object('unique_field', p_rule.unique_field));
    end if;
    return v_job;
end $$;

-- Returns jobs, as insert_jobs takes them, with what their kinds declare in place of what was left out.
create or replace function {schema}.apply_defaults(p_jobs jsonb) returns jsonb
language plpgsql stable {walk_indexes} as $$
begin
    return (
        select coalesce(jsonb_agg(
            case when d.kind is null then e.v else e.v || jsonb_build_object(
                'queue', coalesce(e.v ->> 'queue', d.queue), 'priority', coalesce((e.v ->> 'priority')::int, d.priority),
                'max_attempts', coalesce((e.v ->> 'max_attempts')::int, d.max_attempts),
                'unique', coalesce(nullif(e.v -> 'unique', 'null'), d.unique_as)) end
            order by e.ord), '[]')
        from jsonb_array_elements(p_jobs) with ordinality e (v, ord)
        left join {schema}.kind_default d on d.kind = e.v ->> 'kind');
end $$;

-- Returns jobs, as insert_jobs takes them, those of kinds with rules checked and completed.
create or replace function {schema}.apply_rules(p_jobs jsonb) returns jsonb
language plpgsql stable {walk_indexes} as $$
begin
    return (
        select coalesce(jsonb_agg(case when r.kind is null then e.v else {schema}.apply_rule(e.v, r) end order by e.ord), '[]')
        from jsonb_array_elements(p_jobs) with ordinality e (v, ord)
        left join {schema}.payload_rule r on r.kind = e.v ->> 'kind');
end $$;
