-- A job is one immutable row, its place is one row in a narrow table, its history is append-only.

create table {schema}.meta (key text primary key, value text not null);
-- Mixed into the numbers of advisory locks, because any role that may connect can take those: without the secret it
-- cannot compute which number a name has. Not in meta, which clients read.
create table {schema}.lock_secret (one boolean primary key default true check (one), value text not null);
insert into {schema}.lock_secret (value) values (gen_random_uuid()::text || gen_random_uuid());

-- What each column of table job accepts. In domains, because Postgres parses and plans the checks of a table again for
-- each statement: those of this table took two fifths of the CPU of storing one job.
-- Names are as long as in Python, because workers and lists hold them in memory. A check's name is what a caller in SQL
-- reads, so it says what is accepted.
create domain {schema}.job_kind as text
    constraint kind_has_1_to_200_characters check (value <> '' and length(value) <= 200);
create domain {schema}.job_queue as text
    constraint queue_has_1_to_200_characters check (value <> '' and length(value) <= 200);
create domain {schema}.job_tenant as text
    constraint tenant_is_not_a_star_and_has_1_to_200_characters
    check (value not in ('', '*') and length(value) <= 200);  -- which mean no tenant and all of them
create domain {schema}.job_correlation_id as text
    constraint correlation_id_has_at_most_200_characters check (length(value) <= 200);
create domain {schema}.job_run_at as timestamptz
    constraint run_at_is_in_the_years_1_to_9999
    check (value >= '0001-01-01 00:00+00' and value < '10000-01-01 00:00+00');  -- as Python's clock
create domain {schema}.job_priority as int constraint priority_is_0_or_more check (value >= 0);
create domain {schema}.job_max_attempts as int constraint max_attempts_is_1_or_more check (value >= 1);
create domain {schema}.job_payload as jsonb
    constraint payload_is_an_object check (jsonb_typeof(value) = 'object')
    -- Independent of a kind's rules, because one job must not fill a page of everyone's lists, or a claim. By its text,
    -- because 1e131071 is stored in 12 bytes and read as 131,072 digits; 1 KB holds too few of those unless it comes
    -- compressed from a table, and most payloads are as small.
    constraint job_payload_size check (pg_column_size(value) <= 1024 and pg_column_compression(value) is null
                                       or octet_length(value::text) <= 16 * 1024 * 1024);
create domain {schema}.job_subject as jsonb
    constraint subject_is_an_object check (jsonb_typeof(value) = 'object')
    -- 8 KB of JSON from Python, with the blanks that Postgres writes and some long numbers. The smallest, as of payloads.
    constraint job_subject_size check (pg_column_size(value) <= 256 and pg_column_compression(value) is null
                                       or octet_length(value::text) <= 64 * 1024);
create domain {schema}.job_created_by as text
    constraint created_by_has_at_most_200_characters check (length(value) <= 200);
create domain {schema}.job_options as jsonb
    constraint job_options_size check (pg_column_size(value) <= 256 and pg_column_compression(value) is null
                                       or octet_length(value::text) <= 64 * 1024);

-- The request. Never updated; deleted by retention only.
create table {schema}.job (
    id uuid primary key,  -- version 7, made by the client, so that enqueue can be repeated
    created_at timestamptz not null,
    run_at {schema}.job_run_at,  -- null: as soon as possible
    parent_id uuid, retry_of uuid, priority {schema}.job_priority not null,
    max_attempts {schema}.job_max_attempts not null, kind {schema}.job_kind not null, queue {schema}.job_queue not null,
    tenant {schema}.job_tenant,
    correlation_id {schema}.job_correlation_id,  -- null: its own id
    created_by {schema}.job_created_by, payload {schema}.job_payload not null, subject {schema}.job_subject,
    options {schema}.job_options
);
-- Roles that lock rows need the right to update one column, which is this one.
create function {schema}.refuse_new_id() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception 'a job keeps its id' using errcode = 'insufficient_privilege';
end $$;
create trigger job_keeps_id before update of id on {schema}.job
for each row when (old.id is distinct from new.id) execute function {schema}.refuse_new_id();
-- For lists; the collation makes comparing cheap. Kinds and queues are few, so a list by one of them is merged from its
-- pairs with the other, and jobs without a tenant or correlation id pay for one index only. Every job has a kind: the
-- condition keeps the planner from using the index to look up an id.
create index job_kind_queue on {schema}.job (kind collate "C", queue collate "C", id) where kind <> '';
create index job_tenant on {schema}.job (tenant collate "C", id) where tenant is not null;
create index job_correlation on {schema}.job (correlation_id collate "C", id) where correlation_id is not null;

