-- Finds secrets in payloads and subjects of jobs that are inserted by SQL. Names and patterns are those of Python, which
-- also finds what only code can judge: that is refused before the job runs.

-- Returns a text as a reader takes it: without invisible characters, and full-width letters as plain ones. It does not
-- normalize the text, which takes time quadratic in its combining marks.
create or replace function {schema}.visible_text(p_text text) returns text
language plpgsql stable as $$
begin
    if p_text ~ '^[ -~\s]*$' or current_setting('server_encoding') <> 'UTF8' then
        return p_text;
    end if;
    return regexp_replace(
        translate(p_text, (select string_agg(chr(n + 65248), '' order by n) from generate_series(33, 126) n),
                  (select string_agg(chr(n), '' order by n) from generate_series(33, 126) n)),
        '[\u0001-\u0008\u000e-\u001b\u007f-\u0084\u0086-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f'
        '\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]',
        '', 'g');
end $$;

-- Returns the words of a name: apiKey, API-Key and api_key have the same.
create or replace function {schema}.name_words(p_name text) returns text[]
language plpgsql stable as $$
begin
    return string_to_array(btrim(lower(regexp_replace(
        right({schema}.visible_text(p_name), 200),
        '(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[[:alpha:]])(?=[0-9])|(?<=[0-9])(?=[[:alpha:]])'
        '|[^[:alnum:]]+', '_', 'g')), '_'), '_');
end $$;

-- Returns what a value of this name would be, if payloads must not contain it.
create or replace function {schema}.name_meaning(p_words text[]) returns text
language plpgsql immutable as $$
declare
    v_meanings constant jsonb := {secret_meanings};
    v_joined   text;
    v_last     int;
begin
    loop
        v_last := cardinality(p_words);
        if v_last = 0 then
            return null;
        end if;
        if array_to_string(p_words[v_last - 1:], '') <> all ({secret_harmless}) then
            for v_first in reverse v_last .. greatest(v_last - 2, 1) loop
                v_joined := array_to_string(p_words[v_first:], '');
                if v_meanings ? v_joined or v_meanings ? regexp_replace(v_joined, 's$', '') then
                    return coalesce(v_meanings ->> v_joined, v_meanings ->> regexp_replace(v_joined, 's$', ''));
                end if;
            end loop;
            if p_words[v_last] ~ {secret_inner} then
                return 'a password';
            end if;
        end if;
        if v_last = 1 then
            return {secret_whole_names} ->> p_words[1];
        end if;
        if p_words[v_last] !~ {secret_forms} then
            return null;
        end if;
        p_words := p_words[:v_last - 1];
    end loop;
end $$;

-- Returns what a value is that has this name, or stands beside it. A text may be a secret under the name of a flag, too.
create or replace function {schema}.named_secret(p_words text[], p_value jsonb, p_forbidden text[]) returns text
language plpgsql immutable as $$
declare
    v_type    text := jsonb_typeof(p_value);
    v_meaning text;
begin
    if exists (select 1 from unnest(p_forbidden) f (name)
               where '_' || array_to_string(p_words, '_') like '%\_' || replace(f.name, '_', '\_')) then
        return 'what must not be stored';
    end if;
    if p_words[1] ~ {secret_about} then
        v_meaning := {schema}.name_meaning(p_words[2:]);
        return case when v_meaning = any ({secret_credentials}) and v_type = 'string'
                         and p_value #>> '{}' !~ {secret_flag} then v_meaning end;
    end if;
    v_meaning := {schema}.name_meaning(p_words);
    if v_type = 'boolean' or (v_type = 'number' and v_meaning <> 'a password') then
        return null;
    end if;
    if p_words = '{pwd}' and v_type = 'string' and p_value #>> '{}' ~ '^(?:[~.]{0,2}/|[A-Za-z]:\\)[^\s@]*$' then
        return null;  -- a working directory
    end if;
    return v_meaning;
end $$;

-- Returns what kind of secret a text contains, known by its shape.
create or replace function {schema}.secret_shape(p_text text) returns text
language plpgsql stable as $$
declare
    v_text  text := {schema}.visible_text(p_text);
    v_found text;
begin
    if length(v_text) < 6 then
        return null;
    end if;
    if lower(v_text) ~ {secret_marks} then
        v_found := {secret_shapes};
    end if;
    if v_found is null and length(v_text) >= 40 then
        -- Forty random characters, with a word before them.
        select 'an AWS secret key' into v_found
        from regexp_matches(v_text, '(?<![A-Za-z0-9/+=_.-])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_-])', 'g') m
        where m[1] ~ '[a-z]' and m[1] ~ '[A-Z]' and regexp_count(m[1], '[a-z]+|[A-Z]+|[0-9]+|[/+]+') >= 16
          and substr(v_text, greatest(strpos(v_text, m[1]) - 60, 1), least(strpos(v_text, m[1]) - 1, 60))
              ~* 'aws|amazon|secret|akia|asia'
        limit 1;
    end if;
    return v_found;
