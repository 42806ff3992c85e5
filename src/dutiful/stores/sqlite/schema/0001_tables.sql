-- The job as it was enqueued is one immutable row; where it stands is one row in a narrow table; what happened is
-- append-only. Ids are UUIDs of 16 bytes, times are microseconds since 1970 in UTC, JSON is text. The names have a
-- prefix because the file may hold its user's tables as well.

CREATE TABLE dutiful_job (
    id BLOB NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    kind TEXT NOT NULL CHECK (length(kind) <= 200), queue TEXT NOT NULL CHECK (length(queue) <= 200),
    priority INTEGER NOT NULL CHECK (priority >= 0),
    max_attempts INTEGER NOT NULL CHECK (max_attempts >= 1),
    run_at INTEGER CHECK (run_at BETWEEN -62135596800000000 AND 253402300799999999),  -- as Python's clock
    tenant TEXT CHECK (tenant NOT IN ('', '*') AND length(tenant) <= 200),  -- which stand for none, and for any
    created_at INTEGER NOT NULL, correlation_id TEXT CHECK (length(correlation_id) <= 200), parent_id BLOB, retry_of BLOB, created_by TEXT, options TEXT,
    subject TEXT CONSTRAINT job_subject_size CHECK (length(CAST(subject AS BLOB)) <= 65536),
    payload TEXT NOT NULL  -- last, because SQLite reads through it to what comes after, however long it is
) STRICT, WITHOUT ROWID;

-- For lists by kind, by queue and by both: a list by one of them is merged from its pairs with the other.
CREATE INDEX dutiful_job_kind_queue ON dutiful_job (kind, queue, id);
CREATE INDEX dutiful_job_correlation ON dutiful_job (correlation_id, id) WHERE correlation_id IS NOT NULL;
CREATE INDEX dutiful_job_tenant ON dutiful_job (tenant, id) WHERE tenant IS NOT NULL;
CREATE INDEX dutiful_job_parent ON dutiful_job (parent_id) WHERE parent_id IS NOT NULL;

-- The places of a live job --------------------------------------------------------------------------------------------
CREATE TABLE dutiful_ready (
    queue TEXT NOT NULL, priority INTEGER NOT NULL, seq INTEGER NOT NULL, job_id BLOB NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0, crashes INTEGER NOT NULL DEFAULT 0, kind TEXT NOT NULL, tenant TEXT,
    PRIMARY KEY (queue, priority, seq, job_id)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX dutiful_ready_job ON dutiful_ready (job_id);
CREATE INDEX dutiful_ready_suspect ON dutiful_ready (queue, priority, seq) WHERE crashes > 0;
CREATE INDEX dutiful_ready_tenant ON dutiful_ready (tenant, queue, priority, seq) WHERE tenant IS NOT NULL;

-- This one and the next have row numbers, along which they are sampled when there are too many to count.
CREATE TABLE dutiful_scheduled (
    run_at INTEGER NOT NULL, job_id BLOB NOT NULL, queue TEXT NOT NULL, priority INTEGER NOT NULL,
    kind TEXT NOT NULL, tenant TEXT, attempt INTEGER NOT NULL DEFAULT 0, crashes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_at, job_id)
) STRICT;

CREATE UNIQUE INDEX dutiful_scheduled_job ON dutiful_scheduled (job_id);
-- To count the jobs of one tenant, as dutiful_blocked_tenant does; a job that has none costs it nothing.
CREATE INDEX dutiful_scheduled_tenant ON dutiful_scheduled (tenant) WHERE tenant IS NOT NULL;

CREATE TABLE dutiful_blocked (
    job_id BLOB NOT NULL PRIMARY KEY,
    gate TEXT NOT NULL, key TEXT, queue TEXT NOT NULL, priority INTEGER NOT NULL, kind TEXT NOT NULL,
    tenant TEXT, attempt INTEGER NOT NULL DEFAULT 0, crashes INTEGER NOT NULL DEFAULT 0, run_at INTEGER,
    since INTEGER NOT NULL,
    seq INTEGER  -- at a pause or a breaker, its position; null: it is not due yet
) STRICT;

CREATE INDEX dutiful_blocked_gate ON dutiful_blocked (gate, key, seq);
CREATE INDEX dutiful_blocked_due ON dutiful_blocked (run_at, job_id) WHERE gate = 'paused' AND seq IS NULL;
CREATE INDEX dutiful_blocked_tenant ON dutiful_blocked (tenant) WHERE tenant IS NOT NULL;
-- What waits and is due, in the order in which it would be claimed: probes are found without a walk past jobs that are
-- not due yet, or belong to tenants that no worker serves.
CREATE INDEX dutiful_blocked_level ON dutiful_blocked (key, queue, priority, seq)
WHERE gate = 'paused' AND seq IS NOT NULL;
CREATE INDEX dutiful_blocked_level_tenant ON dutiful_blocked (tenant, key, queue, priority, seq)
WHERE gate = 'paused' AND seq IS NOT NULL AND tenant IS NOT NULL;

CREATE INDEX dutiful_blocked_limit ON dutiful_blocked (key, priority, seq, job_id) WHERE gate = 'limit';
CREATE INDEX dutiful_blocked_limit_kind ON dutiful_blocked (kind) WHERE gate = 'limit';
CREATE INDEX dutiful_blocked_event_due ON dutiful_blocked (run_at) WHERE gate = 'event';

