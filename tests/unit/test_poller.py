"""How hints find their jobs where a peek takes long, because there are very many queues."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from worker_parts import AWAY, MovingClock, config_of, new_claim

from dutiful.core.errors import StoreUnavailable
from dutiful.delivery.base import EVERYWHERE, QueueLevels
from dutiful.store.claims import QueueLevel
from dutiful.worker.lanes.fetcher import MOST_HINTED, FetchCursors
from dutiful.worker.lanes.poller import SLOW, Poller
from dutiful.worker.lanes.selection import Selection

KNOWN = QueueLevel("known", 100, 7)


class Claims:
    """Notes what is called; a peek takes so many seconds, and waits while it is held."""

    def __init__(self, clock: MovingClock) -> None:
        self._clock = clock
        self.calls: list[str] = []
        self.called = asyncio.Event()
        self.free = asyncio.Event()
        self.free.set()
        self.takes = 0.0
        self.error: Exception | None = None

    async def peek(self, kinds: Sequence[str]) -> list[QueueLevel]:
        self._note("peek")
        await self.free.wait()
        self._clock.now += self.takes
        if self.error is not None:
            raise self.error
        return []

    async def peek_at(self, kinds: Sequence[str], levels: list[QueueLevel]) -> list[QueueLevel]:
        self._note(f"peek at {[level.queue for level in levels]}")
        self._clock.now += self.takes
        if self.error is not None:
            raise self.error
        return [KNOWN]

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.called.set()

    async def until(self, calls: int) -> None:
        async with asyncio.timeout(10):
            while len(self.calls) < calls:
                self.called.clear()
                await self.called.wait()


class Lane:
    def __init__(self) -> None:
        self.woken = asyncio.Event()

    def serves(self, queue: str) -> bool:
        return queue == KNOWN.queue

    def wake(self) -> None:
        self.woken.set()


class Polling:
    def __init__(self, clock: MovingClock) -> None:
        self.claims, self.lane, self.hints = Claims(clock), Lane(), asyncio.Queue[QueueLevels]()
        config = config_of(self.claims)
        config.delivery = SimpleNamespace(listen=self._listen, healthy=True)
        config.maintenance = None
        self.cursors = FetchCursors()
        self.cursors.advance([new_claim(1, queue=KNOWN.queue, seq=KNOWN.seq)], 1e9)
        self.poller = Poller(config, {Selection(("greet",), ()): self.cursors}, [self.lane])  # type: ignore[list-item]

    async def _listen(self, owner: object = None) -> AsyncIterator[QueueLevels]:
        while True:
            yield await self.hints.get()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(loop()) for loop in (self.poller.listen, self.poller.look, self.poller.walk)]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovingClock:
    moving = MovingClock()
    monkeypatch.setattr("dutiful.worker.lanes.poller.time", moving)
    return moving


async def test_a_hint_is_followed_by_a_peek_and_no_other_look(clock: MovingClock) -> None:
    polling = Polling(clock)
    async with polling.running():
        polling.hints.put_nowait(EVERYWHERE)
        await polling.claims.until(1)
    assert polling.claims.calls == ["peek"]


async def test_a_hint_does_not_wait_for_a_peek_under_way(clock: MovingClock) -> None:
    polling = Polling(clock)
    polling.claims.free.clear()
    async with polling.running():
        polling.hints.put_nowait(EVERYWHERE)
        await polling.claims.until(1)
        polling.hints.put_nowait(EVERYWHERE)
        await asyncio.wait_for(polling.lane.woken.wait(), 10)
        assert polling.claims.calls == ["peek", "peek at ['known']"]
        polling.claims.free.set()
        await polling.claims.until(3)
    assert polling.claims.calls[2:] == ["peek"], "what came meanwhile may be elsewhere"


async def test_a_hint_with_names_does_not_wait_for_one_without(
    clock: MovingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start of a worker, and after enqueues by SQL, jobs began up to a quarter of a second late."""
    monkeypatch.setattr("dutiful.worker.lanes.poller.LONGEST_REST", 3_600)
    polling = Polling(clock)
    polling.claims.takes = 1_000.0
    await polling.poller.peek()
    async with polling.running():
        polling.hints.put_nowait(EVERYWHERE)
        await polling.claims.until(3)  # now it rests
        polling.lane.woken.clear()
        polling.hints.put_nowait(frozenset({(KNOWN.queue, KNOWN.priority)}))
        await asyncio.wait_for(polling.lane.woken.wait(), 10)


