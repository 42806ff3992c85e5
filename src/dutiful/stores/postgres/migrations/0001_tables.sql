-- What was asked for is one immutable row, where a job stands is one row in a narrow table,
-- what happened is append-only.

create table {schema}.meta (
    key   text primary key,
    value text not null
);

-- What was asked for. Never updated; deleted by retention only.
create table {schema}.job (
    id             uuid primary key,          -- version 7, made by the client, so that enqueue can be repeated
    created_at     timestamptz not null,
    run_at         timestamptz                -- null: as soon as possible
                   check (run_at >= '0001-01-01 00:00+00' and run_at < '10000-01-01 00:00+00'),  -- as Python's clock
    parent_id      uuid,
    retry_of       uuid,
    priority       int  not null check (priority >= 0),
    max_attempts   int  not null check (max_attempts >= 1),
    kind           text not null check (kind <> ''),
    queue          text not null check (queue <> ''),
    tenant         text check (tenant not in ('', '*')),  -- which would mean nobody, or everybody
    correlation_id text,                      -- null: its own id
    created_by     text,
    payload        jsonb not null check (jsonb_typeof(payload) = 'object'),
    subject        jsonb check (jsonb_typeof(subject) = 'object'),
    options        jsonb
);
-- For listing; the collation makes comparing cheap. Kinds and queues are few, so that a list by one of them is merged
-- from its pairs with the other, and jobs without a tenant or correlation id pay for one index only. Every job has a kind:
-- the condition is there so that only those who name it use the index, for it might be taken to look for an id, too.
create index job_line on {schema}.job (kind collate "C", queue collate "C", id) where kind <> '';
create index job_tenant on {schema}.job (tenant collate "C", id) where tenant is not null;
create index job_correlation on {schema}.job (correlation_id collate "C", id) where correlation_id is not null;

-- `seq` orders a line (queue, priority) by when its jobs became ready.
create sequence {schema}.ready_seq;
create sequence {schema}.claim_seq;

-- Due, waits for a slot. `attempt` counts those already spent.
create table {schema}.ready (
    seq      bigint   not null,
    job_id   uuid     not null,
    priority int      not null,
    attempt  int      not null,
    crashes  int      not null,
    queue    text collate "C" not null,
    kind     text collate "C" not null,
    tenant   text,
    primary key (queue, priority, seq)
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_threshold = -1,  -- what comes in goes out soon: only deletes call for a vacuum
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000,
    vacuum_truncate = off
);
create index ready_job on {schema}.ready (job_id);
create index ready_suspect on {schema}.ready (queue, priority, seq) where crashes > 0;
-- For workers of some tenants only, so that they need not walk past everybody else's jobs.
create index ready_tenant on {schema}.ready (tenant, queue, priority, seq) where tenant is not null;