-- An edge, kept until job_id is deleted. policy: what happens to job_id if needs_id does not complete.
CREATE TABLE dutiful_dependency (
    job_id BLOB NOT NULL, needs_id BLOB NOT NULL,
    policy TEXT NOT NULL DEFAULT 'cancel' CHECK (policy IN ('cancel', 'run', 'fail')),
    PRIMARY KEY (job_id, needs_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_dependency_needs ON dutiful_dependency (needs_id);

CREATE TABLE dutiful_lease (
    job_id BLOB NOT NULL PRIMARY KEY,
    claim_id INTEGER NOT NULL, worker_id BLOB NOT NULL, attempt INTEGER NOT NULL, crashes INTEGER NOT NULL,
    seq INTEGER NOT NULL, claimed_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, cancel_requested_at INTEGER,
    cancel_reason TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_lease_expiry ON dutiful_lease (expires_at);

-- What happened -------------------------------------------------------------------------------------------------------
CREATE TABLE dutiful_finished (
    job_id BLOB NOT NULL PRIMARY KEY,
    claim_id INTEGER,
    state TEXT NOT NULL CHECK (state IN ('completed', 'completed_with_errors', 'failed', 'cancelled')),
    attempt INTEGER NOT NULL, crashes INTEGER NOT NULL, worker_id BLOB, claimed_at INTEGER,
    finished_at INTEGER NOT NULL, errors TEXT,
    result TEXT  -- last, as a job's payload
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_finished_time ON dutiful_finished (finished_at, state);
CREATE INDEX dutiful_finished_not_completed ON dutiful_finished (state, job_id) WHERE state <> 'completed';

CREATE TABLE dutiful_attempt (
    id INTEGER PRIMARY KEY,
    job_id BLOB NOT NULL, claim_id INTEGER NOT NULL, attempt INTEGER NOT NULL, outcome TEXT NOT NULL,
    worker_id BLOB, claimed_at INTEGER, ended_at INTEGER NOT NULL,
    next_at INTEGER,  -- when it was to be tried again; null: at once
    error TEXT
) STRICT;

CREATE INDEX dutiful_attempt_job ON dutiful_attempt (job_id);
CREATE INDEX dutiful_attempt_time ON dutiful_attempt (ended_at);

CREATE TABLE dutiful_phase (
    job_id BLOB NOT NULL, name TEXT NOT NULL, position INTEGER NOT NULL,
    state TEXT NOT NULL
               CHECK (state IN ('running', 'completed', 'skipped', 'failed', 'interrupted', 'cancelled')),
    attempt INTEGER NOT NULL, started_at INTEGER, ended_at INTEGER, result TEXT, error TEXT,
    progress TEXT,  -- the last report before it ended
    PRIMARY KEY (job_id, name)
) STRICT, WITHOUT ROWID;

-- The steps of a job whose results are stored, and those that wait.
CREATE TABLE dutiful_step (
    job_id BLOB NOT NULL, name TEXT NOT NULL, position INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('call', 'sleep', 'event')),
    state TEXT NOT NULL CHECK (state IN ('done', 'waiting', 'timed_out')),
    code TEXT NOT NULL, fingerprint TEXT NOT NULL, started_at INTEGER NOT NULL, ended_at INTEGER,
    due_at INTEGER,  -- the end of a sleep, or of the wait for an event
    event TEXT, key TEXT,
    of_tenant TEXT,  -- of the job, '' for none
    received INTEGER,  -- the seq of the event that it got
    result TEXT,
    PRIMARY KEY (job_id, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_step_waiting ON dutiful_step (event, key, of_tenant) WHERE state = 'waiting' AND event IS NOT NULL;

-- Events that were sent to jobs which wait for them, or will.
CREATE TABLE dutiful_sent_event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL UNIQUE, name TEXT NOT NULL, key TEXT NOT NULL, tenant TEXT, by TEXT, sent_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, delivered INTEGER NOT NULL DEFAULT 0, data TEXT
) STRICT;

CREATE INDEX dutiful_sent_event_key ON dutiful_sent_event (name, key, coalesce(tenant, ''), seq);
CREATE INDEX dutiful_sent_event_undelivered ON dutiful_sent_event (seq) WHERE delivered = 0;
CREATE INDEX dutiful_sent_event_expiry ON dutiful_sent_event (expires_at);

CREATE TABLE dutiful_progress (
    job_id BLOB NOT NULL PRIMARY KEY,
    phase TEXT, percent REAL, overall INTEGER, message TEXT, items TEXT,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Retention and events ------------------------------------------------------------------------------------------------
-- sent_at: when the notice of it was sent; its event is published from then on.
-- The last delivery of a job to a broker. A delivery is outstanding while the job is ready, has spent no attempt since,
-- and no worker has taken it from the broker.
CREATE TABLE dutiful_delivery (
    job_id BLOB NOT NULL PRIMARY KEY,
    backend_job_id TEXT CHECK (length(backend_job_id) <= 200), number INTEGER NOT NULL,
    attempt INTEGER NOT NULL, delivered_at INTEGER NOT NULL, taken INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_stale (
    job_id BLOB NOT NULL PRIMARY KEY,
    stale_at INTEGER NOT NULL,
    sent_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_stale_sent ON dutiful_stale (sent_at, stale_at);

CREATE TABLE dutiful_tombstone (
    job_id BLOB NOT NULL PRIMARY KEY,
    job TEXT NOT NULL, deleted_at INTEGER NOT NULL,
    sent_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_tombstone_sent ON dutiful_tombstone (sent_at, deleted_at);

CREATE TABLE dutiful_listener (id BLOB NOT NULL PRIMARY KEY, expires_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- Dead letters and bulk runs over them --------------------------------------------------------------------------------
-- A dead letter outlives its job. What is wide and never changes stands apart, because people search the rest.
CREATE TABLE dutiful_dead_letter (
    job_id BLOB NOT NULL PRIMARY KEY,
    status TEXT NOT NULL DEFAULT 'pending_review'
                   CHECK (status IN ('pending_review', 'acknowledged', 'reprocessing', 'resolved', 'discarded')),
    died_at INTEGER NOT NULL, kind TEXT NOT NULL, queue TEXT NOT NULL, tenant TEXT,
    correlation_id TEXT NOT NULL, unique_key TEXT, created_at INTEGER NOT NULL, attempt INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL, error_class TEXT, error_type TEXT, fingerprint TEXT, message TEXT,
    reviewed_by TEXT, reviewed_at INTEGER, acknowledged_by TEXT, acknowledged_at INTEGER, closed_at INTEGER,
    new_job_id BLOB, resolution TEXT,
    notes TEXT
) STRICT;

CREATE TABLE dutiful_dead_letter_body (
    job_id BLOB NOT NULL PRIMARY KEY,
    job TEXT NOT NULL, errors TEXT NOT NULL,
    history TEXT NOT NULL
) STRICT;

-- One for each way in which people search them, the newest first.
CREATE INDEX dutiful_dead_letter_time ON dutiful_dead_letter (died_at, job_id);
CREATE INDEX dutiful_dead_letter_status ON dutiful_dead_letter (status, died_at, job_id);
CREATE INDEX dutiful_dead_letter_kind ON dutiful_dead_letter (kind, died_at, job_id);
CREATE INDEX dutiful_dead_letter_tenant ON dutiful_dead_letter (tenant, died_at, job_id) WHERE tenant IS NOT NULL;
CREATE INDEX dutiful_dead_letter_fingerprint ON dutiful_dead_letter (fingerprint, died_at, job_id);
CREATE INDEX dutiful_dead_letter_correlation ON dutiful_dead_letter (correlation_id, died_at, job_id);
CREATE INDEX dutiful_dead_letter_reprocessing ON dutiful_dead_letter (new_job_id, job_id)
    WHERE status = 'reprocessing';
CREATE INDEX dutiful_dead_letter_closed ON dutiful_dead_letter (closed_at) WHERE closed_at IS NOT NULL;

CREATE TABLE dutiful_bulk_run (
    id BLOB NOT NULL PRIMARY KEY,
    -- As the audit trail takes them: each step of the run writes them there.
    act TEXT NOT NULL, filter TEXT NOT NULL CHECK (length(CAST(filter AS BLOB)) <= 65536),
    by TEXT NOT NULL CHECK (length(by) <= 200), role TEXT CHECK (role IN ('viewer', 'staff', 'manager', 'admin')),
    origin TEXT NOT NULL CHECK (origin IN ('cli', 'api', 'python', 'service', 'sql')),
    reason TEXT CHECK (length(reason) <= 2000),
    created_at INTEGER NOT NULL, total INTEGER NOT NULL, done INTEGER NOT NULL DEFAULT 0,
    skipped INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'done', 'stopped')),
    cursor_died_at INTEGER, cursor_id BLOB,
    ended_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_bulk_run_time ON dutiful_bulk_run (created_at, id);
CREATE INDEX dutiful_bulk_run_running ON dutiful_bulk_run (created_at, id) WHERE state = 'running';
CREATE INDEX dutiful_bulk_run_ended ON dutiful_bulk_run (ended_at) WHERE ended_at IS NOT NULL;

-- Unique keys, pauses, workers, schedules, sequences ------------------------------------------------------------------
-- An empty tenant is none; an empty kind means across all kinds.
CREATE TABLE dutiful_unique_key (
    tenant TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL,
    scope TEXT NOT NULL CHECK (scope IN ('queued', 'active', 'window', 'forever')),
    job_id BLOB NOT NULL, expires_at INTEGER,
    PRIMARY KEY (tenant, kind, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_unique_key_queued ON dutiful_unique_key (job_id) WHERE scope = 'queued';
CREATE INDEX dutiful_unique_key_active ON dutiful_unique_key (job_id) WHERE scope = 'active';
CREATE INDEX dutiful_unique_key_expiry ON dutiful_unique_key (expires_at) WHERE expires_at IS NOT NULL;

-- Of scope breaker and probing, the name is a kind: its breaker is open, or half-open. Of scope limited, too: its jobs
-- become ready one by one, as its limits admit them.
CREATE TABLE dutiful_pause (
    scope TEXT NOT NULL CHECK (scope IN ('queue', 'kind', 'lane', 'breaker', 'probing', 'limited')),
    name TEXT NOT NULL, since INTEGER NOT NULL, by TEXT, reason TEXT,
    PRIMARY KEY (scope, name)
) STRICT, WITHOUT ROWID;

-- How many jobs with one key may run at once or, with `per`, start within that time; times in microseconds.
CREATE TABLE dutiful_limit_rule (
    name TEXT NOT NULL PRIMARY KEY, most INTEGER NOT NULL CHECK (most >= 1), per INTEGER CHECK (per >= 10000),
    burst INTEGER CHECK (burst >= 1),  -- so many may start together; null: `most`
    fixed INTEGER NOT NULL,  -- windows begin at multiples of `per`; 0: they slide
    feedback INTEGER NOT NULL,  -- a service that asks to wait holds its key
    chosen INTEGER CHECK (chosen >= 0)  -- instead of `most`, by an operator; 0: none may start
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_limit_kind (
    kind TEXT NOT NULL, name TEXT NOT NULL,
    field TEXT,  -- the payload's field that is the key of jobs that do not name one
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- What admitted jobs take of a limit: while they are ready or run or, with `per`, for that time after they started.
CREATE TABLE dutiful_limit_slot (
    id INTEGER PRIMARY KEY, job_id BLOB NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL, admitted_at INTEGER NOT NULL,
    started_at INTEGER  -- known of starts that a limit with `per` counts
) STRICT;

CREATE INDEX dutiful_limit_slot_key ON dutiful_limit_slot (name, key, started_at);
CREATE INDEX dutiful_limit_slot_job ON dutiful_limit_slot (job_id);
CREATE INDEX dutiful_limit_slot_open ON dutiful_limit_slot (id) WHERE started_at IS NULL;
CREATE INDEX dutiful_limit_slot_started ON dutiful_limit_slot (name, started_at) WHERE started_at IS NOT NULL;

-- Keys of limits with feedback whose service has asked to wait.
CREATE TABLE dutiful_limit_hold (
    name TEXT NOT NULL, key TEXT NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (name, key)
) STRICT, WITHOUT ROWID;

-- How much more than others a tenant gets in fair lanes; without a row 1.
CREATE TABLE dutiful_share (
    tenant TEXT NOT NULL PRIMARY KEY, weight INTEGER NOT NULL CHECK (weight BETWEEN 1 AND 1000)
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_worker (
    id BLOB NOT NULL PRIMARY KEY,
    name TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, process_started TEXT,
    started_at INTEGER NOT NULL, seen_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
    leading INTEGER NOT NULL, lanes TEXT NOT NULL, kinds TEXT NOT NULL,
    locks TEXT  -- how it keeps locks: the workers of one fleet must agree
) STRICT, WITHOUT ROWID;

-- One row, written now and then while jobs are running: it shows whether the file could be written to.
CREATE TABLE dutiful_survey (
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    next_by INTEGER NOT NULL,  -- if there is no survey until then, the file may have been out of reach
    rescue_from INTEGER NOT NULL  -- before this, workers that live may not have renewed their leases
) STRICT;

CREATE TABLE dutiful_schedule (
    name TEXT NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL, expression TEXT NOT NULL, timezone TEXT NOT NULL, catch_up TEXT NOT NULL,
    job TEXT NOT NULL, next_at INTEGER NOT NULL, last_at INTEGER, last_job_id BLOB,
    enabled INTEGER NOT NULL DEFAULT 1
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_sequence (name TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;

INSERT INTO dutiful_sequence (name, value) VALUES ('claim', 0), ('lock_wait', 0);

-- Locks: a row counts for as long as its claim's lease ----------------------------------------------------------------
-- A key is JSON, so that 7 and "7" are two names.
CREATE TABLE dutiful_lock (
    namespace TEXT NOT NULL, key TEXT NOT NULL, job_id BLOB NOT NULL, claim_id INTEGER NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_lock_wait (
    namespace TEXT NOT NULL, key TEXT NOT NULL, seq INTEGER NOT NULL, job_id BLOB NOT NULL,
    claim_id INTEGER NOT NULL,
    PRIMARY KEY (namespace, key, seq)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX dutiful_lock_wait_claim ON dutiful_lock_wait (namespace, key, job_id, claim_id);

-- Webhooks ------------------------------------------------------------------------------------------------------------
CREATE TABLE dutiful_webhook (
    name TEXT NOT NULL PRIMARY KEY,
    url TEXT NOT NULL, kinds TEXT, states TEXT NOT NULL, alerts INTEGER NOT NULL DEFAULT 0,
    enabled INTEGER NOT NULL, disabled_at INTEGER,
    reason TEXT
) STRICT, WITHOUT ROWID;

-- A message outlives its job; without one, it is about an alert.
CREATE TABLE dutiful_webhook_post (
    id BLOB NOT NULL PRIMARY KEY,
    job_id BLOB, webhook TEXT, url TEXT NOT NULL, event TEXT NOT NULL, data TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
    attempts INTEGER NOT NULL, created_at INTEGER NOT NULL, next_at INTEGER, ended_at INTEGER,
    updated_at INTEGER NOT NULL, status INTEGER, error TEXT,
    tenant TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_webhook_post_due ON dutiful_webhook_post (next_at) WHERE state = 'pending';
CREATE INDEX dutiful_webhook_post_ended ON dutiful_webhook_post (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX dutiful_webhook_post_job ON dutiful_webhook_post (job_id);

-- Audit ---------------------------------------------------------------------------------------------------------------
CREATE TABLE dutiful_audit_event (
    id BLOB NOT NULL PRIMARY KEY CHECK (length(id) = 16),
    act BLOB NOT NULL CHECK (length(act) = 16),
    at INTEGER NOT NULL CHECK (at BETWEEN 946684800000000 AND 221845392000000000),  -- the years 2000 to 9000
    -- Limits, because each is kept for good, and read by all who list or verify the trail.
    principal TEXT NOT NULL CHECK (length(principal) <= 200),
    role TEXT CHECK (role IN ('viewer', 'staff', 'manager', 'admin')),
    origin TEXT NOT NULL CHECK (origin IN ('cli', 'api', 'python', 'service', 'sql')),
    action TEXT NOT NULL CHECK (length(action) <= 200),
    outcome TEXT NOT NULL CHECK (outcome IN ('requested', 'succeeded', 'failed', 'refused')),
    target TEXT CHECK (length(target) <= 500), tenant TEXT CHECK (length(tenant) <= 200),
    reason TEXT CHECK (length(reason) <= 2000),
    before TEXT CHECK (length(CAST(before AS BLOB)) <= 65536), after TEXT CHECK (length(CAST(after AS BLOB)) <= 65536),
    address TEXT CHECK (length(address) <= 200)
) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_audit_event_act ON dutiful_audit_event (act, id);
CREATE INDEX dutiful_audit_event_action ON dutiful_audit_event (action, id);
CREATE INDEX dutiful_audit_event_principal ON dutiful_audit_event (principal, id);
CREATE INDEX dutiful_audit_event_target ON dutiful_audit_event (target, id) WHERE target IS NOT NULL;
CREATE INDEX dutiful_audit_event_tenant ON dutiful_audit_event (tenant, id) WHERE tenant IS NOT NULL;

-- The events that wait for their seals.
CREATE TABLE dutiful_audit_unsealed (event_id BLOB NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_audit_seal (
    seq INTEGER NOT NULL PRIMARY KEY,
    event_id BLOB NOT NULL UNIQUE,
    hash TEXT NOT NULL
) STRICT;

-- One row at most: the last seal of the part of the chain that retention has deleted.
CREATE TABLE dutiful_audit_anchor (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    seq INTEGER NOT NULL, hash TEXT NOT NULL,
    at INTEGER NOT NULL,
    keep INTEGER NOT NULL, trimmed_at INTEGER NOT NULL  -- the policy, and the time, by which `at` was old enough
) STRICT;

-- One row at most: how long events are kept, in microseconds, a day at least. Without it, or NULL: for good.
CREATE TABLE dutiful_audit_policy (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    keep INTEGER CHECK (keep BETWEEN 86400000000 AND 3162240000000000)
) STRICT;

-- Ignored, so that an append can be repeated; and REPLACE, which fires no trigger for what it deletes, finds nothing to
-- replace.
CREATE TRIGGER dutiful_audit_event_once BEFORE INSERT ON dutiful_audit_event
WHEN EXISTS (SELECT 1 FROM dutiful_audit_event WHERE id = NEW.id)
BEGIN SELECT RAISE(IGNORE); END;

-- A day's margin, because an append is repeated after an outage; an hour for clocks that are fast. The id has to be of that
-- time, too: lists are in the order of the ids, whose first six bytes are milliseconds.
CREATE TRIGGER dutiful_audit_event_dated BEFORE INSERT ON dutiful_audit_event
WHEN (NEW.at - 86400000000.0 * (julianday('now') - 2440587.5)) NOT BETWEEN -86400000000 AND 3600000000
  OR substr(hex(NEW.id), 1, 12) NOT BETWEEN printf('%012X', NEW.at / 1000 - 86400000)
                                    AND printf('%012X', NEW.at / 1000 + 86400000)
BEGIN SELECT RAISE(ABORT, 'an audit event and its id are of the time when they are written: check the clock'); END;

CREATE TRIGGER dutiful_audit_event_waits AFTER INSERT ON dutiful_audit_event
BEGIN INSERT INTO dutiful_audit_unsealed (event_id) VALUES (NEW.id); END;

CREATE TRIGGER dutiful_audit_event_stays BEFORE UPDATE ON dutiful_audit_event
BEGIN SELECT RAISE(ABORT, 'an audit event cannot be changed'); END;

CREATE TRIGGER dutiful_audit_event_kept BEFORE DELETE ON dutiful_audit_event
WHEN NOT EXISTS (
    SELECT 1 FROM dutiful_audit_seal s, dutiful_audit_anchor a WHERE s.event_id = OLD.id AND s.seq <= a.seq
)
BEGIN SELECT RAISE(ABORT, 'an audit event cannot be deleted, but by retention'); END;

CREATE TRIGGER dutiful_audit_seal_follows BEFORE INSERT ON dutiful_audit_seal
WHEN NEW.seq <> 1 + coalesce(
         (SELECT max(seq) FROM dutiful_audit_seal), (SELECT seq FROM dutiful_audit_anchor), 0)
  OR EXISTS (SELECT 1 FROM dutiful_audit_seal WHERE event_id = NEW.event_id)
BEGIN SELECT RAISE(ABORT, 'a seal follows the last one, and seals an event that has none'); END;

CREATE TRIGGER dutiful_audit_seal_stays BEFORE UPDATE ON dutiful_audit_seal
BEGIN SELECT RAISE(ABORT, 'a seal of the audit trail cannot be changed'); END;

CREATE TRIGGER dutiful_audit_seal_kept BEFORE DELETE ON dutiful_audit_seal
WHEN NOT EXISTS (SELECT 1 FROM dutiful_audit_anchor WHERE seq >= OLD.seq)
BEGIN SELECT RAISE(ABORT, 'a seal of the audit trail cannot be deleted, but by retention'); END;

CREATE TRIGGER dutiful_audit_anchor_moves BEFORE INSERT ON dutiful_audit_anchor
WHEN EXISTS (SELECT 1 FROM dutiful_audit_anchor WHERE seq >= NEW.seq)
BEGIN SELECT RAISE(ABORT, 'the anchor of the audit trail moves forward only'); END;

CREATE TRIGGER dutiful_audit_anchor_moves_on BEFORE UPDATE ON dutiful_audit_anchor
WHEN OLD.seq >= NEW.seq
BEGIN SELECT RAISE(ABORT, 'the anchor of the audit trail moves forward only'); END;

-- It is the copy of a seal, and covers only events that the policy no longer keeps.
CREATE VIEW dutiful_audit_anchor_wrong AS
SELECT 1 FROM dutiful_audit_anchor a
WHERE a.trimmed_at > 86400000000.0 * (julianday('now') - 2440587.5) + 1000000
   OR NOT EXISTS (SELECT 1 FROM dutiful_audit_policy p WHERE p.keep = a.keep AND p.keep >= 86400000000)
   OR NOT EXISTS (SELECT 1 FROM dutiful_audit_seal s CROSS JOIN dutiful_audit_event e ON e.id = s.event_id
                  WHERE s.seq = a.seq AND s.hash = a.hash AND e.at = a.at)
   OR EXISTS (SELECT 1 FROM dutiful_audit_seal s LEFT JOIN dutiful_audit_event e ON e.id = s.event_id
              WHERE s.seq <= a.seq AND (e.at IS NULL OR e.at >= a.trimmed_at - a.keep));

CREATE TRIGGER dutiful_audit_anchor_made AFTER INSERT ON dutiful_audit_anchor
WHEN EXISTS (SELECT 1 FROM dutiful_audit_anchor_wrong)
BEGIN SELECT RAISE(ABORT, 'the anchor of the audit trail covers only events that are no longer kept'); END;

CREATE TRIGGER dutiful_audit_anchor_moved AFTER UPDATE ON dutiful_audit_anchor
WHEN EXISTS (SELECT 1 FROM dutiful_audit_anchor_wrong)
BEGIN SELECT RAISE(ABORT, 'the anchor of the audit trail covers only events that are no longer kept'); END;

CREATE TRIGGER dutiful_audit_anchor_stays BEFORE DELETE ON dutiful_audit_anchor
BEGIN SELECT RAISE(ABORT, 'the anchor of the audit trail cannot be deleted'); END;

-- API tokens ----------------------------------------------------------------------------------------------------------
CREATE TABLE dutiful_api_token (
    id BLOB NOT NULL PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL, role TEXT NOT NULL, tenant TEXT, created_at INTEGER NOT NULL, created_by TEXT NOT NULL,
    expires_at INTEGER, revoked_at INTEGER,
    last_used_at INTEGER
) STRICT, WITHOUT ROWID;

-- Circuit breakers, shared by all processes ---------------------------------------------------------------------------
-- The policy is the one that was given last; a time span is in microseconds.
CREATE TABLE dutiful_breaker (
    name TEXT NOT NULL PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('closed', 'open', 'half_open')),
    failures INTEGER NOT NULL, successes INTEGER NOT NULL, neutral INTEGER NOT NULL, round INTEGER NOT NULL,
    trips INTEGER NOT NULL, failures_allowed INTEGER NOT NULL, open_for INTEGER NOT NULL, probes INTEGER NOT NULL,
    last_failure_at INTEGER, opened_at INTEGER, open_until INTEGER, half_opened_at INTEGER,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The probes of this round. One counts for as long as its claim's lease; without a claim, the job was admitted as a
-- probe at `since`, and counts while it runs, or is ready and its turn is not over.
CREATE TABLE dutiful_breaker_probe (
    breaker TEXT NOT NULL, job_id BLOB NOT NULL, round INTEGER NOT NULL, claim_id INTEGER,
    since INTEGER NOT NULL,
    PRIMARY KEY (breaker, job_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_breaker_kind (kind TEXT NOT NULL PRIMARY KEY, breaker TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE INDEX dutiful_breaker_kind_breaker ON dutiful_breaker_kind (breaker, kind);

-- Metrics -------------------------------------------------------------------------------------------------------------
-- A sketch is JSON: counts by the number of their bucket. Times are sums, in microseconds.

-- As workers add it; rolled up into minutes, hours and totals soon after.
CREATE TABLE dutiful_counter (
    worker_id BLOB NOT NULL, turn INTEGER NOT NULL, kind TEXT NOT NULL, outcome TEXT NOT NULL,
    at INTEGER NOT NULL, count INTEGER NOT NULL, run_microseconds INTEGER NOT NULL,
    wait_microseconds INTEGER NOT NULL, payload_bytes INTEGER NOT NULL, payload_most INTEGER NOT NULL,
    run TEXT NOT NULL, wait TEXT NOT NULL,
    PRIMARY KEY (worker_id, turn, kind, outcome)
) STRICT, WITHOUT ROWID;

-- The last turn of each worker, so that one which is repeated after its roll-up counts nothing twice.
CREATE TABLE dutiful_counter_turn (
    worker_id BLOB NOT NULL PRIMARY KEY,
    turn INTEGER NOT NULL,
    at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE dutiful_counter_minute (
    minute INTEGER NOT NULL,  -- when it began
    kind TEXT NOT NULL, outcome TEXT NOT NULL, count INTEGER NOT NULL, run_microseconds INTEGER NOT NULL,
    wait_microseconds INTEGER NOT NULL, payload_bytes INTEGER NOT NULL, payload_most INTEGER NOT NULL,
    run TEXT NOT NULL, wait TEXT NOT NULL,
    PRIMARY KEY (minute, kind, outcome)
) STRICT, WITHOUT ROWID;

-- For counts alone, because rows with sketches are wide.
CREATE INDEX dutiful_counter_minute_count ON dutiful_counter_minute (minute, outcome, count);

CREATE TABLE dutiful_counter_hour (
    hour INTEGER NOT NULL, kind TEXT NOT NULL, outcome TEXT NOT NULL, count INTEGER NOT NULL,
    run_microseconds INTEGER NOT NULL, wait_microseconds INTEGER NOT NULL, payload_bytes INTEGER NOT NULL,
    payload_most INTEGER NOT NULL, run TEXT NOT NULL, wait TEXT NOT NULL,
    PRIMARY KEY (hour, kind, outcome)
) STRICT, WITHOUT ROWID;

-- The last attempts of each kind, by the minute in which they were rolled up: as many as its error rate is computed from.
CREATE TABLE dutiful_counter_last (
    kind TEXT NOT NULL, minute INTEGER NOT NULL, count INTEGER NOT NULL, failed INTEGER NOT NULL,
    PRIMARY KEY (kind, minute)
) STRICT, WITHOUT ROWID;

-- All that was ever counted.
CREATE TABLE dutiful_counter_total (
    kind TEXT NOT NULL, outcome TEXT NOT NULL, count INTEGER NOT NULL, run_microseconds INTEGER NOT NULL,
    wait_microseconds INTEGER NOT NULL, payload_bytes INTEGER NOT NULL, payload_most INTEGER NOT NULL,
    run TEXT NOT NULL, wait TEXT NOT NULL,
    PRIMARY KEY (kind, outcome)
) STRICT, WITHOUT ROWID;

-- What the view dutiful_job_metrics shows of jobs that retention has deleted, by the hour of their end.
CREATE TABLE dutiful_deleted_jobs (
    hour INTEGER NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, tenant TEXT NOT NULL,  -- '' for none
    jobs INTEGER NOT NULL, claimed INTEGER NOT NULL, wait_microseconds INTEGER NOT NULL,
    run_microseconds INTEGER NOT NULL, run_most INTEGER NOT NULL,
    PRIMARY KEY (hour, kind, state, tenant)
) STRICT, WITHOUT ROWID;

-- Alerts --------------------------------------------------------------------------------------------------------------
-- The state of each rule for each series of its metric. A series that never was beyond the threshold has no row.
CREATE TABLE dutiful_alert (
    rule TEXT NOT NULL, series TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('ok', 'pending', 'firing')),
    value REAL, since INTEGER NOT NULL, calm_since INTEGER, fired_at INTEGER, cleared_at INTEGER,
    summary TEXT NOT NULL,
    PRIMARY KEY (rule, series)
) STRICT, WITHOUT ROWID;

-- When the alerts were last checked, and until when the next check is to come: one row.
CREATE TABLE dutiful_alert_check (
    only_one INTEGER NOT NULL PRIMARY KEY CHECK (only_one = 1),
    at INTEGER NOT NULL,
    until INTEGER NOT NULL
) STRICT;

-- Views for people who know SQL ---------------------------------------------------------------------------------------
-- Times are text in UTC, lengths are in the unit of their names, ids are hexadecimal.

-- Every job that has ended, with how long its last attempt ran, and how long it had been due when it was claimed for its
-- first one. As in the metrics, a claim that was given back does not count; a job that was run before its time waited 0.
CREATE VIEW dutiful_job_runs AS
SELECT lower(hex(j.id)) AS id, j.kind, j.queue, f.state, f.attempt,
       (f.finished_at - f.claimed_at) / 1000 AS duration_ms,
       max(coalesce((SELECT min(a.claimed_at) FROM dutiful_attempt a
                     WHERE a.job_id = f.job_id AND a.outcome NOT IN ('snoozed', 'released')), f.claimed_at)
           - max(j.created_at, coalesce(j.run_at, 0)), 0) / 1000 AS queue_time_ms,
       strftime('%Y-%m-%dT%H:%M:%fZ', f.finished_at / 1000000.0, 'unixepoch') AS recorded_at
FROM dutiful_finished f
JOIN dutiful_job j ON j.id = f.job_id;

-- How long jobs waited and ran, by kind and hour of their end; those that retention has deleted are included.
CREATE VIEW dutiful_job_metrics AS
SELECT kind, state, strftime('%Y-%m-%dT%H:00:00Z', hour / 1000000, 'unixepoch') AS hour, sum(jobs) AS jobs,
       sum(wait_microseconds) / 1e6 / nullif(sum(claimed), 0) AS mean_wait_s,
       sum(run_microseconds) / 1e6 / nullif(sum(claimed), 0) AS mean_run_s,
       iif(sum(claimed) > 0, max(run_most) / 1e6, NULL) AS longest_run_s
FROM (
    SELECT j.kind, f.state, f.finished_at / 3600000000 * 3600000000 AS hour, 1 AS jobs,
           f.claimed_at IS NOT NULL AS claimed,
           coalesce(max(f.claimed_at - max(j.created_at, coalesce(j.run_at, 0)), 0), 0) AS wait_microseconds,
           coalesce(f.finished_at - f.claimed_at, 0) AS run_microseconds,
           coalesce(f.finished_at - f.claimed_at, 0) AS run_most
    FROM dutiful_finished f
    CROSS JOIN dutiful_job j ON j.id = f.job_id
    UNION ALL
    SELECT kind, state, hour, jobs, claimed, wait_microseconds, run_microseconds, run_most FROM dutiful_deleted_jobs
)
GROUP BY kind, state, hour;

-- How many jobs of each kind wait and run, and how many have ended within a day.
CREATE VIEW dutiful_kind_health AS
SELECT kind, state, count(*) AS jobs
FROM (
    SELECT kind, 'ready' AS state FROM dutiful_ready
    UNION ALL SELECT kind, 'scheduled' FROM dutiful_scheduled
    UNION ALL SELECT kind, 'blocked' FROM dutiful_blocked
    UNION ALL SELECT j.kind, 'running' FROM dutiful_lease l CROSS JOIN dutiful_job j ON j.id = l.job_id
    UNION ALL
    SELECT j.kind, f.state FROM dutiful_finished f CROSS JOIN dutiful_job j ON j.id = f.job_id
    WHERE f.finished_at > (julianday('now', '-1 day') - 2440587.5) * 86400000000
)
GROUP BY kind, state;

-- Jobs that have been running for over an hour.
CREATE VIEW dutiful_stuck_jobs AS
SELECT lower(hex(j.id)) AS id, j.kind, j.queue, 'running' AS state, l.attempt,
       strftime('%Y-%m-%dT%H:%M:%fZ', j.created_at / 1000000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', l.claimed_at / 1000000.0, 'unixepoch') AS started_at,
       lower(hex(l.worker_id)) AS worker_id
FROM dutiful_lease l
CROSS JOIN dutiful_job j ON j.id = l.job_id
WHERE l.claimed_at < (julianday('now', '-1 hour') - 2440587.5) * 86400000000;

-- Jobs that wait to be tried again after an error of the last hour.
CREATE VIEW dutiful_failing_kinds AS
SELECT j.kind, count(*) AS jobs,
       strftime('%Y-%m-%dT%H:%M:%fZ', max(e.ended_at) / 1000000.0, 'unixepoch') AS latest_error_at
FROM (
    SELECT job_id, max(ended_at) AS ended_at
    FROM dutiful_attempt
    WHERE ended_at > (julianday('now', '-1 hour') - 2440587.5) * 86400000000 AND outcome IN ('failed', 'timed_out')
    GROUP BY job_id
) e
CROSS JOIN dutiful_job j ON j.id = e.job_id
WHERE EXISTS (SELECT 1 FROM dutiful_scheduled s WHERE s.job_id = e.job_id)
   OR EXISTS (SELECT 1 FROM dutiful_ready r WHERE r.job_id = e.job_id)
   OR EXISTS (SELECT 1 FROM dutiful_blocked b WHERE b.job_id = e.job_id)
GROUP BY j.kind;

-- How attempts of the last hour have ended, and how long they took, as workers counted it: each time within an eighth.
CREATE VIEW dutiful_kind_metrics AS
WITH lately AS (
    SELECT kind, outcome, count, run, wait FROM dutiful_counter_minute
    WHERE minute > (julianday('now', '-61 minutes') - 2440587.5) * 86400000000
      AND minute <= (julianday('now') - 2440587.5) * 86400000000
    UNION ALL
    SELECT kind, outcome, count, run, wait FROM dutiful_counter
    WHERE at > (julianday('now', '-61 minutes') - 2440587.5) * 86400000000
), ended AS (
    SELECT kind, coalesce(sum(count) FILTER (WHERE outcome IN ('failed', 'retried')), 0) AS failed,
           coalesce(sum(count) FILTER (
               WHERE outcome IN ('failed', 'retried', 'completed', 'completed_with_errors', 'cancelled')), 0) AS ended
    FROM lately
    GROUP BY kind
), bucket AS (
    SELECT l.kind, 'run' AS what, CAST(e.key AS INTEGER) AS number, sum(e.value) AS times
    FROM lately l, json_each(l.run) e
    GROUP BY l.kind, e.key
    UNION ALL
    SELECT l.kind, 'wait', CAST(e.key AS INTEGER), sum(e.value)
    FROM lately l, json_each(l.wait) e
    GROUP BY l.kind, e.key
), timed AS (
    -- In the middle of its bucket: of which each is a quarter of a power of two microseconds wide.
    SELECT kind, what,
           CASE WHEN number < 4 THEN 2 * number + 1
                ELSE (2 * (number & 3) + 9) << ((number >> 2) - 1) END / 2e6 AS seconds,
           1.0 * sum(times) OVER (PARTITION BY kind, what ORDER BY number)
               / sum(times) OVER (PARTITION BY kind, what) AS share
    FROM bucket
)
SELECT d.kind, d.ended AS attempts, d.failed, round(100.0 * d.failed / nullif(d.ended, 0), 2) AS error_percent,
       min(t.seconds) FILTER (WHERE t.what = 'run' AND t.share >= 0.50) AS run_p50_s,
       min(t.seconds) FILTER (WHERE t.what = 'run' AND t.share >= 0.95) AS run_p95_s,
       min(t.seconds) FILTER (WHERE t.what = 'run' AND t.share >= 0.99) AS run_p99_s,
       min(t.seconds) FILTER (WHERE t.what = 'wait' AND t.share >= 0.50) AS wait_p50_s,
       min(t.seconds) FILTER (WHERE t.what = 'wait' AND t.share >= 0.95) AS wait_p95_s,
       min(t.seconds) FILTER (WHERE t.what = 'wait' AND t.share >= 0.99) AS wait_p99_s
FROM ended d
LEFT JOIN timed t ON t.kind = d.kind
GROUP BY d.kind, d.ended, d.failed;

-- How busy the slots of each lane are, over all workers with a recent heartbeat.
CREATE VIEW dutiful_lane_utilisation AS
SELECT lane, count(*) AS workers, sum(slots) AS slots, sum(busy) AS busy,
       sum(coalesce(utilisation, 1.0 * busy / slots) * slots) / sum(slots) AS utilisation
FROM (
    SELECT l.key AS lane, json_extract(l.value, '$.slots') AS slots,
           coalesce(json_extract(l.value, '$.busy'), 0) AS busy, json_extract(l.value, '$.utilisation') AS utilisation
    FROM dutiful_worker w, json_each(w.lanes) l
    WHERE w.expires_at > (julianday('now') - 2440587.5) * 86400000000
)
GROUP BY lane;

-- Every breaker that has been used or declared, and how often failures have opened it.
CREATE VIEW dutiful_breaker_status AS
SELECT name, state, failures, successes, trips,
       strftime('%Y-%m-%dT%H:%M:%fZ', last_failure_at / 1000000.0, 'unixepoch') AS last_failure_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', opened_at / 1000000.0, 'unixepoch') AS opened_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', open_until / 1000000.0, 'unixepoch') AS open_until,
       strftime('%Y-%m-%dT%H:%M:%fZ', half_opened_at / 1000000.0, 'unixepoch') AS half_opened_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000000.0, 'unixepoch') AS updated_at
FROM dutiful_breaker;
