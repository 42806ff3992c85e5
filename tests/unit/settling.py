"""A settler between scripted parts, as tests of it use it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from worker_parts import MovingClock, ScriptedClaims, clock, new_claim

from dutiful.core.job import Claim
from dutiful.core.outcome import Done
from dutiful.store.claims import Refusal, RefusalReason
from dutiful.worker.counters import AttemptCounters, Timing
from dutiful.worker.executor.outcomes import Settlement
from dutiful.worker.leases import Leases
from dutiful.worker.settler import FLOW, Settler

__all__ = ["clock"]
TIMING = Timing(0.5, 2.0)
OOPS = {"type": "ValueError", "message": "oops"}
WEBHOOK = '{"webhook": {"url": "https://shop.example"}}'
SLEEP = asyncio.sleep  # the real one


class NotedMaintenance:
    def __init__(self) -> None:
        self.wants_jobs = False
        self.scheduled: list[timedelta] = []
        self.ended = 0
        self.freed = 0
        self.awaited: list[int] = []

    def job_scheduled(self, delay: timedelta) -> None:
        self.scheduled.append(delay)

    def jobs_ended(self) -> None:
        self.ended += 1

    def slots_freed(self, jobs: Iterable[UUID]) -> None:
        self.freed += len(list(jobs))

    def awaited_ended(self, job_ids: Iterable[UUID]) -> None:
        self.awaited += [job_id.int for job_id in job_ids]


class NotedDelivery:
    def __init__(self) -> None:
        self.hints: list[Any] = []

    def hint(self, levels: Any) -> None:
        self.hints.append(levels)


class Settling:
    def __init__(self, kinds: Mapping[str, Any] | None = None, limits: Any = None) -> None:
        self.claims = ScriptedClaims()
        self.leases = Leases()
        self.counters = AttemptCounters()
        self.maintenance = NotedMaintenance()
        self.delivery = NotedDelivery()
        self.settler = Settler(
            self.claims,  # type: ignore[arg-type]
            kinds or {},
            self.leases,
            lambda low, high: low,
            self.counters,
            self.delivery,  # type: ignore[arg-type]
            self.maintenance,  # type: ignore[arg-type]
            limits=limits,
        )
        self.pauses: list[float] = []

    def settle(self, number: int, outcome: Settlement, timing: Timing | None = TIMING, **fields: Any) -> Claim:
        claim = new_claim(number, **fields)
        self.leases.add([claim])
        self.settler.settle(claim, outcome, timing)
        return claim

    def counted(self) -> dict[str, int]:
        return {one.outcome: one.count for one in self.counters._take()}

    def stored(self, verb: str = "complete") -> list[list[int]]:
        return [[one.claim_id for one in given] for given in self.claims.asked(verb)]

    def leased(self) -> set[int]:
        return {claim.claim_id for claim, _ in self.leases.snapshot()}


@pytest.fixture
async def settling(clock: MovingClock, monkeypatch: pytest.MonkeyPatch) -> Settling:
    one = Settling()

    async def pause(seconds: float) -> None:
        one.pauses.append(seconds)
        clock.now += seconds
        await SLEEP(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    return one


@asynccontextmanager
async def running(settler: Settler) -> AsyncIterator[None]:
    """The settler's own task while the block runs; it ends by itself once everything is stored."""
    task = asyncio.create_task(settler.run())
    yield
    settler.close()
    await asyncio.wait_for(task, 10)


def done(settling: Settling, first: int, count: int) -> None:
    for number in range(first, first + count):
        settling.settle(number, Done(None))


async def flowing(settling: Settling, count: int = FLOW) -> None:
    """Stores one outcome; while that is under way, as many come in as make a flow, or more."""

    async def meanwhile(given: Any) -> list[Refusal]:
        done(settling, 2, count)
        return []

    settling.claims.script("complete", meanwhile)
    settling.settle(1, Done(None))
    await turns(10)


def locked(*claims: Claim) -> list[Refusal]:
    return [Refusal(claim.job_id, claim.claim_id, RefusalReason.LOCKED) for claim in claims]


def refused(reason: RefusalReason, *claims: Claim) -> list[Refusal]:
    return [Refusal(claim.job_id, claim.claim_id, reason) for claim in claims]


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await SLEEP(0)


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not look():
            await SLEEP(0.001)
