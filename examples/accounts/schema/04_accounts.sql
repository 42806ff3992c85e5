-- People: their accounts and profiles.

create table accounts.account (
    account_id bigserial primary key,
    email_address text, phone_number text,  -- null: anonymised
    created_at timestamptz not null default now()
);

create table accounts.profile (
    profile_id bigserial primary key,
    account_id bigint not null references accounts.account,
    display_name text not null,
    created_at timestamptz not null default now()
);

-- deleted: the person asked for it; anonymized: it was done; legal_hold: it must not be.
create table accounts.account_flag (
    account_id bigint not null references accounts.account,
    flag text not null check (flag in ('deleted', 'anonymized', 'legal_hold')),
    created_at timestamptz not null default now(),
    primary key (account_id, flag)
);