end $$;

-- Returns the first secret in a JSON value, and the name of its field; null if there is none.
create or replace function {schema}.secret_of(p_value jsonb, p_allowed text[], p_forbidden text[]) returns text
language plpgsql stable as $$
declare
    v_text  text := p_value::text;
    v_node  record;
    v_item  record;
    v_found text;
begin
    -- Most have nothing that could be a secret anywhere, so that they need not be taken apart.
    if cardinality(p_forbidden) = 0 and v_text ~ '^[ -~]*$' and v_text !~ '[A-Za-z0-9/+]{40}'
       and lower(v_text) !~ {secret_marks}
       and regexp_replace(lower(v_text), '[^a-z0-9]+', '', 'g') !~ {secret_cues} then
        return null;
    end if;
    for v_node in
        with recursive node (name, words, own, value) as (
            select ''::text, '{}'::text[], false, p_value
            union all
            select coalesce(c.key, n.name),
                   case when c.key is null then n.words else {schema}.name_words(c.key) end, c.key is not null, c.value
            from node n cross join lateral (
                select o.key, o.value
                from jsonb_each(case jsonb_typeof(n.value) when 'object' then n.value else '{}' end) o
                union all
                select null, a.value
                from jsonb_array_elements(case jsonb_typeof(n.value) when 'array' then n.value else '[]' end) a) c
        )
        select name, words, own, value, jsonb_typeof(value) as type from node
    loop
        v_found := null;
        if array_to_string(v_node.words, '_') <> all (p_allowed) then
            if v_node.own then
                v_found := coalesce({schema}.named_secret(v_node.words, v_node.value, p_forbidden),
                                    {schema}.secret_shape(left(v_node.name, 500)));
            end if;
            if v_found is null and v_node.type = 'string' then
                v_found := {schema}.secret_shape(v_node.value #>> '{}');
            end if;
        end if;
        if v_found is null and v_node.type = 'object' and v_node.value ?| {secret_contents} then
            -- {"name": "password", "value": "…"}
            for v_item in
                select {schema}.name_words(t.value #>> '{}') as words, c.value
                from jsonb_each(v_node.value) t, jsonb_each(v_node.value) c
                where t.key = any ({secret_titles}) and jsonb_typeof(t.value) = 'string'
                  and c.key = any ({secret_contents})
            loop
                v_found := coalesce(v_found, {schema}.secret_beside(v_item.words, v_item.value, p_allowed, p_forbidden));
            end loop;
        elsif v_found is null and v_node.type = 'array' then
            -- ["--password", "…"], ["-u", "user:…"]
            for v_item in
                select a.text as option, a.next as value, {schema}.name_words(a.text) as words
                from (select e.value #>> '{}' as text, jsonb_typeof(e.value) as type,
                             lead(e.value) over (order by e.ord) as next
                      from jsonb_array_elements(v_node.value) with ordinality e (value, ord)) a
                where a.type = 'string' and a.text like '-%' and a.text ~ {secret_option} and a.next is not null
                  and (jsonb_typeof(a.next) <> 'string'
                       or (a.next #>> '{}' !~ '^-' and a.next #>> '{}' !~ {secret_placeholder}))
            loop
                v_found := coalesce(
                    v_found, {schema}.secret_beside(v_item.words, v_item.value, p_allowed, p_forbidden),
                    case when v_item.option in ('-u', '--user') and jsonb_typeof(v_item.value) = 'string'
                              and v_item.value #>> '{}' ~ '^[^:]+:.*[[:alpha:]]'
                              and regexp_replace(v_item.value #>> '{}', '^[^:]*:', '') !~ {secret_placeholder}
                         then 'a password' end);
            end loop;
        end if;
        if v_found is not null then
            return v_found || ' in it' || case
                when v_node.name = '' then ''
                when {schema}.secret_shape(left(v_node.name, 500)) is null then ', in ' || left(v_node.name, 80)
                else ', for a name' end;
        end if;
    end loop;
    return null;
end $$;

-- Returns what a value is that stands beside its name.
create or replace function {schema}.secret_beside(
    p_words text[], p_value jsonb, p_allowed text[], p_forbidden text[]) returns text
language sql stable as $$
    select s.found
    from (select {schema}.named_secret(p_words, p_value, p_forbidden) as found) s
    where array_to_string(p_words, '_') <> all (p_allowed) and coalesce(p_words[1] !~ {secret_about}, false)
      and jsonb_typeof(p_value) <> 'boolean' and p_value not in ('null', '""', '[]', '{}')
      and s.found = any ({secret_credentials} || array['what must not be stored'])
$$;
