"""Jobs, claims and times for the suite: short functions for what every test needs."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from dutiful.core.ids import from_parts
from dutiful.core.job import Claim, ClaimToken, HeldClaim, Inserted, Insertion, NewJob, PhaseState, Progress
from dutiful.core.outcome import Cancelled, Lost, Outcome
from dutiful.core.retry.backoff import Fixed
from dutiful.core.retry.policy import Retry
from dutiful.core.settle import AnyClaim, Change, Policy, decide
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import ClaimRequest, Completion, QueueLevel, Refusal, RefusalReason, Renewal
from dutiful.store.control import Pause, PauseScope
from dutiful.store.metrics import AttemptStats
from dutiful.store.progress import PhaseMark, ProgressReport

# Long past, so that a call that ignores its `now` and reads the clock is noticed.
T0 = datetime(2024, 1, 1, 12, 0, tzinfo=UTC)
LEASE = timedelta(seconds=30)
EXPIRED = LEASE.total_seconds() + 1
ADA, BOB = UUID(int=0xADA), UUID(int=0xB0B)  # two workers
DEFAULT = QueueLevel("default", 100)
KIND = "greet"
BACKOFF = timedelta(seconds=10)
POLICY = Policy(retry=Retry(backoff=Fixed(BACKOFF)))
OOPS = {"type": "ValueError", "message": "oops"}
PHASES = ("download", "process", "upload")
PIPELINE = '{"phases": ["download", "process", "upload"]}'  # the options of a job that has them

T = TypeVar("T")

_ids = itertools.count(1)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def new_id() -> UUID:
    """Ids in the order of calls, however fast."""
    return from_parts(int(T0.timestamp() * 1000), next(_ids).to_bytes(10, "big"))


def new_job(**fields: Any) -> NewJob:
    """A job as the client makes it: one with a unique key has it in its options too."""
    if (unique := fields.get("unique")) is not None:
        options = msgspec.json.decode(fields.get("options") or "{}")
        fields["options"] = msgspec.json.encode({**options, **unique.as_options()}).decode()
    return NewJob(**{"id": new_id(), "kind": KIND, "queue": "default", "payload": "{}", **fields})


def made(*jobs: NewJob) -> list[Inserted]:
    return [Inserted(job.id, Insertion.MADE) for job in jobs]


async def enqueue(store: Store, *jobs: NewJob, now: datetime = T0) -> None:
    """Insert jobs that must all be new."""
    assert await store.jobs.insert(jobs, now=now) == made(*jobs)


async def enqueue_one(store: Store, *, now: datetime = T0, **fields: Any) -> UUID:
    job = new_job(**fields)
    await enqueue(store, job, now=now)
    return job.id


async def claim(store: Store, *, now: datetime = T0, **fields: Any) -> list[Claim]:
    ask: dict[str, Any] = {
        "worker_id": ADA,
        "lane": "general",
        "levels": [DEFAULT],
        "kinds": [KIND],
        "limit": 100,
        "lease": LEASE,
        "suspects": 100,
    }
    return await store.claims.claim(ClaimRequest(**ask | fields), now=now)


async def claim_one(store: Store, *, now: datetime = T0, **fields: Any) -> Claim:
    (claimed,) = await claim(store, now=now, **{"limit": 1, "suspects": 0} | fields)
    return claimed


async def start_one(store: Store, *, now: datetime = T0, **fields: Any) -> Claim:
    """A new job that runs at once."""
    job_id = await enqueue_one(store, now=now, **fields)
    line = QueueLevel(fields.get("queue", "default"), fields.get("priority", 100))
    claimed = await claim_one(store, now=now, levels=[line], kinds=[fields.get("kind", KIND)])
    assert claimed.job_id == job_id
    return claimed


async def finish_one(store: Store, outcome: Outcome | None = None, *, now: datetime = T0, **fields: Any) -> UUID:
    """A new job that ran and is final: done, or with `outcome`."""
    claimed = await start_one(store, now=now, **fields)
    if outcome is None:
        assert await complete(store, claimed, now=now) == []
    else:
        assert await settle(store, claimed, outcome, now=now) == []
    return claimed.job_id


class Fenced(Protocol):
    @property
    def job_id(self) -> UUID: ...
    @property
    def claim_id(self) -> int: ...


def token(claimed: Fenced) -> ClaimToken:
    return ClaimToken(claimed.job_id, claimed.claim_id)


def refusal(claimed: Fenced, reason: RefusalReason) -> Refusal:
    return Refusal(claimed.job_id, claimed.claim_id, reason)


def change(held: AnyClaim, outcome: Outcome, *, max_attempts: int = 5, policy: Policy = POLICY) -> Change:
    return decide(held, outcome, policy, max_attempts, lambda low, high: low)


async def complete(store: Store, *claims: Fenced, now: datetime = T0, result: str | None = None) -> list[Refusal]:
    return await store.claims.complete([Completion(c.job_id, c.claim_id, result) for c in claims], now=now)


async def settle(
    store: Store, claimed: Claim | HeldClaim, outcome: Outcome, *, now: datetime = T0, **fields: Any
) -> list[Refusal]:
    return await store.claims.settle([change(claimed, outcome, **fields)], now=now)


async def rescue(store: Store, *, now: datetime, policy: Policy = POLICY) -> list[Refusal]:
    """Settle every expired claim as lost, or as cancelled if that was requested, as the rescuer does."""
    changes = [
        change(held, Cancelled("no") if held.cancel_requested else Lost(), policy=policy)
        for held in await store.claims.expired(100, now=now)
    ]
    return await store.claims.settle(changes, expired_only=True, now=now)


async def crash(store: Store, *, now: datetime = T0) -> datetime:
    """All workers crash, and their claims of `now` are rescued; returns the time of the rescue."""
    later = now + timedelta(seconds=EXPIRED)
    assert await rescue(store, now=later) == []
    return later


def mark(claimed: Fenced, phase: str, state: PhaseState = PhaseState.RUNNING, **fields: Any) -> PhaseMark:
    return PhaseMark(
        job_id=claimed.job_id,
        claim_id=claimed.claim_id,
        name=phase,
        position=PHASES.index(phase),
        state=state,
        **fields,
    )


def progress(claimed: Fenced, **fields: Any) -> ProgressReport:
    return ProgressReport(job_id=claimed.job_id, claim_id=claimed.claim_id, **fields)


async def report_all(store: Store, *reports_and_marks: PhaseMark | ProgressReport, now: datetime = T0) -> None:
    """Reports progress under claims that must all be held."""
    reports = [report for report in reports_and_marks if isinstance(report, ProgressReport)]
    marks = [mark for mark in reports_and_marks if isinstance(mark, PhaseMark)]
    assert await store.progress.report(reports, marks, now=now) == frozenset()


async def phases(store: Store, job_id: UUID) -> list[tuple[str, PhaseState, int]]:
    """Each phase with its state and how often it was begun."""
    return [(phase.name, phase.state, phase.attempt) for phase in await store.progress.phases(job_id)]


async def progress_of(store: Store, job_id: UUID) -> Progress | None:
    record = await store.queries.job(job_id)
    assert record is not None
    return record.progress


async def state(store: Store, job_id: UUID) -> State:
    record = await store.queries.job(job_id)
    assert record is not None
    return record.state


async def states(store: Store, job_ids: Sequence[UUID]) -> list[State]:
    return [await state(store, job_id) for job_id in job_ids]


async def history(store: Store, job_id: UUID) -> list[tuple[int, str]]:
    """Each attempt that was not the final one, with its outcome."""
    return [(record.attempt, record.outcome) for record in await store.queries.attempts(job_id)]


async def outcomes(store: Store, job_id: UUID) -> list[str]:
    return [outcome for _, outcome in await history(store, job_id)]


async def warm(store: Store) -> None:
    """Opens the store's connections, so that the calls that follow are concurrent."""
    await asyncio.gather(*(store.control.pauses() for _ in range(16)))