-- `seq` orders a queue level (queue, priority) by when its jobs became due, the id by when they were made; see seq_at.
create sequence {schema}.claim_seq;

-- Due, waits for a slot. `attempt` counts those already spent.
create table {schema}.ready (
    seq bigint not null, job_id uuid primary key,
    priority int not null, attempt int not null, crashes int not null,
    queue text collate "C" not null, kind text collate "C" not null, tenant text
) with (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_threshold = -1,  -- what comes in goes out soon: only deletes call for a vacuum
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000,
    vacuum_truncate = off
);
-- Conditional as job_kind_queue is.
create index ready_order on {schema}.ready (queue, priority, seq, job_id) where kind <> '';
create index ready_suspect on {schema}.ready (queue, priority, seq, job_id) where crashes > 0;
-- For workers that serve some tenants only, so that they do not walk past the jobs of others.
create index ready_tenant on {schema}.ready (tenant, queue, priority, seq, job_id) where tenant is not null;

-- Waits for its time, as a retry does.
create table {schema}.scheduled (
    job_id uuid primary key,
    run_at timestamptz not null,
    priority int not null, attempt int not null, crashes int not null,
    queue text collate "C" not null, kind text collate "C" not null, tenant text
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, vacuum_truncate = off);
-- Without the id, so that no look-up of an id walks it.
create index scheduled_due on {schema}.scheduled (run_at);
-- Counts the jobs of one tenant, as blocked_tenant does; a job without a tenant pays nothing for it.
create index scheduled_tenant on {schema}.scheduled (tenant) where tenant is not null;

-- Waits for a gate: a pause, other jobs, …
create table {schema}.blocked (
    job_id uuid primary key,
    since timestamptz not null, run_at timestamptz,
    seq bigint,  -- at a pause or a breaker, the seq it keeps; null: it is not due yet
    priority int not null, attempt int not null, crashes int not null,
    gate text not null,  -- paused (a person, a breaker, or a limit not asked yet), breaker (rejected a call), limit, dependency, event
    key text collate "C" not null,  -- the kind, the breaker, the limit and its key, the event, or a job that it waits for
    queue text collate "C" not null, kind text collate "C" not null, tenant text
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, vacuum_truncate = off);
create index blocked_gate on {schema}.blocked (gate, key, seq);
create index blocked_due on {schema}.blocked (run_at, job_id) where gate = 'paused' and seq is null;
-- Due jobs in the order of the queue levels they return to, so that probing walks past none that is not due yet, or
-- whose tenant no worker serves. Conditional as job_kind_queue is, so that one tenant's jobs are not searched among
-- all.
create index blocked_level on {schema}.blocked (key, queue, priority, seq)
    where gate = 'paused' and seq is not null and kind <> '';
create index blocked_level_tenant on {schema}.blocked (tenant, key, queue, priority, seq)
    where gate = 'paused' and seq is not null and tenant is not null;
create index blocked_tenant on {schema}.blocked (tenant) where tenant is not null;
create index blocked_limit on {schema}.blocked (key, priority, seq, job_id) where gate = 'limit';
create index blocked_limit_kind on {schema}.blocked (kind) where gate = 'limit';
create index blocked_event_due on {schema}.blocked (run_at) where gate = 'event';

-- The last delivery of a job to a broker. A delivery is outstanding while the job is ready, has spent no attempt since,
-- and no worker has taken it from the broker.
create table {schema}.delivery (
    job_id uuid primary key,
    delivered_at timestamptz not null, number int not null, attempt int not null, taken boolean not null default false,
    backend_job_id text check (length(backend_job_id) <= 200)  -- null: the broker has not given one
) with (fillfactor = 70);

