"""Work costs as much beside a million jobs as beside a few, whatever the planner believes of the tables.

Each call has a bound of pages that a scan of a table, an index or a queue level exceeds many times.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
import pytest_asyncio
from large_store import FIRST, MAIL, NOW, SIZES, STOPPED, TENANT, TOTAL, Belief, Call, LargeStore, born, job_id

from databases import Postgres
from dutiful.stores.postgres.engine.columns import job_arrays, job_values
from dutiful.stores.postgres.engine.sql import statements
from suite.builders import ADA, KIND, new_job

pytestmark = pytest.mark.asyncio(loop_scope="module")

SQL = statements("dutiful")
ROWS = 100  # how many jobs a call handles, if more than one
LEASE = timedelta(seconds=30)
LOWEST, HIGHEST = UUID(int=0), UUID(int=(1 << 128) - 1)
ERROR = '[{"class": "transient", "message": "oops"}]'
REJECTED = f'[{{"breaker": "{MAIL}"}}]'
POSTING = (
    "insert into dutiful.webhook (name, url, states, enabled) "
    "values ('hook', 'https://example.org', '{completed,failed,cancelled}', true)"
)
PROBING = (
    "insert into dutiful.breaker_probe (breaker, job_id, round, since) values "
    f"('{MAIL}', '{job_id(FIRST['ready'])}', 0, now()), ('{MAIL}', '{job_id(FIRST['lease'])}', 0, now())"
)
BELIEFS = {belief: n for n, belief in enumerate(Belief)}
Named = tuple[str, Call]


class Jobs:
    """Jobs of a place, others for each belief: calls that are rolled back leave dead rows."""

    def __init__(self, belief: Belief) -> None:
        self._shift = BELIEFS[belief] * 7 * ROWS

    def numbers(self, place: str, *, offset: int = 0, step: int = 7, count: int = ROWS) -> list[int]:
        first = FIRST[place] + self._shift + offset
        return list(range(first, first + step * count, step))

    def ids(self, place: str, **which: int) -> list[UUID]:
        return [job_id(n) for n in self.numbers(place, **which)]

    def claims(self, place: str = "lease") -> tuple[list[UUID], list[int]]:
        return self.ids(place), self.numbers(place)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["postgres18", pytest.param("postgres16", marks=pytest.mark.soak)]
)
async def large(request: pytest.FixtureRequest) -> AsyncIterator[LargeStore]:
    server: Postgres = request.getfixturevalue(request.param)
    store = LargeStore(server.create_database("large"))
    await store.open()
    yield store
    await store.close()
    server.drop_database("large")


async def check(large: LargeStore, belief: Belief, calls: Callable[[Jobs], Iterator[Named]]) -> None:
    await large.believe(belief)
    touched = {name: (await large.touched(call), call.pages) for name, call in calls(Jobs(belief))}
    assert {name: found for name, found in touched.items() if found[0] > found[1]} == {}


@pytest.mark.parametrize("belief", Belief)
async def test_work_touches_a_few_pages_for_each_job(large: LargeStore, belief: Belief) -> None:
    def calls(jobs: Jobs) -> Iterator[Named]:
        yield from _claims(jobs)
        yield from _ends(jobs)
        yield from _inserts(jobs)
        yield from _progress(jobs)

    await check(large, belief, calls)


@pytest.mark.parametrize("belief", Belief)
async def test_maintenance_touches_a_few_pages_for_each_job(large: LargeStore, belief: Belief) -> None:
    def calls(jobs: Jobs) -> Iterator[Named]:
        yield from _gates(jobs)
        yield from _retention(jobs)
        yield from _posts_and_reviews(jobs)
        yield from _reads(jobs)

    await check(large, belief, calls)


def _named(name: str, pages: int, *args: Any, before: str = "") -> Call:
    """A statement by its name, or else a function."""
    numbers = ", ".join(f"${n + 1}" for n in range(len(args)))
    return Call(pages, SQL.get(name, f"select * from dutiful.{name}({numbers})"), args, before)


def _claims(jobs: Jobs) -> Iterator[Named]:
    every = [*(f"queue {n}" for n in range(9)), "default"]

    def claim(
        pages: int, *queues: str, floor: int = 0, limit: int = ROWS, suspects: int = 0, tenants: list[str] | None = None
    ) -> Call:
        levels = list(queues), [100] * len(queues), [floor] * len(queues)
        return _named("claim", pages, ADA, "general", *levels, [KIND], limit, suspects, LEASE, tenants, NOW)

    yield "peek", _named("peek", 250, [KIND])
    yield "peek_at", _named("peek_at", 50, [KIND], ["default", "none"], [100, 100], [0, 0], 1_000)
    yield "peek_at, of none", _named("peek_at", 1_200, ["unknown"], ["default"], [100], [0], 1_000)
    yield "claim", claim(3_000, "default")
    yield "claim one", claim(150, "default", limit=1)
    yield "claim beyond a floor", claim(3_000, "default", floor=FIRST["ready"] + 10_000)
    yield "claim of many queue levels", claim(3_500, *every)
    yield "claim nothing", claim(250, "default", floor=TOTAL)
    yield "claim with suspects", claim(3_500, "default", suspects=1)
    yield "claim suspects", claim(600, "default", limit=0, suspects=10)
    yield "claim of a tenant", claim(3_500, *every, tenants=[TENANT], suspects=1)
    yield "claim of no tenant", claim(150, *every, tenants=["nobody"])
    yield "renew", _named("renew", 4_500, *jobs.claims(), LEASE, NOW)
    yield "check_claims", _named("check_claims", 1_000, *jobs.claims())
    yield "release", _named("release", 4_500, *jobs.claims())
    yield "expired_claims", _named("expired_claims", 1_500, ROWS, NOW)
    yield "expired_claims, none", _named("expired_claims", 100, ROWS, born(0))
    yield "held_claims", _named("held_claims", 50, jobs.ids("lease")[:1])


def _ends(jobs: Jobs) -> Iterator[Named]:
    nothing = [None] * ROWS

    def settle(
        pages: int, to: str, outcome: str, *, phase: str | None = None, place: str = "lease", before: str = "",
        error: str | None = None, delay: timedelta | None = None, expired: bool = False, keep: bool = False,
    ) -> Call:  # fmt: skip
        each = (to, outcome, 1, 0, delay, None, error, keep, phase, None, None)
        columns = [[value] * ROWS for value in each]
        return _named("settle", pages, expired, keep, NOW, *jobs.claims(place), *columns, before=before)

    def complete(pages: int, place: str = "lease", *, skip: bool = False, before: str = "") -> Call:
        return _named("complete", pages, *jobs.claims(place), nothing, None, skip, NOW, before=before)

    yield "complete", complete(2_500)
    yield "complete those that are free", complete(3_000, skip=True)
    yield "complete lost claims", complete(1_000, "finished", skip=True)
    yield "complete and post", complete(5_000, before=POSTING)
    one = jobs.ids("lease")[0], jobs.numbers("lease")[0]
    yield "complete_one", _named("complete_one", 150, *one, None, None)
    yield "complete_one with errors", _named("complete_one", 150, *one, None, ERROR)
    yield "complete partially", settle(5_000, "completed_with_errors", "partial", error=ERROR, phase="completed")
    yield "fail", settle(8_000, "failed", "failed", error=ERROR, phase="failed")
    yield "fail and post", settle(12_000, "failed", "failed", error=ERROR, before=POSTING)
    yield "cancel running", settle(6_500, "cancelled", "cancelled", error=ERROR, phase="cancelled")
    yield "retry", settle(6_000, "scheduled", "failed", error=ERROR, delay=LEASE, phase="failed")
    yield "retry at once", settle(6_000, "ready", "lost", phase="interrupted")
    yield "keep seqs", settle(5_500, "ready", "released", keep=True, phase="interrupted")
    yield "block", settle(6_500, "blocked", "snoozed", error=REJECTED)
    yield "snooze", settle(6_500, "scheduled", "snoozed", delay=LEASE, error=REJECTED)
    yield "rescue", settle(5_500, "ready", "lost", expired=True)
    yield "settle lost claims", settle(1_000, "ready", "lost", place="finished")
    refused = jobs.ids("scheduled"), jobs.numbers("scheduled", offset=1), ["done"] * ROWS
    yield "record_refusals", _named("record_refusals", 7_000, *refused, NOW)
    for place in SIZES:
        yield f"cancel in {place}", _named("cancel", 150, jobs.ids(place)[5], "", NOW)
    yield "run_now", _named("run_now", 100, jobs.ids("scheduled")[5], NOW)
    yield "run_now, ready", _named("run_now", 100, jobs.ids("ready")[5], NOW)


def _inserts(jobs: Jobs) -> Iterator[Named]:
    new = list(range(TOTAL, TOTAL + ROWS))

    def plain(pages: int, numbers: list[int], **fields: Any) -> Call:
        return _named("insert_plain", pages, NOW, None, *job_arrays([new_job(id=job_id(n), **fields) for n in numbers]))

    def one(pages: int, **fields: Any) -> Call:
        return _named("insert_one", pages, NOW, None, *job_values(new_job(**fields)))

    def insert(pages: int, numbers: list[int] = new, **fields: Callable[[int], Any]) -> Call:
        asked = [
            {"id": job_id(n), "kind": KIND, **{name: value(i) for name, value in fields.items()}}
            for i, n in enumerate(numbers)
        ]
        return _named("insert_jobs", pages, msgspec.json.encode(asked).decode(), NOW)

    def keyed(pages: int, keys: list[Any], scope: str = "active", on_conflict: str = "return") -> Call:
        given = {"scope": scope, "on_conflict": on_conflict} | ({"window_ms": 1_000} if scope == "window" else {})
        return insert(pages, unique=lambda i: {"key": str(keys[i]), **given})

    held, expired = jobs.numbers("ready", step=25), jobs.numbers("finished", step=20)
    needed = jobs.ids("ready", offset=2, step=10), jobs.ids("finished", offset=2, step=10)
    yield "insert", plain(3_500, new)
    yield "insert one", plain(100, new[:1])
    yield "insert_one", one(100, id=job_id(new[0]))
    yield "insert_one, for later", one(100, id=job_id(new[0]), delay=LEASE)
    yield "insert_one again", one(100, id=jobs.ids("finished")[5])
    yield "insert again", plain(1_000, jobs.numbers("finished"))
    yield "insert for later", plain(3_500, new, delay=LEASE)
    yield "insert_jobs", insert(5_000)
    yield "insert_jobs again", insert(1_000, jobs.numbers("finished"))
    yield "insert with keys", keyed(7_000, [f"new {n}" for n in new])
    yield "insert with held keys", keyed(7_500, held)
    yield "insert with expired keys", keyed(8_500, expired, "window")
    yield "replace", keyed(22_000, held, on_conflict="replace")
    yield "insert dependents", insert(11_000, depends_on=lambda i: [needed[0][i], needed[1][i]])


def _progress(jobs: Jobs) -> Iterator[Named]:
    nothing = [None] * ROWS
    no_reports: tuple[list[Any], ...] = ([],) * 7

    def marks(phase: str, state: str, anew: bool) -> tuple[list[Any], ...]:
        return *jobs.claims(), [phase] * ROWS, [0] * ROWS, [state] * ROWS, nothing, nothing, [anew] * ROWS, nothing

    reports = *jobs.claims(), nothing, [50.0] * ROWS, [50] * ROWS, nothing, nothing
    yield "report_progress", _named("report_progress", 4_500, *reports, *marks("first", "completed", False), NOW)
    yield "begin anew", _named("report_progress", 4_500, *no_reports, *marks("first", "running", True), NOW)
    yield "phases", _named("phases", 50, jobs.ids("lease")[0])


def _gates(jobs: Jobs) -> Iterator[Named]:
    resume = "delete from dutiful.pause"
    yield "promote", _named("promote", 3_000, ROWS, born(0), NOW)
    yield "promote beyond a floor", _named("promote", 3_000, ROWS, born(FIRST["scheduled"] + 10_000), NOW)
    yield "promote nothing", _named("promote", 100, ROWS, born(0), born(1))
    for name, searched in (("survey", born(0)), ("survey, none expired since", NOW)):
        yield name, _named("survey", 100, ADA, LEASE, born(0), searched, LEASE, LEASE, NOW)
    yield "unblock", _named("unblock", 3_000, jobs.ids("blocked"), NOW)
    yield "assign_due_seqs", _named("assign_due_seqs", 4_500, ROWS, NOW)
    yield "unblock_resumed", _named("unblock_resumed", 3_000, ROWS, NOW, before=resume)
    yield "unblock_resumed, none", _named("unblock_resumed", 50, ROWS, NOW)
    yield "unblock_dependents", _named("unblock_dependents", 40 * SIZES["blocked"] // 10, ROWS, NOW)  # reads all
    yield "block_paused", _named("block_paused", 3_500, [KIND], ROWS, NOW)
    yield "awaited_breakers", _named("awaited_breakers", 50, NOW)
    yield "rejected_jobs", _named("rejected_jobs", 50, [MAIL], [10])
    rejected = jobs.ids("blocked", offset=2, step=10)
    yield "unblock_rejected", _named("unblock_rejected", 2_500, rejected, NOW)
    yield "unblock_rejected, resumed", _named("unblock_rejected", 2_500, rejected, NOW, before=resume)
    yield "waiting_levels", _named("waiting_levels", 60, [MAIL])
    yield "probe_candidates", _named("probe_candidates", 60, [STOPPED] * 2, ["default"] * 2, [TENANT, None], [10, 10])
    yield "breaker_probes", _named("breaker_probes", 60, [MAIL], NOW, before=PROBING)
    probes = jobs.ids("blocked", offset=4, step=10), [MAIL] * ROWS
    stranded = jobs.ids("ready", count=3), [MAIL] * 3
    yield "admit_probes", _named("admit_probes", 4_500, [MAIL], [1], *probes, *stranded, NOW, before=PROBING)
    yield "read_breaker", _named("read_breaker", 50, MAIL, jobs.ids("lease")[0], jobs.numbers("lease")[0], NOW)
    yield "breakers", _named("all_breakers", 100, 1_000, NOW)
    lock = jobs.ids("lease")[0], jobs.numbers("lease")[0], "namespace", "key"
    yield "try_lock", _named("try_lock", 50, *lock, born(0))


def _retention(jobs: Jobs) -> Iterator[Named]:
    def page(first: int) -> tuple[Any, ...]:
        return job_id(first), HIGHEST, NOW, ROWS

    some = jobs.numbers("finished")[0]

    def delete(pages: int, *which: Any, stale: bool = False, tombstones: bool = False) -> Call:
        return _named("delete_finished", pages, *which, stale, tombstones, False, NOW)

    yield "delete_finished", delete(4_500, *page(some))
    yield "delete_finished, stale", delete(4_500, *page(some + 50_000), stale=True)
    yield "delete_finished, too young", delete(300, LOWEST, HIGHEST, born(0), ROWS)
    yield "delete_finished, with tombstones", delete(9_000, *page(some), tombstones=True)
    yield "mark_stale", _named("mark_stale", 8_000, *page(some), False, NOW)
    yield "unsent_notices", _named("unsent_notices", 5_000, ROWS)
    sent = jobs.ids("finished", offset=50_001, step=4), jobs.ids("finished", offset=10, step=20)
    yield "mark_sent", _named("mark_sent", 4_500, *sent, NOW)
    yield "tombstones", _named("tombstones", 400, jobs.ids("finished", step=20))


def _posts_and_reviews(jobs: Jobs) -> Iterator[Named]:
    for name, retries in (("take_posts", None), ("take_posts, few retries", 3)):
        yield name, _named("take_posts", 400, 10, LEASE, [], None, retries, NOW)
    post = jobs.numbers("finished")[0]
    tried = post % 40 // 20
    yield "settle_post", _named("settle_post", 50, job_id(post), tried, "delivered", None, 200, None, NOW)
    dead = jobs.ids("finished", offset=7, step=50)
    yield "write_dead_letters", _named("write_dead_letters", 4_500, jobs.ids("finished", offset=2, step=10), NOW)
    yield "reprocessed", _named("reprocessed", 2_000, jobs.ids("finished")[0], ROWS)
    resolved = dead, dead, ["resolved"] * ROWS, ["by its new job"] * ROWS
    yield "resolve_reprocessed", _named("resolve_reprocessed", 5_000, *resolved, NOW)


def _reads(jobs: Jobs) -> Iterator[Named]:
    some = [*jobs.ids("finished"), *jobs.ids("ready"), *jobs.ids("lease")]
    yield "job_records", _named("job_records", 15_000, some)
    yield "outcomes", _named("outcomes", 7_000, some)
    yield "job_snapshots", _named("job_snapshots", 25_000, some)
    yield "job_marks", _named("job_marks", 25_000, some)
    yield "job_result", _named("job_result", 50, some[0], None, NOW)
    lately = TOTAL - ROWS
    yield "changes_since", _named("changes_since", 80_000, born(lately), job_id(lately), ROWS, None)  # reads all leases
    yield "queue_level_heads", _named("queue_level_heads", 300, None, ["default"], 1_000)
    yield "queue_level_heads of a tenant", _named("queue_level_heads", 100, TENANT, ["default"], 1_000)
    yield "depths of a tenant", _named("depths", 60_000, TENANT, ["default"], 1_000)
    yield "count_stuck", _named("count_stuck", 1_000, LEASE, NOW)