async def pause(store: Store, scope: PauseScope, name: str, *, now: datetime = T0) -> bool:
    return await store.control.pause(Pause(scope, name, since=now, by="ops", reason="incident"), now=now)


class RenewerThread:
    """A store's lease renewer in the one thread that may call it."""

    def __init__(self, store: Store) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._renewer = self._thread.submit(store.claims.renewer).result

    async def renew(self, *claims: Fenced, now: datetime, lease: timedelta = LEASE) -> Renewal:
        tokens = [token(claimed) for claimed in claims]
        return await self._call(lambda: self._renewer().renew(tokens, lease, now=now))

    async def release(self, *claims: Fenced) -> None:
        await self._call(lambda: self._renewer().release([token(claimed) for claimed in claims]))

    async def close(self) -> None:
        await self._call(lambda: self._renewer().close())
        self._thread.shutdown()

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


@asynccontextmanager
async def renewing(store: Store) -> AsyncIterator[RenewerThread]:
    renewer = RenewerThread(store)
    try:
        yield renewer
    finally:
        await renewer.close()


def same_json(left: str | None, right: str | None) -> bool:
    """JSON travels as text, and a store may format it differently."""
    return (left and msgspec.json.decode(left)) == (right and msgspec.json.decode(right))


async def counted_ever(store: Store) -> list[AttemptStats]:
    return (await store.metrics.counted(timedelta(0))).ever