-- An edge, kept until job_id is deleted. `policy`: what happens to job_id if needs_id does not complete.
create table {schema}.dependency (
    job_id uuid not null, needs_id uuid not null,
    policy text not null default 'cancel' constraint dependency_policy check (policy in ('cancel', 'run', 'fail')),
    primary key (job_id, needs_id)
);
create index dependency_needs on {schema}.dependency (needs_id);

-- Running: held by a worker until expires_at; (job_id, claim_id) is the proof.
create table {schema}.lease (
    job_id uuid primary key,
    claim_id bigint not null, worker_id uuid not null,
    seq bigint not null,  -- it keeps this if it is released
    claimed_at timestamptz not null, expires_at timestamptz not null, cancel_requested_at timestamptz,
    attempt int not null,  -- this one included
    crashes int not null,
    cancel_reason text
) with (
    fillfactor = 90, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_threshold = -1,  -- what comes in goes out soon: only deletes call for a vacuum
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 1000000,
    vacuum_truncate = off
);
create index lease_expiry on {schema}.lease (expires_at);

-- What dequeue returns. A type of its own, because Postgres looks up the columns of `returns table` at each call.
create type {schema}.claimed_job as (
    job_id uuid, claim_id bigint, kind text, queue text, priority int, payload jsonb, attempt int, max_attempts int,
    crashes int, tenant text, correlation_id text, parent_id uuid, subject jsonb, options jsonb, seq bigint,
    expires_at timestamptz
);

-- Final, exactly once: the primary key makes a second end impossible. Append-only.
create table {schema}.finished (
    job_id uuid primary key,
    claim_id bigint,  -- null: it was cancelled while it waited
    worker_id uuid, claimed_at timestamptz, finished_at timestamptz not null, attempt int not null,
    crashes int not null,
    state text not null check (state in ('completed', 'completed_with_errors', 'failed', 'cancelled')),
    result jsonb,
    errors jsonb
);
-- Nearly free, because rows come in order of time; serves counts of the last hour beside years of history.
create index finished_time on {schema}.finished using brin (finished_at) with (autosummarize = on);
-- For lists of failures; a job that completed pays nothing for it.
create index finished_not_completed on {schema}.finished (state collate "C", job_id) where state <> 'completed';

-- Every claim that was not the final one. Append-only, except that consecutive rejections by one breaker are compacted.
create table {schema}.attempt (
    id bigint generated always as identity primary key,
    job_id uuid not null, claim_id bigint not null, worker_id uuid, claimed_at timestamptz,
    ended_at timestamptz not null,
    next_at timestamptz,  -- when it was to be tried again; null: at once
    attempt int not null, outcome text not null,
    error jsonb
);
create index attempt_job on {schema}.attempt (job_id);
create index attempt_time on {schema}.attempt using brin (ended_at) with (autosummarize = on);

-- The phases of a pipeline that were reached. claim_id is the claim that wrote the row last, so that a repeated report
-- counts nothing twice; null: it was cancelled while its job waited.
create table {schema}.phase (
    job_id uuid not null, claim_id bigint, started_at timestamptz, ended_at timestamptz, position int not null,
    attempt int not null, name text not null,
    state text not null
               check (state in ('running', 'completed', 'skipped', 'failed', 'interrupted', 'cancelled')),
    result jsonb, error jsonb, progress jsonb,  -- progress: the last report before it ended
    primary key (job_id, name)
) with (fillfactor = 80);

-- The steps of a job whose results are stored, and those that wait. claim_id is the claim that wrote the row last.
create table {schema}.step (
    job_id uuid not null, claim_id bigint not null, started_at timestamptz not null, ended_at timestamptz,
    due_at timestamptz,  -- the end of a sleep, or of the wait for an event
    received bigint,  -- the seq of the event that it got
    position int not null, name text not null,
    kind text not null check (kind in ('call', 'sleep', 'event')),
    state text not null check (state in ('done', 'waiting', 'timed_out')),
    code text not null, fingerprint text not null,
    event text collate "C", key text collate "C", of_tenant text,  -- of the job, '' for none
    result jsonb,
    primary key (job_id, name)
);
create index step_waiting on {schema}.step (event, key, of_tenant) where state = 'waiting' and event is not null;

