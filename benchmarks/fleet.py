"""What a fleet leaves in the database: live workers and their counts, written as workers write them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful.core.job import Claim
from dutiful.core.settle import Change
from dutiful.core.states import State
from dutiful.maintenance.rollup import INTERVAL, KEEP
from dutiful.store import Store
from dutiful.store.claims import Completion
from dutiful.store.metrics import AttemptStats, MetricStore
from dutiful.store.workers import LaneRecord, WorkerRecord
from dutiful.worker.counters import AttemptCounters, Completed, Timing

WORKERS = 20
KINDS = tuple(f"kind_{number}" for number in range(50))
BEAT = timedelta(seconds=10)  # between two reports of a worker
ROLLUP = timedelta(seconds=INTERVAL)  # between two roll-ups
_ATTEMPTS = 8  # at jobs of each kind, in a turn
_AT_ONCE = 2  # workers whose turn an old minute has
_FOLD_EVERY = 10  # old minutes
_OUTCOMES = (
    # one attempt in so many, and what becomes of it
    (20, "failed", State.SCHEDULED),
    (100, "failed", State.FAILED),
    (200, "snoozed", State.SCHEDULED),
)


class Fleet:
    """Workers that run jobs of all kinds; the numbers are the same each time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._random = random.Random(20)
        self._crew = [(uuid_utils.compat.uuid7(), AttemptCounters()) for _ in range(WORKERS)]
        self._claims = {kind: [self._claim(kind) for _ in range(_ATTEMPTS)] for kind in KINDS}

    async def live(self) -> None:
        """Send heartbeats that are valid for as long as a benchmark may take."""
        for worker_id, _ in self._crew:
            await self._store.workers.heartbeat(_record(worker_id), timedelta(hours=1))

    async def have_counted(self, hours: float) -> None:
        """For so long until now; all of it is rolled up.

        Of most minutes only some workers report: these become as many rows, because all workers add to the same.
        """
        minutes, now = int(hours * 60), datetime.now(UTC)
        for minute in range(minutes):
            at = now - timedelta(minutes=minutes - minute)
            first = minute * _AT_ONCE % WORKERS
            await self._turn(self._crew[first : first + _AT_ONCE], at)
            if minute % _FOLD_EVERY == 0:
                await self.roll_up()
        await self.roll_up()

    async def count_on(self) -> None:
        """The counts of all workers between two roll-ups: the most that is ever read before a roll-up."""
        now = datetime.now(UTC)
        for turn in range(ROLLUP // BEAT):
            await self._turn(self._crew, now - ROLLUP + (turn + 1) * BEAT)

    async def roll_up(self) -> None:
        while await self._store.metrics.roll_up(KEEP):
            pass

    async def _turn(self, crew: Sequence[tuple[UUID, AttemptCounters]], at: datetime) -> None:
        for worker_id, counters in crew:
            for claims in self._claims.values():
                self._run(counters, claims)
            await counters.flush(cast(MetricStore, _MetricsAt(self._store, at)), worker_id)

    def _run(self, counters: AttemptCounters, claims: Sequence[Claim]) -> None:
        completed: list[Completed] = []
        for claim in claims:
            span = Timing(0.0, self._random.lognormvariate(-3, 1))
            outcome = next((end for end in _OUTCOMES if self._random.random() * end[0] < 1), None)
            if outcome is None:
                completed.append((claim, Completion(claim.job_id, claim.claim_id), span))
            else:
                counters.attempt_ended(claim, span)
                _, what, to = outcome
                counters.settled(claim, Change(claim.job_id, claim.claim_id, to, what, claim.attempt, 0))
        counters.completed(completed)
        counters.count()

    def _claim(self, kind: str) -> Claim:
        return Claim(
            job_id=uuid_utils.compat.uuid7(),
            claim_id=self._random.getrandbits(60),
            attempt=1,
            crashes=0,
            seq=0,
            kind=kind,
            queue="default",
            payload="{}" * self._random.randrange(20, 200),
            priority=100,
            max_attempts=5,
            tenant=None,
            correlation_id=None,
            parent_id=None,
            subject=None,
            options=None,
            waited=self._random.lognormvariate(-4, 2),
        )


class _MetricsAt:
    """The metrics of a store, for counts that are reported at another time than now."""

    def __init__(self, store: Store, at: datetime) -> None:
        self._store = store
        self._at = at

    async def add(
        self, worker_id: UUID, turn: int, stats: Sequence[AttemptStats], *, now: datetime | None = None
    ) -> None:
        await self._store.metrics.add(worker_id, turn, stats, now=self._at)


def _record(worker_id: UUID) -> WorkerRecord:
    now = datetime.now(UTC)
    lane = LaneRecord(slots=5, queues=("*",), busy=3, utilisation=0.6)
    return WorkerRecord(
        id=worker_id,
        name=f"bench:{worker_id.int % 10_000}",
        host="bench",
        pid=worker_id.int % 10_000,
        started_at=now,
        seen_at=now,
        lanes={"general": lane, "fast": msgspec.structs.replace(lane, slots=3, queues=("fast",))},
        kinds=list(KINDS),
    )
