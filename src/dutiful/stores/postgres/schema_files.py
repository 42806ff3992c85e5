"""The files of `schema/`: tables as numbered migrations, functions and views as repeatable files.

A file of `schema/functions` that uses another's view or type while it is created says so in its first line, as in
`-- needs: views, ids`. Bodies in plpgsql are read when they run, so they need not be listed.
"""

import hashlib
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import msgspec

from dutiful.core.settle import DEPENDENCY_FINGERPRINT, Policy, lost_error
from dutiful.store.jobs import SOON
from dutiful.store.metrics import ENDS, FAILURES
from dutiful.stores.order import LATE_COMMIT, SEQ_STEP
from dutiful.stores.postgres.engine.columns import FRAGMENTS, spell_lists
from dutiful.stores.postgres.secret_rules import SECRETS
from dutiful.stores.statements import texts

# Settings of functions, by the names used in the files. The planner's statistics often say that queue tables are empty,
# and a plan cached for an empty table scans the whole table later. So functions that workers call disable plans that
# are only good for empty tables; a setting of a function also works behind a transaction pooler.
_SETTINGS = {
    # For statements on one table, or whose joins have few rows on both sides.
    "use_indexes": "set enable_seqscan = off set plan_cache_mode = force_generic_plan",
    # For walks along one index of one table that keep its order, where every microsecond counts.
    "walk_one": (
        "set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off "
        "set plan_cache_mode = force_generic_plan"
    ),
    # For walks along an index, each row of which looks up its rows of the next table.
    "walk_indexes": (
        "set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off "
        "set plan_cache_mode = force_generic_plan"
    ),
    # For walks that must keep the order of one index, because a sort would read all rows first. A bitmap has no order.
    # Where few rows have to be sorted anyway, Postgres 16 and 17 count the forbidden sort as so expensive that they
    # would compile the statement at every call.
    "walk_in_order": (
        "set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off "
        "set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan"
    ),
    # For look-ups of given ids. Of a table that is believed to be empty, a plain index scan would walk the whole index
    # and filter, once for each id. A bitmap is made from a condition, so it cannot. But of a table that is believed to
    # have one row, no bitmap is considered; so ids are joined as `x.id = any (array[y.id])`: such a join has no use for
    # the order of an index, and without one an index is not walked.
    "look_up_ids": (
        "set enable_seqscan = off set enable_indexscan = off set enable_hashjoin = off set enable_mergejoin = off "
        "set plan_cache_mode = force_generic_plan"
    ),
}
MOST_NOTIFIED = 0.5  # how full the server's queue of notifications may be for hints to be sent
# SQL that several files use.
_SHARED = {
    # Claims the ready rows in v_tids.
    "take_ready": """with taken as (
        delete from {schema}.ready x where x.ctid = any (v_tids)
        -- Bounded, so that one row that was written by hand does not stop a queue, or the rescue, by an overflow.
        returning x.job_id, x.seq, least(x.attempt, 2147483646) + 1 as attempt, least(x.crashes, 2147483646) as crashes
    ), leased as (
        insert into {schema}.lease (job_id, claim_id, worker_id, seq, claimed_at, expires_at, attempt, crashes)
        select t.job_id, nextval('{schema}.claim_seq'), p_worker, t.seq, v_now, v_now + p_lease, t.attempt, t.crashes
        from taken t
        returning job_id, claim_id, attempt, crashes, seq
    ), freed as (
        -- Locked keys are skipped instead of waiting for a user's open transaction. A skipped key counts as free.
        delete from {schema}.unique_key u
        where u.ctid = any (array(
            select k.ctid from {schema}.unique_key k
            where k.scope = 'queued' and k.job_id = any (array(select t.job_id from taken t))
            for update skip locked))
    )
    select {claim_values},
           greatest(extract(epoch from v_now - greatest(j.created_at, j.run_at))::float8, 0)
    from leased l
    -- The limit makes this a look-up by id, also if the planner believes the table to be empty.
    cross join lateral (select x.* from {schema}.job x where x.id = l.job_id limit 1) j;""",
    # Kinds whose jobs are blocked: by a pause, by a breaker that is open or probing, or until a limit admits them.
    "blocked_kinds": "array(select name from {schema}.pause where scope in {blocking_scopes})",
    "blocking_scopes": "('kind', 'breaker', 'probing', 'limited')",
    # Without those whose jobs only wait for a limit: their jobs may be scheduled, and limits may admit them.
    "stopped_kinds": "array(select name from {schema}.pause where scope in {stopping_scopes})",
    "stopping_scopes": "('kind', 'breaker', 'probing')",
    # When its queue of notifications is full, Postgres refuses commits that notify.
    "notify_room": f"pg_notification_queue_usage() < {MOST_NOTIFIED}",
    # A job due before that starts late without a hint: the leader looks at what is scheduled once a second.
    "near": f"(clock_timestamp() + interval '{SOON.total_seconds()} seconds')",
    "seq_step": str(SEQ_STEP),
    "late_commit": str(LATE_COMMIT),
    # The default policy of crashes, and what groups the errors that it records.
    "max_crashes": str(Policy().max_crashes),
    "lost_fingerprint": str(lost_error(Policy().max_crashes)["fingerprint"]),
    "dependency_fingerprint": DEPENDENCY_FINGERPRINT,
    # The outcomes of counters `t` that count for the error rate of the last attempts, and their sums.
    "ends": texts(ENDS),
    "last_summed": (
        "sum(t.count)::bigint as count, "
        f"coalesce(sum(t.count) filter (where t.outcome in ({texts(FAILURES)})), 0)::bigint as failed"
    ),
    # Adds rows of counters, `t`, to those of a longer time, `m`.
    "counters_summed": (
        "t.kind, t.outcome, sum(t.count)::bigint, {schema}.sum_sketches(array_agg(t.run)), "
        "{schema}.sum_sketches(array_agg(t.wait)), sum(t.run_microseconds)::bigint, sum(t.wait_microseconds)::bigint, "
        "sum(t.payload_bytes)::bigint, max(t.payload_most)"
    ),
    "counters_added": (
        "count = m.count + excluded.count, run = {schema}.sum_sketches(array[m.run, excluded.run]), "
        "wait = {schema}.sum_sketches(array[m.wait, excluded.wait]), "
        "run_microseconds = m.run_microseconds + excluded.run_microseconds, "
        "wait_microseconds = m.wait_microseconds + excluded.wait_microseconds, "
        "payload_bytes = m.payload_bytes + excluded.payload_bytes, "
        "payload_most = greatest(m.payload_most, excluded.payload_most)"
    ),
    # How many finished jobs `f` of `j` there are, how many of them had run, and how long they waited and ran.
    "ended_summed": (
        "count(*) as jobs, count(f.claimed_at) as claimed, "
        "coalesce(sum(greatest(extract(epoch from f.claimed_at - greatest(j.created_at, j.run_at)), 0) * 1000000), "
        "0)::bigint as wait_microseconds, "
        "coalesce(sum(extract(epoch from f.finished_at - f.claimed_at) * 1000000), 0)::bigint as run_microseconds, "
        "coalesce(max(extract(epoch from f.finished_at - f.claimed_at) * 1000000), 0)::bigint as run_most"
    ),
    # The newest ids of a place `p` in a range.
    "newest_ids": "p.job_id < p_high and p.job_id >= p_low order by p.job_id desc limit p_each",
    # The start of the time to sum: $1 says whether minutes or hours are summed, $2 its length, $3 its end.
    "counted_since": (
        "asked as materialized (select n.now, date_trunc(case when $1 then 'minute' else 'hour' end, "
        "n.now - $2::interval, 'UTC') as since "
        "from (select coalesce($3::timestamptz, clock_timestamp()) as now) n)"
    ),
}
_NEEDS = re.compile(r"\A-- needs: (.+)\n")


