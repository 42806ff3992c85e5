"""Postgres and SQLite give the same answers and leave the same rows.

Every suite runs on both at once (see TwinStore), and besides them all combinations that the suites only sample. In
`make test` it is those combinations and the suites about a job's places; the others, which each store passes by itself,
are in `make soak`.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from databases import CleanDatabase
from dutiful.core.errors import UsageError
from dutiful.core.job import OnConflict, Scope, Unique
from dutiful.core.outcome import Cancelled, Done, Failed, Lost, Outcome, Partial, Released, Snoozed, TimedOut
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import QueueLevel
from dutiful.store.control import PauseScope
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.sqlite import SqliteStore
from old_events import any_date, owner_url
from suite import add_tests
from suite.audit import AuditSuite, event
from suite.breakers import MAIL
from suite.breakers_gate import BreakerGateSuite, declare
from suite.builders import (
    BACKOFF,
    EXPIRED,
    KIND,
    OOPS,
    PIPELINE,
    T0,
    at,
    change,
    claim,
    claim_one,
    complete,
    crash,
    enqueue,
    enqueue_one,
    finish_one,
    mark,
    new_id,
    new_job,
    pause,
    progress,
    renewing,
    report_all,
    rescue,
    settle,
    start_one,
)
from suite.claims import ClaimSuite
from suite.claims_leases import ClaimLeaseSuite
from suite.claims_order import ClaimOrderSuite
from suite.claims_refusals import ClaimRefusalSuite
from suite.claims_settle import ClaimSettleSuite
from suite.control import ControlSuite
from suite.dead_letters import DeadLetterSuite, act_on, the_letter
from suite.dead_letters_review import LED_BY, DeadLetterReviewSuite
from suite.dependents import DependentSuite
from suite.encryption import EncryptionSuite
from suite.jobs import JobSuite
from suite.jobs_unique import JobUniqueSuite
from suite.leadership import LeadershipSuite
from suite.limits import LimitSuite
from suite.locks import LockSessionSuite
from suite.promotion import PromotionSuite
from suite.promotion_order import PromotionOrderSuite
from suite.retention import RetentionSuite
from suite.webhooks import own, webhook
from twin_store import TwinStore

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Where the order of equals is open: which methods answer differently. Sizes and states are compared all the same.
UNDECIDED = {
    # Jobs that one end unblocks have no order among each other.
    "test_a_dependent_job_has_its_place_from_the_end_of_its_dependencies": ("claims.claim",),
    # Jobs of two kinds that may probe the same breaker.
    "test_as_many_jobs_as_probes_are_released_across_kinds": ("queries.job",),
    # Posts that ended at the same time.
    "test_leftovers_are_deleted_in_steps_and_jobs_are_not": ("webhooks.posts",),
    # Posts that are due at the same time.
    "test_concurrent_senders_never_take_the_same_post": ("webhooks.take",),
}
OUTCOMES: dict[str, Outcome] = {
    "done": Done('{"n": 1}'),
    "partial": Partial('"most"', (OOPS, {"type": "Other", "message": "too"})),
    "failed": Failed(OOPS | {"class": "transient", "fingerprint": "7d1e"}, final=True),
    "retried": Failed(OOPS),
    "retried at once": Failed(OOPS, retry_after=timedelta(0)),
    "timed out": TimedOut(BACKOFF, OOPS),
    "snoozed": Snoozed(BACKOFF),
    "snoozed at once": Snoozed(timedelta(0)),
    "rejected by a breaker": Snoozed(timedelta(0), OOPS | {"breaker": MAIL}),
    "cancelled": Cancelled("no use"),
    "lost": Lost(),
    "released": Released(),
}
ENDS: dict[str, Outcome] = {
    "completed": Done("1"),
    "failed": Failed(OOPS, final=True),
    "cancelled": Cancelled("x"),
    "deleted": Done(),
}
GATES = ("none", "paused kind", "paused queue", "open breaker", "breaker of another kind")
PLACES = (State.READY, State.SCHEDULED, State.BLOCKED, State.RUNNING, State.COMPLETED, State.FAILED, State.CANCELLED)
each_outcome = pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
each_gate = pytest.mark.parametrize("gate", GATES)
each_place = pytest.mark.parametrize("place", PLACES, ids=str)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def postgres(clean18: CleanDatabase) -> AsyncIterator[Store]:
    store = PostgresStore(clean18.reset())
    await store.open()
    yield store
    await store.close()


@pytest_asyncio.fixture(loop_scope="module")
async def store(
    request: pytest.FixtureRequest, postgres: Store, clean18: CleanDatabase, migrated_path: Path
) -> AsyncIterator[Store]:
    clean18.reset(alone=False)
    sqlite = SqliteStore(migrated_path)
    await sqlite.open()
    twin = TwinStore(postgres, sqlite, UNDECIDED.get(request.node.originalname, ()))
    yield cast(Store, twin)
    await twin.compare_all()
    await sqlite.close()


async def shut(store: Store, gate: str) -> None:
    match gate:
        case "paused kind":
            await pause(store, PauseScope.KIND, KIND)
        case "paused queue":
            await pause(store, PauseScope.QUEUE, "default")
        case "open breaker":
            await declare(store)
            await store.breakers.open(MAIL, HOUR, now=T0)
        case "breaker of another kind":
            await declare(store, "other")
            await store.breakers.open(MAIL, HOUR, now=T0)


async def reopen(store: Store, gate: str) -> None:
    match gate:
        case "paused kind":
            await store.control.resume(PauseScope.KIND, KIND)
        case "paused queue":
            await store.control.resume(PauseScope.QUEUE, "default")
        case "open breaker" | "breaker of another kind":
            await store.breakers.reset(MAIL, now=at(100))


async def pass_on(store: Store, seconds: float) -> None:
    """What the services do at that time."""
    await store.promotion.promote(10, now=at(seconds))
    await store.promotion.sweep(10, now=at(seconds))
    await store.promotion.unblock(10, now=at(seconds))


async def placed(store: Store, place: State, **fields: Any) -> Any:
    """A job that ended there or waits there; running, it has a claim of its own."""
    match place:
        case State.SCHEDULED:
            return await enqueue_one(store, run_at=at(60), **fields)
        case State.BLOCKED:
            return await enqueue_one(store, depends_on=(await enqueue_one(store, queue="slow"),), **fields)
        case State.RUNNING:
            return (await start_one(store, **fields)).job_id
        case State.COMPLETED:
            return await finish_one(store, Done("1"), **fields)
        case State.FAILED:
            return await finish_one(store, Failed(OOPS, final=True), **fields)
        case State.CANCELLED:
            return await finish_one(store, Cancelled("no use"), **fields)
        case _:
            return await enqueue_one(store, **fields)


@each_gate
async def test_jobs_are_inserted_alike(store: Store, gate: str) -> None:
    done, failed = await finish_one(store), await finish_one(store, Failed(OOPS, final=True))
    waiting = await enqueue_one(store, queue="slow")
    await shut(store, gate)
    await store.jobs.insert(
        [
            plain := new_job(payload='{"n": [1, 2.5, "ü"]}', subject='{"a": 1}', options=PIPELINE, tenant="acme"),
            plain,
            new_job(priority=1, max_attempts=9, correlation_id="order 7", created_by="web", retry_of=failed),
            new_job(run_at=at(-60)),
            new_job(run_at=at(60)),
            new_job(delay=timedelta(seconds=90)),
            new_job(parent_id=done),
            new_job(depends_on=(done,)),
            new_job(depends_on=(done, waiting), run_at=at(60)),
            new_job(depends_on=(failed,)),
            need := new_job(tenant="acme"),
            new_job(depends_on=(need.id,), tenant="acme"),
        ],
        now=T0,
    )
    await pass_on(store, 61)
    await reopen(store, gate)
    await pass_on(store, 100)
    await claim(
        store, levels=[QueueLevel("default", 1), QueueLevel("default", 100)], kinds=[KIND, "other"], now=at(101)
    )


@pytest.mark.parametrize("needed", ["unknown", "of another tenant", "a batch that is refused whole"])
async def test_a_dependency_is_refused_alike(store: Store, needed: str) -> None:
    theirs = await enqueue_one(store, tenant="globex")
    jobs = [new_job(tenant="acme", depends_on=(theirs if needed == "of another tenant" else new_id(),))]
    if needed == "a batch that is refused whole":
        jobs = [new_job(), *jobs, new_job(unique=Unique("k"))]

    with pytest.raises(UsageError, match="depend"):
        await store.jobs.insert(jobs, now=T0)


@pytest.mark.parametrize("scope", list(Scope), ids=str)
@each_place
async def test_a_taken_key_is_answered_alike(store: Store, place: State, scope: Scope) -> None:
    await store.webhooks.put([webhook()])
    for on_conflict in OnConflict:
        unique = Unique(on_conflict, scope, on_conflict, HOUR if scope is Scope.WINDOW else None)
        holder = await placed(store, place, unique=unique, options=PIPELINE, queue=on_conflict)
        await enqueue_one(store, depends_on=(holder,), queue="slow")
        across = msgspec.structs.replace(unique, across_kinds=True)
        await store.jobs.insert([new_job(), new_job(unique=unique), new_job(unique=unique, tenant="acme")], now=at(1))
        await store.jobs.insert([new_job(kind="other", unique=unique), new_job(unique=across)], now=at(2))
        await store.jobs.insert([new_job(unique=unique)], now=at(2 * 3600))
    await pass_on(store, 3)


async def test_a_key_taken_twice_in_a_call_is_answered_alike(store: Store) -> None:
    unique = Unique("k", on_conflict=OnConflict.REPLACE)
    await store.jobs.insert([new_job(unique=unique), new_job(unique=unique)], now=T0)


async def test_a_batch_with_a_paused_kind_keeps_the_same_order(store: Store) -> None:
    await pause(store, PauseScope.KIND, KIND)
    await store.jobs.insert([new_job(kind="other"), new_job(unique=Unique("k")), new_job(kind="other")], now=T0)
    await store.control.resume(PauseScope.KIND, KIND)
    await store.promotion.sweep(10, now=at(1))
    await claim(store, kinds=[KIND, "other"], now=at(1))


async def test_jobs_are_claimed_in_the_same_order(store: Store) -> None:
    await enqueue(
        store, *(new_job(priority=1 + n % 3, queue=f"q{n % 2}", tenant=("acme", None)[n % 2]) for n in range(12))
    )
    levels = [QueueLevel(f"q{queue}", priority) for priority in (1, 2, 3) for queue in (1, 0)]
    await store.claims.peek([KIND], now=T0)
    await claim(store, levels=levels, limit=2, suspects=0)
    await claim(store, levels=levels, limit=2, tenants=["acme"])
    await pause(store, PauseScope.QUEUE, "q1")
    await claim(store, levels=levels, limit=1, suspects=0)
    now = await crash(store)
    await claim(store, levels=levels, limit=1, suspects=2, now=now)
    await store.claims.expired(10, now=now + HOUR)
    await claim(store, levels=levels, lane="fast", now=now)


@each_gate
@each_outcome
async def test_an_outcome_leaves_the_same_rows(store: Store, outcome: Outcome, gate: str) -> None:
    await store.webhooks.put([webhook(), webhook("failures", states=["failed"])])
    await enqueue(
        store,
        new_job(options=PIPELINE, tenant="acme", correlation_id="order 7"),
        new_job(options=own(), unique=Unique("k")),
        new_job(payload='{"n": 1}'),
        new_job(),
    )
    claims = await claim(store, limit=3)
    await report_all(store, mark(claims[0], "download"), progress(claims[0], phase="download", percent=50.0), now=at(1))
    await shut(store, gate)
    await store.claims.settle([change(claimed, outcome) for claimed in claims], now=at(2))
    await pass_on(store, 20)
    await claim(store, limit=2, now=at(21))
    await reopen(store, gate)
    await pass_on(store, 100)
    for claimed in await claim(store, now=at(101)):
        await settle(store, claimed, outcome, max_attempts=2, now=at(102))
    await pass_on(store, 200)


@each_outcome
async def test_a_late_outcome_of_a_lost_claim_is_refused_alike(store: Store, outcome: Outcome) -> None:
    await store.webhooks.put([webhook()])
    for ended in ("waits", "runs", *ENDS):
        lost = await start_one(store, queue=ended, options=PIPELINE)
        await report_all(store, mark(lost, "download"))
        now = await crash(store)
        if ended != "waits":
            held = await claim_one(store, levels=[QueueLevel(ended, 100)], limit=0, suspects=1, now=now)
            if ended != "runs":
                await settle(store, held, ENDS[ended], now=now)
            if ended == "deleted":
                await store.retention.delete(DAY, 10, None, now=now + 2 * DAY)
        for second in range(2):
            (refused,) = await settle(store, lost, outcome, now=now + timedelta(seconds=second))
            assert refused.reason in ("lost", "repeated")
        await complete(store, lost, result='"late"', now=now + timedelta(seconds=3))
        await store.progress.report([progress(lost, percent=9.0)], [mark(lost, "process")], now=now)


@each_outcome
async def test_an_outcome_after_a_cancel_is_answered_alike(store: Store, outcome: Outcome) -> None:
    claimed = await start_one(store, options=PIPELINE)
    await store.control.cancel(claimed.job_id, "no use", now=at(1))
    await store.control.cancel(claimed.job_id, "again", now=at(2))
    refused = await settle(store, claimed, outcome, now=at(3))
    if refused:
        await settle(store, claimed, Cancelled("no use"), now=at(4))
    await settle(store, claimed, outcome, now=at(5))


@pytest.mark.parametrize("act", ["cancel", "fail", "run now"])
@each_gate
async def test_what_people_do_to_a_job_leaves_the_same_rows(store: Store, act: str, gate: str) -> None:
    await store.webhooks.put([webhook()])
    jobs = [await placed(store, place, options=PIPELINE, unique=Unique(place), queue=place) for place in PLACES]
    for job_id in jobs:
        await enqueue_one(store, depends_on=(job_id,), queue="slow")
    await shut(store, gate)
    for job_id in (*jobs, jobs[0], new_id()):
        match act:
            case "cancel":
                await store.control.cancel(job_id, "no use", now=at(1))
            case "fail":
                await store.control.fail(job_id, OOPS, now=at(1))
            case _:
                await store.control.run_now(job_id, now=at(1))
    await pass_on(store, 61)
    await reopen(store, gate)
    await pass_on(store, 100)


@pytest.mark.parametrize("gate", ["paused kind", "open breaker"])
async def test_a_claim_that_is_released_behind_a_gate_leaves_the_same_rows(store: Store, gate: str) -> None:
    released = await start_one(store)
    await shut(store, gate)
    async with renewing(store) as renewer:
        await renewer.release(released)
    await store.control.cancel(new_id(), "compares the rows", now=at(1))


@each_gate
async def test_claims_that_end_without_an_outcome_leave_the_same_rows(store: Store, gate: str) -> None:
    released, lost, orphaned = [await start_one(store, options=PIPELINE) for _ in range(3)]
    await report_all(store, mark(released, "download"), mark(lost, "download"))
    async with renewing(store) as renewer:
        await renewer.renew(lost, released, now=at(1))
        await renewer.release(released)
        await shut(store, gate)
        await renewer.renew(released, lost, now=at(2))
    await store.control.cancel(orphaned.job_id, "no use", now=at(3))
    await rescue(store, now=at(2 + EXPIRED))
    await pass_on(store, 40)
    await reopen(store, gate)
    await pass_on(store, 100)


@pytest.mark.parametrize("ended", ["completed", "failed", "cancelled"])
async def test_retention_leaves_the_same_rows(store: Store, ended: str) -> None:
    end = ENDS[ended]
    await store.webhooks.put([webhook()])
    old = [await finish_one(store, end, unique=Unique(f"k{n}", Scope.FOREVER)) for n in range(3)]
    await finish_one(store, end, now=at(7200))
    await enqueue_one(store, depends_on=(old[0],))
    later = T0 + DAY + HOUR
    await store.retention.mark_stale(DAY, 2, None, sent=False, now=later)
    await store.retention.mark_stale(DAY, 2, None, sent=True, now=later + HOUR)
    await store.retention.mark_sent(old[:1], [], now=later + HOUR)
    await store.retention.delete(DAY, 2, None, stale_only=True, sent=False, now=later + DAY, tombstones=True)
    await store.retention.unsent(10)
    await store.retention.delete(DAY, 10, None, stale_only=True, now=later + DAY)
    await store.retention.delete(DAY, 10, None, now=later + DAY)
    await store.retention.mark_sent(old, old, now=later + DAY)
    await store.retention.delete_leftovers(DAY, 10, now=later + 3 * DAY)
    await store.events.tombstones(old)


@pytest.mark.parametrize("ended", ENDS)
async def test_reviews_leave_the_same_rows(store: Store, ended: str) -> None:
    for status in ReviewState:
        for act in ReviewAct:
            letter = await the_letter(store, await finish_one(store, Failed(OOPS, final=True), tenant="acme"))
            if status in LED_BY:
                await store.dead_letters.review([act_on(letter, LED_BY[status], notes="first")], now=at(1))
            audited = {"event": event(target="one"), "refusal": event(target="two", after={"skipped": True})}
            review = act_on(letter, act, by="bob", **audited)
            await store.dead_letters.review([review, act_on(letter, act, id=new_id())], now=at(2))
    for claimed in await claim(store, levels=[QueueLevel("again", 100)], now=at(3)):
        await settle(store, claimed, ENDS[ended], now=at(4))
    await store.dead_letters.resolve_reprocessed(3, now=at(5))
    if ended == "deleted":
        for _ in range(2):
            await store.retention.delete(timedelta(seconds=1), 100, None, now=at(60))
    await store.dead_letters.resolve_reprocessed(100, now=at(61))


@pytest.mark.soak
class TestAudit(AuditSuite):
    @contextmanager
    def any_date(self, store: Store) -> Iterator[None]:
        with ExitStack() as both:
            for one in cast(TwinStore, store).stores:
                both.enter_context(any_date(owner_url(one)))
            yield


@pytest.mark.soak
class TestLeadership(LeadershipSuite):
    one_leader = False


PLACES_OF_JOBS = [
    BreakerGateSuite,
    ClaimSuite,
    ClaimLeaseSuite,
    ClaimOrderSuite,
    ClaimRefusalSuite,
    ClaimSettleSuite,
    ControlSuite,
    DeadLetterSuite,
    DeadLetterReviewSuite,
    DependentSuite,
    JobSuite,
    JobUniqueSuite,
    LimitSuite,
    PromotionSuite,
    PromotionOrderSuite,
    RetentionSuite,
]
add_tests(globals(), PLACES_OF_JOBS)
# Where values are sealed, and the keys of rows, are each store's own.
add_tests(globals(), None, pytest.mark.soak, without=[EncryptionSuite, LockSessionSuite])
