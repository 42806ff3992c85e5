-- Files in an object store: an upload is intended, then finished.

create table files.upload_intent (
    upload_intent_id bigserial primary key,
    account_id bigint not null references accounts.account,
    bucket text not null, object_key text not null,
    created_at timestamptz not null default now()
);

create table files.file (
    file_id bigserial primary key,
    upload_intent_id bigint not null unique references files.upload_intent,
    account_id bigint not null references accounts.account,
    bucket text not null, object_key text not null,
    created_at timestamptz not null default now()
);
create index file_account on files.file (account_id);

create table files.file_metadata (
    file_id bigint primary key references files.file,
    metadata jsonb not null default '{}'
);

-- Finishes an upload, once; returns the file.
create function files.finish_upload(_upload_intent_id bigint, _metadata jsonb) returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare _file_id bigint;
begin
    insert into files.file (upload_intent_id, account_id, bucket, object_key)
    select i.upload_intent_id, i.account_id, i.bucket, i.object_key
    from files.upload_intent i where i.upload_intent_id = _upload_intent_id
    on conflict (upload_intent_id) do nothing
    returning file_id into _file_id;
    insert into files.file_metadata (file_id, metadata) select _file_id, _metadata where _file_id is not null;
    -- One that arrives after its account was deleted is deleted, too: nothing else would come back for it.
    perform files.kickoff_file_deletion(_file_id)
    from files.upload_intent i join accounts.account_flag f using (account_id)
    where i.upload_intent_id = _upload_intent_id and f.flag = 'deleted' and _file_id is not null;
    return coalesce(_file_id, (select f.file_id from files.file f where f.upload_intent_id = _upload_intent_id));
end $$;

create function files.mark_file_deleted(_file_id bigint) returns void
language sql volatile set search_path = pg_catalog, pg_temp as $$
    insert into files.file_metadata (file_id, metadata) values (_file_id, '{"deleted": true}')
    on conflict (file_id) do update set metadata = files.file_metadata.metadata || '{"deleted": true}'
$$;