-- Waits for its time; a retry waits here too.
create table {schema}.scheduled (
    run_at   timestamptz not null,
    job_id   uuid not null,
    priority int  not null,
    attempt  int  not null,
    crashes  int  not null,
    queue    text collate "C" not null,
    kind     text collate "C" not null,
    tenant   text,
    primary key (run_at, job_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, vacuum_truncate = off);
create index scheduled_job on {schema}.scheduled (job_id);

-- Waits for a gate: a pause, other jobs, …
create table {schema}.blocked (
    job_id   uuid primary key,
    since    timestamptz not null,
    run_at   timestamptz,
    seq      bigint,                          -- before a pause or a breaker, its place in line; null: it is not due yet
    priority int  not null,
    attempt  int  not null,
    crashes  int  not null,
    gate     text not null,
    key      text collate "C" not null,
    queue    text collate "C" not null,
    kind     text collate "C" not null,
    tenant   text
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, vacuum_truncate = off);
create index blocked_gate on {schema}.blocked (gate, key, seq);
create index blocked_due on {schema}.blocked (run_at, job_id) where gate = 'paused' and seq is null;

create table {schema}.dependency (
    job_id   uuid not null,
    needs_id uuid not null,
    primary key (job_id, needs_id)
);
create index dependency_needs on {schema}.dependency (needs_id);

-- Running: ours until expires_at; (job_id, claim_id) is the proof.
create table {schema}.lease (
    job_id              uuid primary key,
    claim_id            bigint not null,
    worker_id           uuid   not null,
    seq                 bigint not null,      -- its place in line, should it be given back
    claimed_at          timestamptz not null,
    expires_at          timestamptz not null,
    cancel_requested_at timestamptz,
    attempt             int  not null,        -- this one included
    crashes             int  not null,
    cancel_reason       text
) with (
    fillfactor = 90, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_threshold = -1,  -- what comes in goes out soon: only deletes call for a vacuum
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000,
    vacuum_truncate = off
);
create index lease_expiry on {schema}.lease (expires_at);

-- Final, exactly once: the primary key makes a second end impossible. Append-only.
create table {schema}.finished (
    job_id      uuid primary key,
    claim_id    bigint,                       -- null: it was cancelled while it waited
    worker_id   uuid,
    claimed_at  timestamptz,
    finished_at timestamptz not null,
    attempt     int  not null,
    crashes     int  not null,
    state       text not null check (state in ('completed', 'completed_with_errors', 'failed', 'cancelled')),
    result      jsonb,
    errors      jsonb
);

-- Nearly free, since rows come in order of time; serves counts of the last hour beside years of history.
create index finished_time on {schema}.finished using brin (finished_at) with (autosummarize = on);
-- For lists of what went wrong; a job that is simply done pays nothing for it.
create index finished_unhappy on {schema}.finished (state collate "C", job_id) where state <> 'completed';

-- Every claim that was not the final one. Append-only, but for those that the same breaker has barred again and again.
create table {schema}.attempt (
    id         bigint generated always as identity primary key,
    job_id     uuid   not null,
    claim_id   bigint not null,
    worker_id  uuid,
    claimed_at timestamptz,
    ended_at   timestamptz not null,
    next_at    timestamptz,                   -- when it was to be tried again; null: at once
    attempt    int  not null,
    outcome    text not null,
    error      jsonb
);
create index attempt_job on {schema}.attempt (job_id);
create index attempt_time on {schema}.attempt using brin (ended_at) with (autosummarize = on);

-- A pipeline's steps, as far as they have come. With the claim that moved each last, so that a report which is repeated
-- counts nothing twice; null: it was cancelled while its job waited.
create table {schema}.phase (
    job_id     uuid not null,
    claim_id   bigint,
    started_at timestamptz,
    ended_at   timestamptz,
    position   int  not null,
    attempt    int  not null,
    name       text not null,
    state      text not null
               check (state in ('running', 'completed', 'skipped', 'failed', 'interrupted', 'cancelled')),
    result     jsonb,
    error      jsonb,
    primary key (job_id, name)
) with (fillfactor = 80);

-- How far a job has come, as its handler last said. Written often, so there is room on each page for the next version
-- of a row, and no index that would have to follow it.
create table {schema}.progress (
    job_id     uuid primary key,
    updated_at timestamptz not null,
    percent    double precision,
    overall    int,
    phase      text,
    message    text,
    items      jsonb
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

-- Finished jobs that retention will delete when their time is over. Watchers hear of it when told_at is set.
create table {schema}.stale (
    job_id   uuid primary key,
    stale_at timestamptz not null,
    told_at  timestamptz
);
create index stale_untold on {schema}.stale (stale_at) where told_at is null;
create index stale_told on {schema}.stale (told_at);

-- What is left, for a while, of a job that retention has deleted.
create table {schema}.tombstone (
    job_id     uuid primary key,
    deleted_at timestamptz not null,
    told_at    timestamptz,
    job        jsonb not null
);
create index tombstone_untold on {schema}.tombstone (deleted_at) where told_at is null;
create index tombstone_told on {schema}.tombstone (told_at);

-- A job that failed for good and waits for a person; it keeps all it needs when its job is retained away. What is
-- looked through is in columns, and its JSON is kept apart early, so that those stay close together.
create table {schema}.dead_letter (
    job_id         uuid primary key,
    died_at        timestamptz not null,
    created_at     timestamptz not null,      -- of the job
    reviewed_at    timestamptz,
    acknowledged_at timestamptz,
    closed_at      timestamptz,               -- when it was resolved or discarded; retention goes by it
    new_job_id     uuid,
    attempt        int  not null,
    max_attempts   int  not null,
    status         text not null default 'pending_review'
                   check (status in ('pending_review', 'acknowledged', 'reprocessing', 'resolved', 'discarded')),
    kind           text not null,
    queue          text not null,
    tenant         text,
    correlation_id text not null,
    unique_key     text,
    error_class    text,
    error_type     text,
    message        text,
    fingerprint    text,
    reviewed_by    text,
    acknowledged_by text,
    notes          text,
    resolution     text,
    job            jsonb not null,
    errors         jsonb,
    history        jsonb,
    check (status <> 'reprocessing' or new_job_id is not null)
) with (toast_tuple_target = 512);
-- For lists; conditional as job_line is, so that no look-up of an id walks along them.
create index dead_letter_time on {schema}.dead_letter (died_at, job_id) where kind <> '';
create index dead_letter_status on {schema}.dead_letter (status, died_at, job_id) where kind <> '';
create index dead_letter_kind on {schema}.dead_letter (kind, died_at, job_id) where kind <> '';
create index dead_letter_fingerprint on {schema}.dead_letter (fingerprint, died_at, job_id) where kind <> '';
create index dead_letter_tenant on {schema}.dead_letter (tenant, died_at, job_id) where tenant is not null;
create index dead_letter_reprocessing on {schema}.dead_letter (new_job_id) where status = 'reprocessing';
create index dead_letter_closed on {schema}.dead_letter (closed_at) where closed_at is not null;

create table {schema}.unique_key (
    tenant     text not null,                 -- '' for none
    kind       text not null,                 -- '' for a key across kinds
    key        text not null,
    job_id     uuid not null,
    expires_at timestamptz,
    scope      text not null check (scope in ('queued', 'active', 'window', 'forever')),
    primary key (tenant, kind, key)
);
-- Only keys that a claim or an end frees, so that the hot path probes next to nothing.
create index unique_key_queued on {schema}.unique_key (job_id) where scope = 'queued';
create index unique_key_active on {schema}.unique_key (job_id) where scope = 'active';
create index unique_key_window on {schema}.unique_key (expires_at) where scope = 'window';

-- Of scope breaker and probing, the name is a kind: its breaker is open, or half-open.
create table {schema}.pause (
    scope  text not null check (scope in ('queue', 'kind', 'lane', 'breaker', 'probing')),
    name   text collate "C" not null,
    since  timestamptz not null,
    by     text,
    reason text,
    primary key (scope, name)
);

create table {schema}.worker (
    id         uuid primary key,
    name       text not null,
    host       text not null,
    pid        int  not null,
    process_started text,  -- a mark of that process, which no other one has: on its host one sees whether it has ended
    started_at timestamptz not null,
    seen_at    timestamptz not null,
    expires_at timestamptz not null,
    lanes      jsonb not null,
    kinds      jsonb not null
);

create table {schema}.leader (
    name       text primary key,
    holder     uuid not null,
    term       bigint not null,
    expires_at timestamptz not null
);

create table {schema}.schedule (
    name        text primary key,
    kind        text not null,
    expression  text not null,
    timezone    text not null,
    catch_up    text not null,
    job         jsonb not null,
    next_at     timestamptz not null,
    last_at     timestamptz,
    last_job_id uuid,
    enabled     boolean not null default true
);

-- Endpoints that hear of jobs or alerts.
create table {schema}.webhook (
    name        text primary key,
    url         text    not null,
    kinds       text[],                       -- null: all
    states      text[]  not null,             -- empty: of no jobs
    alerts      boolean not null default false,
    enabled     boolean not null,
    disabled_at timestamptz,
    reason      text
);
-- So that a completion learns by one probe that nobody is to hear of it.
create index webhook_enabled on {schema}.webhook (name) where enabled and states <> '{}';

-- What is to be posted, or was: written in the transaction that makes a job final, or changes an alert. It outlives its
-- job.
create table {schema}.webhook_post (
    id         uuid primary key,
    job_id     uuid,                          -- null: it is about an alert
    created_at timestamptz not null,
    next_at    timestamptz,
    ended_at   timestamptz,
    updated_at timestamptz not null,
    attempts   int  not null,
    status     int,
    webhook    text,                          -- null: the job named its own URL
    url        text not null,
    event      text not null,
    state      text not null check (state in ('pending', 'delivered', 'failed')),
    error      text,
    tenant     text,
    data       jsonb not null
);
create index webhook_post_due on {schema}.webhook_post (next_at) where state = 'pending';
create index webhook_post_ended on {schema}.webhook_post (updated_at) where state <> 'pending';
create index webhook_post_job on {schema}.webhook_post (job_id);

-- Named locks for those who have no session of their own. A holder or waiter counts while its claim's lease lasts.
-- `key` is JSON, so that 7 and "7" are two names.
create table {schema}.lock (
    namespace text not null,
    key       text not null,
    job_id    uuid not null,
    claim_id  bigint not null,
    taken_at  timestamptz not null,
    primary key (namespace, key)
);
create table {schema}.lock_wait (
    namespace text not null,
    key       text not null,
    seq       bigint generated always as identity,
    job_id    uuid not null,
    claim_id  bigint not null,
    primary key (namespace, key, seq),
    unique (namespace, key, job_id, claim_id)
);

-- Processes that watch for events: only while there are any are the others told of news.
create table {schema}.listener (
    id         uuid primary key,
    expires_at timestamptz not null
);