async def test_a_hint_without_names_is_followed_after_an_outage(clock: MovingClock) -> None:
    polling = Polling(clock)
    polling.claims.takes = 2 * SLOW
    await polling.poller.peek()
    polling.claims.error = AWAY
    polling.hints.put_nowait(EVERYWHERE)
    listening: asyncio.Task[Any] = asyncio.create_task(polling.poller.listen())
    with pytest.raises(StoreUnavailable):
        await polling.poller.look()
    polling.claims.error = None
    looking: asyncio.Task[Any] = asyncio.create_task(polling.poller.look())
    await asyncio.wait_for(polling.lane.woken.wait(), 10)
    for task in (listening, looking):
        task.cancel()
    await asyncio.wait([listening, looking])


@pytest.mark.parametrize(("took", "calls"), [(SLOW, ["peek"]), (2 * SLOW, ["peek at ['known']", "peek"])])
async def test_a_hint_does_not_wait_for_a_peek_that_will_take_long(
    clock: MovingClock, took: float, calls: list[str]
) -> None:
    polling = Polling(clock)
    polling.claims.takes = took
    await polling.poller.peek()
    async with polling.running():
        polling.hints.put_nowait(EVERYWHERE)
        await polling.claims.until(1 + len(calls))
    assert polling.claims.calls[1:] == calls


async def test_a_peek_that_failed_is_made_again(clock: MovingClock) -> None:
    polling = Polling(clock)
    polling.claims.error = AWAY
    polling.hints.put_nowait(EVERYWHERE)
    listening: asyncio.Task[Any] = asyncio.create_task(polling.poller.listen())
    looking: asyncio.Task[Any] = asyncio.create_task(polling.poller.look())
    with pytest.raises(StoreUnavailable):
        await polling.poller.walk()
    polling.claims.error = None
    walking: asyncio.Task[Any] = asyncio.create_task(polling.poller.walk())
    await polling.claims.until(2)
    for task in (listening, looking, walking):
        task.cancel()
    await asyncio.wait([listening, looking, walking])


async def test_jobs_that_came_due_in_very_many_queues_lengthen_no_claim(clock: MovingClock) -> None:
    polling = Polling(clock)
    polling.poller.on_jobs_moved(frozenset((f"q{n}", 100) for n in range(MOST_HINTED + 1)))
    assert polling.lane.woken.is_set()
    assert len(polling.cursors.levels(("*",))) == 1 + MOST_HINTED
    async with polling.running():
        await polling.claims.until(1)
    assert polling.claims.calls == ["peek"], "the job may be in a level that was left out"


async def test_jobs_that_came_due_in_a_few_queues_are_claimed_without_a_peek(clock: MovingClock) -> None:
    polling = Polling(clock)
    polling.poller.on_jobs_moved(frozenset({("new", 100), (KNOWN.queue, KNOWN.priority)}))
    assert {(level.queue, level.seq) for level in polling.cursors.levels(("*",))} == {("new", 0), ("known", 6)}
    polling.cursors.lower([], 1e12)
    assert [level.queue for level in polling.cursors.levels(("*",))] == ["known"], "no peek found a job there"


async def test_admitted_jobs_are_found_below_a_floor_without_a_peek(clock: MovingClock) -> None:
    polling = Polling(clock)
    async with polling.running():
        polling.poller.on_jobs_moved(EVERYWHERE, [QueueLevel("known", 100, 3)])
        assert [level.seq for level in polling.cursors.levels(("*",))] == [2]
        assert polling.lane.woken.is_set()
        polling.hints.put_nowait(EVERYWHERE)
        await polling.claims.until(1)
    assert polling.claims.calls == ["peek"], "only the hint caused one"


async def test_jobs_that_maintenance_has_moved_are_searched_by_a_peek(clock: MovingClock) -> None:
    polling = Polling(clock)
    async with polling.running():
        polling.poller.on_jobs_moved(EVERYWHERE)
        await polling.claims.until(1)
    assert polling.claims.calls == ["peek"]


async def test_jobs_that_were_admitted_in_very_many_queues_are_searched_by_a_peek(clock: MovingClock) -> None:
    polling = Polling(clock)
    async with polling.running():
        polling.poller.on_jobs_moved(EVERYWHERE, [QueueLevel(f"q{n}", 100, 3) for n in range(MOST_HINTED + 1)])
        await polling.claims.until(1)
    assert len(polling.cursors.levels(("*",))) == 1
