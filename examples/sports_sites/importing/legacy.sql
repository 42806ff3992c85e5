-- The five queues as they were, each with states of its own. Both databases take it as it is.

create table analysis_queue (
    lipas_id   integer primary key,
    status     text not null,              -- pending, in-progress, done
    added_at   timestamptz not null
);

create table elevation_queue (
    lipas_id   integer primary key,
    status     text not null,              -- pending, in-progress, done, failed
    retries    integer not null default 0,
    last_error text,
    added_at   timestamptz not null
);

create table email_out_queue (
    id         integer primary key,
    message    jsonb not null,             -- {"to", "template", "data"}
    attempts   integer not null default 0,
    send_after timestamptz,
    sent_at    timestamptz,                -- null: not yet
    error      text                        -- with none of its attempts left: it was given up
);

create table integration_out_queue (
    id         integer primary key,
    lipas_id   integer,
    added_at   timestamptz not null,
    synced_at  timestamptz
);

create table webhook_queue (
    id         integer primary key,
    batch      jsonb not null,             -- {"lipas-ids", "operation-type", "initiated-by"}
    status     text not null,              -- new, sending, sent, dead
    last_error text,
    added_at   timestamptz not null
);