class SchemaFile(msgspec.Struct, frozen=True):
    """One file of SQL, with its macros expanded, but not `{schema}`, the name of the schema."""

    name: str
    sql: str
    needed: tuple[str, ...] = ()
    """Checksums of the files that it needs."""

    @property
    def checksum(self) -> str:
        return hashlib.sha256("\n".join([self.sql, *self.needed]).encode()).hexdigest()


def migrations() -> list[SchemaFile]:
    """The files that are applied once, in the order of their numbers."""
    return [SchemaFile(name, text) for name, text in sorted(_read("tables").items())]


def functions() -> list[SchemaFile]:
    """The files that are applied whenever they differ, each after those that it needs.

    A checksum covers the needed files, too, because replacing a view or type also drops what uses it.
    """
    return in_order(_read("functions"))


def in_order(texts: dict[str, str]) -> list[SchemaFile]:
    below = {name: needs(name, texts) for name in sorted(texts)}
    try:
        names = list(TopologicalSorter(below).static_order())
    except CycleError as error:
        raise LookupError(f"files of schema/functions need each other: {' -> '.join(error.args[1])}") from None
    done: dict[str, SchemaFile] = {}
    for name in names:
        needed = tuple(done[need].checksum for need in below[name])
        done[name] = SchemaFile(f"functions/{name}", texts[name], needed)
    return list(done.values())


def needs(name: str, texts: dict[str, str]) -> list[str]:
    """The files that this one names in its first line."""
    found = _NEEDS.match(texts[name])
    named = sorted(part.strip() for part in found[1].split(",")) if found else []
    if unknown := [need for need in named if need not in texts]:
        raise LookupError(f"schema/functions/{name}.sql needs what there is no file of: {', '.join(unknown)}")
    return named


def expand(sql: str) -> str:
    for name, text in (_SETTINGS | _SHARED | FRAGMENTS | SECRETS).items():
        sql = sql.replace(f"{{{name}}}", text)
    return spell_lists(sql)


def _read(folder: str) -> dict[str, str]:
    files = Path(__file__).with_name("schema").joinpath(folder).glob("*.sql")
    return {file.stem: expand(file.read_text("utf-8")) for file in files}
