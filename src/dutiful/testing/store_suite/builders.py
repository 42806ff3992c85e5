"""Jobs, claims and times for the suite: short words for what every test needs."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from dutiful.acting import Pause, PauseScope
from dutiful.core.backoff import Fixed
from dutiful.core.ids import from_parts
from dutiful.core.job import Claim, Inserted, Insertion, Lapsed, NewJob, Progress, Token
from dutiful.core.outcome import Lost, Outcome
from dutiful.core.pipeline import PhaseState
from dutiful.core.retry import Retry
from dutiful.core.settle import Change, Held, Policy, decide
from dutiful.core.transitions import State
from dutiful.store import Store
from dutiful.tracking import PhaseMark, Report
from dutiful.working import Ask, Completion, Line, Refusal, Renewal, Verdict

# Long past, so that a call that forgets its `now` and asks the clock is noticed.
T0 = datetime(2024, 1, 1, 12, 0, tzinfo=UTC)
LEASE = timedelta(seconds=30)
EXPIRED = LEASE.total_seconds() + 1
ADA, BOB = UUID(int=0xADA), UUID(int=0xB0B)  # two workers
DEFAULT = Line("default", 100)
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
    """Ids in the order in which they were made, however fast."""
    return from_parts(int(T0.timestamp() * 1000), next(_ids).to_bytes(10, "big"))


def new_job(**fields: Any) -> NewJob:
    return NewJob(**{"id": new_id(), "kind": KIND, "queue": "default", "payload": "{}", **fields})


def made(*jobs: NewJob) -> list[Inserted]:
    return [Inserted(job.id, Insertion.MADE) for job in jobs]


async def enqueue(store: Store, *jobs: NewJob, now: datetime = T0) -> None:
    """Insert jobs that must all be new."""
    assert await store.insert(jobs, now=now) == made(*jobs)


async def enqueue_one(store: Store, *, now: datetime = T0, **fields: Any) -> UUID:
    job = new_job(**fields)
    await enqueue(store, job, now=now)
    return job.id


async def claim(store: Store, *, now: datetime = T0, **fields: Any) -> list[Claim]:
    ask: dict[str, Any] = {
        "worker_id": ADA,
        "lane": "general",
        "lines": [DEFAULT],
        "kinds": [KIND],
        "limit": 100,
        "lease": LEASE,
        "suspects": 100,
    }
    return await store.claim(Ask(**ask | fields), now=now)


async def claim_one(store: Store, *, now: datetime = T0, **fields: Any) -> Claim:
    (claimed,) = await claim(store, now=now, **{"limit": 1, "suspects": 0} | fields)
    return claimed


async def start_one(store: Store, *, now: datetime = T0, **fields: Any) -> Claim:
    """A new job that runs at once."""
    job_id = await enqueue_one(store, now=now, **fields)
    line = Line(fields.get("queue", "default"), fields.get("priority", 100))
    claimed = await claim_one(store, now=now, lines=[line], kinds=[fields.get("kind", KIND)])
    assert claimed.job_id == job_id
    return claimed


async def finish_one(store: Store, outcome: Outcome | None = None, *, now: datetime = T0, **fields: Any) -> UUID:
    """A new job that ran and is final: done, unless `outcome` tells otherwise."""
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


def token(claimed: Fenced) -> Token:
    return Token(claimed.job_id, claimed.claim_id)


def refusal(claimed: Fenced, verdict: Verdict) -> Refusal:
    return Refusal(claimed.job_id, claimed.claim_id, verdict)


def change(held: Held, outcome: Outcome, *, max_attempts: int = 5, policy: Policy = POLICY) -> Change:
    return decide(held, outcome, policy, max_attempts, lambda low, high: low)


async def complete(store: Store, *claims: Fenced, now: datetime = T0, result: str | None = None) -> list[Refusal]:
    return await store.complete([Completion(c.job_id, c.claim_id, result) for c in claims], now=now)


async def settle(
    store: Store, claimed: Claim | Lapsed, outcome: Outcome, *, now: datetime = T0, **fields: Any
) -> list[Refusal]:
    return await store.settle([change(claimed, outcome, **fields)], now=now)


async def rescue(store: Store, *, now: datetime, policy: Policy = POLICY) -> list[Refusal]:
    """What the rescuer does: every lapsed claim is decided as lost."""
    changes = [change(lapsed, Lost(), policy=policy) for lapsed in await store.lapsed(100, now=now)]
    return await store.settle(changes, lapsed_only=True, now=now)


async def crash(store: Store, *, now: datetime = T0) -> datetime:
    """All workers die, and their claims of `now` are rescued; returns the time of that."""
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


def progress(claimed: Fenced, **fields: Any) -> Report:
    return Report(job_id=claimed.job_id, claim_id=claimed.claim_id, **fields)


async def track(store: Store, *told: PhaseMark | Report, now: datetime = T0) -> None:
    """Report under claims that must all be held."""
    reports = [report for report in told if isinstance(report, Report)]
    marks = [mark for mark in told if isinstance(mark, PhaseMark)]
    assert await store.report(reports, marks, now=now) == frozenset()


async def phases(store: Store, job_id: UUID) -> list[tuple[str, PhaseState, int]]:
    """Each phase with its state and how often it was begun."""
    return [(phase.name, phase.state, phase.attempt) for phase in await store.phases(job_id)]


async def progress_of(store: Store, job_id: UUID) -> Progress | None:
    record = await store.find(job_id)
    assert record is not None
    return record.progress


async def state(store: Store, job_id: UUID) -> State:
    record = await store.find(job_id)
    assert record is not None
    return record.state


async def states(store: Store, job_ids: Sequence[UUID]) -> list[State]:
    return [await state(store, job_id) for job_id in job_ids]


async def history(store: Store, job_id: UUID) -> list[tuple[int, str]]:
    """Each attempt that was not the final one, with its outcome."""
    return [(record.attempt, record.outcome) for record in await store.attempts(job_id)]


async def outcomes(store: Store, job_id: UUID) -> list[str]:
    return [word for _, word in await history(store, job_id)]


async def warm(store: Store) -> None:
    """Open the store's connections, so that the calls that follow do happen at once."""
    await asyncio.gather(*(store.pauses() for _ in range(16)))


async def pause(store: Store, scope: PauseScope, name: str, *, now: datetime = T0) -> bool:
    return await store.pause(Pause(scope, name, since=now, by="ops", reason="incident"), now=now)


class KeeperThread:
    """A store's keeper in the one thread that may call it."""

    def __init__(self, store: Store) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._keeper = self._thread.submit(store.keeper).result

    async def renew(self, *claims: Fenced, now: datetime, lease: timedelta = LEASE) -> Renewal:
        tokens = [token(claimed) for claimed in claims]
        return await self._call(lambda: self._keeper().renew(tokens, lease, now=now))

    async def release(self, *claims: Fenced) -> None:
        await self._call(lambda: self._keeper().release([token(claimed) for claimed in claims]))

    async def close(self) -> None:
        await self._call(lambda: self._keeper().close())
        self._thread.shutdown()

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


@asynccontextmanager
async def keeping(store: Store) -> AsyncIterator[KeeperThread]:
    keeper = KeeperThread(store)
    try:
        yield keeper
    finally:
        await keeper.close()


def same_json(left: str | None, right: str | None) -> bool:
    """JSON travels as text, and a store may lay it out anew."""
    return (left and msgspec.json.decode(left)) == (right and msgspec.json.decode(right))