-- Events that were sent to jobs which wait for them, or will.
create table {schema}.sent_event (
    seq bigint generated always as identity primary key, id uuid not null unique, sent_at timestamptz not null,
    expires_at timestamptz not null check (expires_at < '9999-12-30Z'),  -- what Python can read
    delivered boolean not null default false,
    name text collate "C" not null check (name <> '' and length(name) <= 200),
    key text collate "C" not null check (key <> '' and length(key) <= 200),
    tenant {schema}.job_tenant, by text check (length(by) <= 200),
    data jsonb check (octet_length(data::text) <= 16 * 1024 * 1024)  -- as of payloads
);
create index sent_event_key on {schema}.sent_event (name, key, coalesce(tenant, ''), seq);
create index sent_event_undelivered on {schema}.sent_event (seq) where not delivered;
create index sent_event_expiry on {schema}.sent_event (expires_at);

-- Without rows: locked by waits for an event that begin, which share it, and by deliveries. Any role that may connect can
-- keep an advisory lock from them, but not a lock of this table.
create table {schema}.event_turn ();

-- A job's progress, as its handler last reported. Written often, so each page has room for the next version of a row,
-- and no index has to follow it.
create table {schema}.progress (
    job_id uuid primary key, updated_at timestamptz not null, percent double precision, overall int, phase text,
    message text, items jsonb
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

-- Finished jobs that retention is about to delete. The event is published from sent_at on.
create table {schema}.stale (job_id uuid primary key, stale_at timestamptz not null, sent_at timestamptz);
create index stale_unsent on {schema}.stale (stale_at) where sent_at is null;
create index stale_sent on {schema}.stale (sent_at);

-- Kept for an hour of a job that retention has deleted, so that watchers see the event.
create table {schema}.tombstone (
    job_id uuid primary key, deleted_at timestamptz not null, sent_at timestamptz, job jsonb not null
);
create index tombstone_unsent on {schema}.tombstone (deleted_at) where sent_at is null;
create index tombstone_sent on {schema}.tombstone (sent_at);

-- A job that failed for good and waits for a person; complete, because retention may delete the job. What filters read
-- is in columns, and JSON is stored out of line early, so that the columns stay close together.
create table {schema}.dead_letter (
    job_id uuid primary key,
    died_at timestamptz not null,
    created_at timestamptz not null,  -- of the job
    reviewed_at timestamptz, acknowledged_at timestamptz,
    closed_at timestamptz,  -- when it was resolved or discarded; retention goes by it
    new_job_id uuid, attempt int not null, max_attempts int not null,
    status text not null default 'pending_review'
                   check (status in ('pending_review', 'acknowledged', 'reprocessing', 'resolved', 'discarded')),
    kind text not null, queue text not null, tenant text, correlation_id text not null,
    unique_key text,
    error_class text, error_type text, message text, fingerprint text, reviewed_by text, acknowledged_by text,
    notes text, resolution text, job jsonb not null, errors jsonb, history jsonb,
    check (status <> 'reprocessing' or new_job_id is not null)
) with (toast_tuple_target = 512);
-- For lists; conditional as job_kind_queue is, so that no look-up of an id walks them.
create index dead_letter_time on {schema}.dead_letter (died_at, job_id) where kind <> '';
create index dead_letter_status on {schema}.dead_letter (status, died_at, job_id) where kind <> '';
create index dead_letter_kind on {schema}.dead_letter (kind, died_at, job_id) where kind <> '';
create index dead_letter_fingerprint on {schema}.dead_letter (fingerprint, died_at, job_id) where kind <> '';
create index dead_letter_tenant on {schema}.dead_letter (tenant, died_at, job_id) where tenant is not null;
create index dead_letter_reprocessing on {schema}.dead_letter (new_job_id) where status = 'reprocessing';
create index dead_letter_closed on {schema}.dead_letter (closed_at) where closed_at is not null;

create table {schema}.unique_key (
    tenant text not null,  -- '' for none
    kind text not null,  -- '' for a key across kinds
    key text not null, job_id uuid not null, expires_at timestamptz,
    scope text not null check (scope in ('queued', 'active', 'window', 'forever')),
    primary key (tenant, kind, key),
    constraint unique_key_expires check ((scope = 'window') = (expires_at is not null))
);
-- Only keys that a claim or an end frees, so that the hot path reads next to nothing.
create index unique_key_queued on {schema}.unique_key (job_id) where scope = 'queued';
create index unique_key_active on {schema}.unique_key (job_id) where scope = 'active';
create index unique_key_window on {schema}.unique_key (expires_at) where scope = 'window';

-- With scope breaker or probing, the name is a kind whose breaker is open, or half-open; with scope limited, a kind whose
-- jobs become ready one by one, as its limits admit them.
create table {schema}.pause (
    scope text not null check (scope in ('queue', 'kind', 'lane', 'breaker', 'probing', 'limited')),
    name text collate "C" not null,
    since timestamptz not null check (since between '0001-01-02Z' and '9999-12-30Z'),  -- what Python can read
    by text, reason text,
    primary key (scope, name)
);

create table {schema}.worker (
    id uuid primary key,
    name text not null check (length(name) <= 500), host text not null check (length(host) <= 500), pid int not null,
    process_started text,  -- identifies the process: on its host one can see whether it has ended
    started_at timestamptz not null check (started_at between '0001-01-02Z' and '9999-12-30Z'),
    seen_at timestamptz not null check (seen_at between '0001-01-02Z' and '9999-12-30Z'),
    expires_at timestamptz not null,
    lanes jsonb not null check (jsonb_typeof(lanes) = 'object'),
    kinds jsonb not null check (jsonb_typeof(kinds) = 'array'),
    locks text  -- how it keeps its locks: those of one fleet must agree
);

create table {schema}.leader (
    name text primary key, holder uuid not null, term bigint not null, expires_at timestamptz not null,
    next_by timestamptz not null,  -- if there is no survey until then, the database may have been away
    rescue_from timestamptz not null  -- before this, workers that live may not have renewed their leases
);

create table {schema}.schedule (
    name text primary key,
    kind text not null, expression text not null, timezone text not null, catch_up text not null,
    job jsonb not null check (jsonb_typeof(job) = 'object'),
    next_at timestamptz not null check (next_at between '0001-01-02Z' and '9999-12-30Z'),
    last_at timestamptz check (last_at between '0001-01-02Z' and '9999-12-30Z'), last_job_id uuid,
    enabled boolean not null default true
);

-- Endpoints to which ends of jobs or alerts are posted.
create table {schema}.webhook (
    name text primary key,
    url text not null,
    kinds text[],  -- null: all
    states text[] not null,  -- empty: of no jobs
    alerts boolean not null default false, enabled boolean not null, disabled_at timestamptz,
    reason text
);
-- So that a completion learns by one look-up that nothing has to be posted.
create index webhook_enabled on {schema}.webhook (name) where enabled and states <> '{}';

-- The outbox: written in the transaction that makes a job final, or changes an alert. A post outlives its job.
create table {schema}.webhook_post (
    id uuid primary key,
    job_id uuid,  -- null: it is about an alert
    created_at timestamptz not null, next_at timestamptz, ended_at timestamptz, updated_at timestamptz not null,
    attempts int not null, status int,
    webhook text,  -- null: the job named its own URL
    url text not null, event text not null,
    state text not null check (state in ('pending', 'delivered', 'failed')),
    error text, tenant text,
    data jsonb not null
);
create index webhook_post_due on {schema}.webhook_post (next_at) where state = 'pending';
create index webhook_post_ended on {schema}.webhook_post (updated_at) where state <> 'pending';
create index webhook_post_job on {schema}.webhook_post (job_id);

-- Named locks for workers without a session of their own. A holder or waiter counts while its claim's lease lasts.
-- `key` is JSON, so that 7 and "7" are two names.
create table {schema}.lock (
    namespace text not null, key text not null, job_id uuid not null, claim_id bigint not null,
    taken_at timestamptz not null,
    primary key (namespace, key)
);

create table {schema}.lock_wait (
    namespace text not null, key text not null, seq bigint generated always as identity, job_id uuid not null,
    claim_id bigint not null,
    primary key (namespace, key, seq),
    unique (namespace, key, job_id, claim_id)
);

-- Processes that watch for events: others notify only while there are any.
create table {schema}.listener (id uuid primary key, expires_at timestamptz not null);

-- One act on all dead letters that a filter finds. The transaction that advances the cursor has done that step.
create table {schema}.bulk_run (
    id uuid primary key,
    created_at timestamptz not null check (created_at between '0001-01-02Z' and '9999-12-30Z'),
    ended_at timestamptz check (ended_at between '0001-01-02Z' and '9999-12-30Z'),
    cursor_died_at timestamptz, cursor_id uuid,
    total bigint not null, done bigint not null, skipped bigint not null,
    act text not null check (act in ('acknowledge', 'reprocess', 'resolve', 'discard')),
    state text not null check (state in ('running', 'done', 'stopped')),
    -- As the audit trail takes them: each step of the run writes them there.
    by text not null check (length(by) <= 200), role text check (role in ('viewer', 'staff', 'manager', 'admin')),
    origin text not null check (origin in ('cli', 'api', 'python', 'service', 'sql')),
    tenant text check (length(tenant) <= 200),  -- of its filter
    reason text check (length(reason) <= 2000),
    filter jsonb not null check (octet_length(filter::text) <= 65536)
);
create index bulk_run_running on {schema}.bulk_run (id) where state = 'running';
create index bulk_run_ended on {schema}.bulk_run (ended_at) where ended_at is not null;

-- Appended freely, sealed in order, never changed. An anchor stands for what retention deletes from the beginning.
create table {schema}.audit_event (
    id uuid primary key,  -- version 7
    act uuid not null,
    at timestamptz not null check (at between '2000-01-01Z' and '9000-01-01Z'),  -- what every client can read
    -- Limits, because each is kept for good, and read by all who list or verify the trail.
    principal text not null check (length(principal) <= 200),
    role text check (role in ('viewer', 'staff', 'manager', 'admin')),
    origin text not null check (origin in ('cli', 'api', 'python', 'service', 'sql')),
    action text not null check (length(action) <= 200),
    outcome text not null check (outcome in ('requested', 'succeeded', 'failed', 'refused')),
    target text check (length(target) <= 500), tenant text check (length(tenant) <= 200),
    reason text check (length(reason) <= 2000), address text check (length(address) <= 200),
    -- json keeps numbers as they were written, so that hashes hold.
    before json check (octet_length(before::text) <= 65536), after json check (octet_length(after::text) <= 65536)
);
create index audit_event_at on {schema}.audit_event (at);
create index audit_event_act on {schema}.audit_event (act);
create index audit_event_principal on {schema}.audit_event (principal, id);
create index audit_event_target on {schema}.audit_event (target, id);
create index audit_event_tenant on {schema}.audit_event (tenant, id) where tenant is not null;

-- Events that wait for their seal.
create table {schema}.audit_unsealed (event_id uuid primary key);

create table {schema}.audit_seal (seq bigint primary key, event_id uuid not null unique, hash text not null);

create table {schema}.audit_anchor (
    one boolean primary key default true check (one), seq bigint not null, hash text not null, at timestamptz not null,
    keep interval not null, trimmed_at timestamptz not null  -- the policy, and the time, by which `at` was old enough
);

-- How long events are kept; null: for good. Only the owner writes it, so that a role that may trim cannot trim younger
-- ones. Its one row is locked by every change of the chain. No months: '1 month -29 days' compares as a day, and may be
-- less than none.
create table {schema}.audit_policy (
    one boolean primary key default true check (one),
    keep interval constraint audit_policy_keep_check
                  check (keep between '1 day' and '36600 days' and date_trunc('month', keep) = '0')
);

insert into {schema}.audit_policy (keep) values (null);

revoke all on {schema}.audit_event, {schema}.audit_unsealed, {schema}.audit_seal, {schema}.audit_anchor,
    {schema}.audit_policy from public;

-- Tokens of the admin API. Only a hash of the secret is kept, and no statement returns it.
create table {schema}.api_token (
    id uuid primary key,
    created_at timestamptz not null, expires_at timestamptz, revoked_at timestamptz, last_used_at timestamptz,
    hash text not null unique,
    name text not null, role text not null, created_by text not null,
    tenant text
);

revoke all on {schema}.api_token from public;

-- Bound to the role itself, because a new role of the same name is another one.
create table {schema}.tenant_role (
    role regrole not null, tenant text not null check (tenant not in ('', '*')),
    primary key (role, tenant)
);

-- What can be checked of payloads without the kind's code.
create table {schema}.payload_rule (
    kind text primary key,
    size_limit int not null,  -- in bytes, without blanks
    required text[] not null,
    versions text[] not null,  -- those accepted, the current one last; none: there are no versions
    version_field text not null, default_version text,
    tenant_field text,  -- payload fields that set these of the job
    correlation_field text,
    unique_field text,
    unique_as jsonb,  -- scope, on_conflict, window_ms, across_kinds
    allowed text[] not null default '{}',  -- names that only look sensitive, and more that are; words joined by _
    forbidden text[] not null default '{}',
    fields jsonb not null default '[]',  -- [{name, type, nullable, required}], as type_problem knows types
    known text[],  -- the names that a payload may have; null: any
    sealed boolean not null default false  -- the kind is encrypted
);

-- What kinds declare for their jobs, for those that are enqueued by SQL. A kind that is not here has the defaults of
-- insert_jobs.
create table {schema}.kind_default (
    kind text primary key, queue text not null, priority int not null, max_attempts int not null,
    unique_as jsonb  -- key, scope, on_conflict, window_ms, across_kinds
);

-- The policy is that of the last caller.
create table {schema}.breaker (
    name text collate "C" primary key,
    version bigint not null default 1,
    state text not null default 'closed' check (state in ('closed', 'open', 'half_open')),
    failures int not null default 0, successes int not null default 0, neutral int not null default 0,
    round bigint not null default 0, trips bigint not null default 0,
    failures_allowed int not null check (failures_allowed between 1 and 1000000),
    open_for interval not null check (open_for between '10 milliseconds' and '365 days'),
    probes int not null check (probes between 1 and 1000000), last_failure_at timestamptz, opened_at timestamptz,
    open_until timestamptz, half_opened_at timestamptz,
    updated_at timestamptz not null
);

-- The probes of a breaker's round. One counts for as long as its claim's lease; without a claim, the job was admitted
-- at `since`, and counts while it runs, or is ready and its turn is not over.
create table {schema}.breaker_probe (
    breaker text collate "C" not null, job_id uuid not null, round bigint not null, claim_id bigint,
    since timestamptz not null,
    primary key (breaker, job_id)
);

create table {schema}.breaker_kind (kind text collate "C" primary key, breaker text collate "C" not null);
create index breaker_kind_breaker on {schema}.breaker_kind (breaker, kind);

-- How many jobs with one key may run at once or, with `per`, start within that time.
create table {schema}.limit_rule (
    name text collate "C" primary key,
    most int not null check (most >= 1),
    per interval check (per between '10 milliseconds' and '366 days'),
    burst int check (burst >= 1),  -- so many may start together; null: `most`
    fixed boolean not null,  -- windows begin at multiples of `per`; false: they slide
    feedback boolean not null,  -- a service that asks to wait holds its key
    chosen int check (chosen >= 0)  -- instead of `most`, by an operator; 0: none may start
);

create table {schema}.limit_kind (
    kind text collate "C" not null, name text collate "C" not null,
    field text,  -- the payload's field that is the key of jobs that do not name one
    primary key (kind, name)
);
create index limit_kind_name on {schema}.limit_kind (name);

-- What admitted jobs take of a limit: while they are ready or run or, with `per`, for that time after they started.
create table {schema}.limit_slot (
    id bigint generated always as identity primary key, job_id uuid not null, admitted_at timestamptz not null,
    started_at timestamptz,  -- known of starts that a limit with `per` counts
    name text collate "C" not null, key text collate "C" not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, vacuum_truncate = off);
create index limit_slot_key on {schema}.limit_slot (name, key);
create index limit_slot_job on {schema}.limit_slot (job_id);
create index limit_slot_open on {schema}.limit_slot (id) where started_at is null;
create index limit_slot_started on {schema}.limit_slot (name, started_at) where started_at is not null;

-- Keys of limits with feedback whose service has asked to wait.
create table {schema}.limit_hold (
    name text collate "C" not null, key text collate "C" not null, until timestamptz not null, primary key (name, key)
);

-- What job_metrics shows of jobs that retention has deleted, by the hour of their end.
create table {schema}.deleted_jobs (
    hour timestamptz not null, jobs bigint not null, claimed bigint not null, wait_microseconds bigint not null,
    run_microseconds bigint not null, run_most bigint not null, kind text not null, state text not null,
    tenant text not null,  -- '' for none
    primary key (hour, kind, state, tenant)
);

-- How much more than others a tenant gets in fair lanes; without a row 1.
create table {schema}.share (tenant text primary key, weight int not null check (weight between 1 and 1000));

-- Counters of all time, by kind and outcome. A sketch (run, wait) is JSON: how many by the number of their bucket. None
-- of the counter tables belongs to a tenant.
create table {schema}.counter_total (
    count bigint not null, payload_bytes bigint not null, payload_most bigint not null,
    run_microseconds bigint not null, wait_microseconds bigint not null, kind text not null,
    outcome text not null, run jsonb not null, wait jsonb not null,
    primary key (kind, outcome)
) with (fillfactor = 50);

create table {schema}.counter_minute (
    minute timestamptz not null,  -- when it began
    like {schema}.counter_total,
    primary key (minute, kind, outcome)
) with (fillfactor = 70);

create table {schema}.counter_hour (
    hour timestamptz not null,
    like {schema}.counter_total,
    primary key (hour, kind, outcome)
) with (fillfactor = 70);

-- The last attempts of each kind, by minute: as many as its error rate is computed from.
create table {schema}.counter_last (
    kind text not null, minute timestamptz not null, count bigint not null, failed bigint not null,
    primary key (kind, minute)
) with (fillfactor = 50);

-- As workers hand them over; rolled up into minutes, hours and totals soon after.
create table {schema}.counter (
    worker_id uuid not null, turn bigint not null, at timestamptz not null,
    like {schema}.counter_total,
    primary key (worker_id, turn, kind, outcome)
);

-- The last turn of each worker, so that one that is repeated after its roll-up counts nothing twice.
create table {schema}.counter_turn (
    worker_id uuid primary key, turn bigint not null, at timestamptz not null
) with (fillfactor = 50);

-- An estimate of a queue's jobs of one kind: how many there are, the sum of the squares of what each window stands for,
-- how many were seen, and through how many windows (0: all were counted).
create type {schema}.depth_sample as (
    queue text, kind text, jobs double precision, squares double precision, seen bigint, windows int
);

-- The state of each rule for each series of its metric. One that never was beyond its threshold has no row.
create table {schema}.alert (
    rule text not null, series text not null,
    state text not null check (state in ('ok', 'pending', 'firing')),
    value double precision, since timestamptz not null check (since between '0001-01-02Z' and '9999-12-30Z'),
    calm_since timestamptz check (calm_since between '0001-01-02Z' and '9999-12-30Z'),
    fired_at timestamptz check (fired_at between '0001-01-02Z' and '9999-12-30Z'),
    cleared_at timestamptz check (cleared_at between '0001-01-02Z' and '9999-12-30Z'), summary text not null,
    primary key (rule, series)
);

-- When alerts were last checked, and until when the next check is due: one row.
create table {schema}.alert_check (
    only_one boolean primary key default true check (only_one), at timestamptz not null, until timestamptz not null
);
