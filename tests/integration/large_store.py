"""A store with a large backlog whose planner statistics can be made to mislead."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from dutiful.stores.postgres import PostgresStore
from suite.builders import ADA, KIND

# How many jobs are in each place; they are numbered in this order.
SIZES = {"finished": 150_000, "lease": 8_000, "ready": 1_000_000, "scheduled": 100_000, "blocked": 50_000}
TOTAL = sum(SIZES.values())
FIRST = {place: sum(list(SIZES.values())[:n]) for n, place in enumerate(SIZES)}
TENANT, STOPPED, MAIL = "acme", "stopped", "mail"  # the tenant of every tenth job, a paused kind, a breaker
NOW = datetime(2024, 1, 1, tzinfo=UTC)  # when all that waits is due
_BORN = 1_700_000_000_000  # milliseconds: job n was made n milliseconds later


class Belief(Enum):
    """What the planner believes of the tables: a share of their rows, without statistics of columns; or all."""

    NEVER_ANALYSED = "never analysed"
    EMPTY = 0.0
    ONE = "one row"
    TWO = "two rows"
    FEW = 0.001
    FEWER = 0.85
    MORE = 1.5
    MANY_MORE = 10.0
    ALL = "analysed"


class Call(NamedTuple):
    """A statement with its arguments, the pages that it may touch, and what is done before it."""

    pages: int
    statement: str
    args: Sequence[Any]
    before: str = ""


def job_id(n: int) -> UUID:
    return UUID(f"{_BORN + n:012x}70008000{n:012x}")


def born(n: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=_BORN + n)


# Columns that many tables have.
_CARRIED = "priority, attempt, crashes, queue, kind, tenant"
_VALUES = "100, 0, (n % 10000 = 3)::int, queue(n), kind(n), tenant(n)"


def _numbers(place: str, every: int = 1, offset: int = 0) -> str:
    return f"generate_series({FIRST[place] + offset}::bigint, {FIRST[place] + SIZES[place] - 1}, {every}) n"


# In `ready`, only the first jobs are looked at, and only those have a row in `job`.
_LOOKED_AT = f"n < {FIRST['ready'] + 20_000} or n >= {FIRST['scheduled']}"
_FILL = f"""
create function id(n bigint) returns uuid immutable language sql
    return (lpad(to_hex({_BORN} + n), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0'))::uuid;
create function born(n bigint) returns timestamptz immutable language sql
    return timestamptz 'epoch' + ({_BORN} + n) * interval '1 ms';
create function queue(n bigint) returns text immutable language sql
    return case n % 10 when 1 then 'queue ' || n / 10 % 9 else 'default' end;
create function kind(n bigint) returns text immutable language sql
    return case when n < {FIRST["blocked"]} then '{KIND}' else '{STOPPED}' end;
create function tenant(n bigint) returns text immutable language sql return case n % 10 when 0 then '{TENANT}' end;

insert into dutiful.pause (scope, name, since) values ('kind', '{STOPPED}', now());
insert into dutiful.breaker (name, failures_allowed, open_for, probes, updated_at)
values ('{MAIL}', 3, '1 min', 1, now());
insert into dutiful.breaker_kind (kind, breaker) values ('{STOPPED}', '{MAIL}');
insert into dutiful.job (id, created_at, priority, max_attempts, kind, queue, tenant, payload, options)
select id(n), born(n), 100, 5, kind(n), queue(n), tenant(n), '{{}}', '{{"phases": ["first", "second"]}}'
from generate_series(0::bigint, {TOTAL - 1}) n where {_LOOKED_AT};
insert into dutiful.ready (seq, job_id, {_CARRIED}) select n, id(n), {_VALUES} from {_numbers("ready")};
insert into dutiful.scheduled (run_at, job_id, {_CARRIED})
select born(n), id(n), {_VALUES} from {_numbers("scheduled")};
insert into dutiful.blocked (job_id, since, run_at, seq, gate, key, {_CARRIED})
select id(n), born(n), case when g.late then born(n) end, case when g.gate <> 'dependency' and not g.late then n end,
       g.gate, case g.gate when 'paused' then '{STOPPED}' when 'breaker' then '{MAIL}' else id(n)::text end, {_VALUES}
from {_numbers("blocked")}, lateral (
    select case when n % 10 = 1 then 'dependency' when n % 10 in (2, 3) then 'breaker' else 'paused' end as gate,
           n % 5 = 0 as late) g;
insert into dutiful.dependency (job_id, needs_id)
select id(n), id(n - {FIRST["blocked"]} + case n % 500 when 1 then 0 else {FIRST["lease"]} end)
from {_numbers("blocked", 10, 1)};
insert into dutiful.lease (job_id, claim_id, worker_id, seq, claimed_at, expires_at, attempt, crashes)
select id(n), n, '{ADA}', n, born(n), born(n), 1, 0 from {_numbers("lease")};
insert into dutiful.finished (job_id, claim_id, worker_id, claimed_at, finished_at, attempt, crashes, state)
select id(n), n, '{ADA}', born(n), born(n), 1, 0, case n % 50 when 7 then 'failed' else 'completed' end
from {_numbers("finished")};
insert into dutiful.dead_letter
    (job_id, died_at, created_at, attempt, max_attempts, status, new_job_id, kind, queue, correlation_id, job)
select id(n), born(n), born(n), 1, 5, 'reprocessing', id(n), '{KIND}', 'default', n, '{{}}'
from {_numbers("finished", 50, 7)};
insert into dutiful.attempt (job_id, claim_id, ended_at, attempt, outcome, error)
select id(n), n, born(n), 1, 'failed', '{{}}' from {_numbers("lease")};
insert into dutiful.attempt (job_id, claim_id, ended_at, attempt, outcome, error)
select id(n), n, born(n), 1, 'failed', '{{}}' from {_numbers("scheduled")};
insert into dutiful.phase (job_id, position, attempt, name, state)
select id(n), 0, 1, 'first', 'running' from {_numbers("lease")};
insert into dutiful.phase (job_id, position, attempt, name, state)
select id(n), 0, 1, 'first', 'completed' from {_numbers("finished", 5)};
insert into dutiful.progress (job_id, updated_at) select id(n), born(n) from {_numbers("lease")};
insert into dutiful.progress (job_id, updated_at) select id(n), born(n) from {_numbers("finished", 5)};
insert into dutiful.stale (job_id, stale_at, sent_at)
select id(n), born(n), case n % 4 when 0 then born(n) end from {_numbers("finished")} where n between 50000 and 80000;
insert into dutiful.tombstone (job_id, deleted_at, sent_at, job)
select id(n), born(n), case n % 4 when 0 then timestamptz '{NOW}' end, '{{}}' from {_numbers("finished", 2)};
insert into dutiful.webhook_post
    (id, job_id, created_at, next_at, updated_at, attempts, url, event, state, data)
select id(n), id(n), born(n), born(n), born(n), n % 40 / 20, 'https://example.org', 'job.completed', 'pending', '{{}}'
from {_numbers("finished", 20)};
insert into dutiful.unique_key (tenant, kind, key, job_id, scope)
select '', '{KIND}', n, id(n), case n % 2 when 0 then 'queued' else 'active' end from {_numbers("ready", 25)};
insert into dutiful.unique_key (tenant, kind, key, job_id, scope)
select '', '{KIND}', n, id(n), 'active' from {_numbers("lease")};
insert into dutiful.unique_key (tenant, kind, key, job_id, scope, expires_at)
select '', '{KIND}', n, id(n), 'window', born(n) from {_numbers("finished", 20)};
select setval('dutiful.claim_seq', {TOTAL});
"""
_TABLES = "select schemaname || '.' || relname from pg_stat_user_tables where schemaname = 'dutiful'"
# The planner counts the pages itself, and multiplies them by how full they were.
_BELIEVE = """
update pg_class c
set relpages = greatest(pg_relation_size(c.oid) / current_setting('block_size')::int, 1), reltuples = $2,
    relallvisible = case c.relkind when 'r' then pg_relation_size(c.oid) / current_setting('block_size')::int else 0 end
where c.oid = $1::text::regclass
   or c.oid in (select i.indexrelid from pg_index i where i.indrelid = $1::text::regclass)
"""
_NEVER_ANALYSED = "update pg_class set relpages = 0, reltuples = -1, relallvisible = 0 where oid = $1::text::regclass"
_FORGET = "delete from pg_statistic where starelid = $1::text::regclass"


class LargeStore:
    """Its tables are analysed by `believe` only; every call is rolled back."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None
        self._rows: dict[str, int] = {}

    async def open(self) -> None:
        await PostgresStore(self._url).migrate()
        self._connection = await asyncpg.connect(self._url)
        tables = [row[0] for row in await self._connection.fetch(_TABLES)]
        for table in tables:
            await self._connection.execute(f"alter table {table} set (autovacuum_enabled = off)")
        await self._connection.execute(_FILL)
        for table in tables:
            self._rows[table] = await self._connection.fetchval(f"select count(*) from {table}")

    async def close(self) -> None:
        await self._connection.close()

    async def believe(self, belief: Belief) -> None:
        """Change the statistics, after which the planner plans again."""
        if belief is Belief.ALL:
            await self._connection.execute("analyze")
            return
        for table, rows in self._rows.items():
            await self._connection.execute(_FORGET, table)
            match belief:
                case Belief.NEVER_ANALYSED:
                    await self._connection.execute(_NEVER_ANALYSED, table)
                case Belief.ONE | Belief.TWO:
                    await self._connection.execute(_BELIEVE, table, 1.0 if belief is Belief.ONE else 2.0)
                case _:
                    await self._connection.execute(_BELIEVE, table, rows * belief.value)

    async def touched(self, call: Call) -> float:
        """How many pages a call touches, apart from those of the first one in a session, which is planned."""
        try:
            await self._run(call, "")
            explained = await self._run(call, "explain (analyze, buffers, format json) ")
        except asyncpg.QueryCanceledError:
            return math.inf
        plan = msgspec.json.decode(explained)[0]["Plan"]
        # What a statement writes beside its result is not part of its sum.
        beside = [part for part in plan.get("Plans", ()) if part["Node Type"] == "ModifyTable"]
        return float(sum(part["Shared Hit Blocks"] + part["Shared Read Blocks"] for part in (plan, *beside)))

    async def _run(self, call: Call, prefix: str) -> Any:
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            await self._connection.execute(f"set local statement_timeout = '5s'; {call.before}")
            return await self._connection.fetchval(prefix + call.statement, *call.args)
        finally:
            await transaction.rollback()
