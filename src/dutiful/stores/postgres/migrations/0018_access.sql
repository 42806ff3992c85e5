-- Who may use the admin API. Of a token's secret only a hash is kept, and no statement returns it.
create table {schema}.api_token (
    id           uuid primary key,
    created_at   timestamptz not null,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz,
    hash         text not null unique,
    name         text not null,
    role         text not null,
    created_by   text not null,
    tenant       text
);
revoke all on {schema}.api_token from public;
