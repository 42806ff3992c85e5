"""Huey on SQLite with one worker thread, with and without fsync; it pops a job before it runs it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from huey import SqliteHuey
from huey.consumer import Consumer

from benchmarks.peer import DEFAULT_LANE, Lane, Payload, Store
from benchmarks.run_counter import RunCounter

_POLL_S = 0.001


class HueyProducer:
    """Huey blocks; calling it straight from the loop is faster than any thread."""

    def __init__(self, noop: Callable[[Payload], object]) -> None:
        self._noop = noop

    async def enqueue(self, payload: Payload) -> None:
        self._noop(payload)

    async def enqueue_many(self, payloads: Sequence[Payload], lane: Lane = DEFAULT_LANE) -> None:
        for payload in payloads:
            self._noop(payload)
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class HueyPeer:
    name: str
    fsync: bool
    drain_jobs: int
    package: str = "huey"
    store: Store = "sqlite"
    worker: Sequence[str] = field(init=False)
    scenarios: frozenset[str] = frozenset({"drain1", "enqueue-single", "enqueue-bulk", "latency", "latency-inside"})

    def __post_init__(self) -> None:
        object.__setattr__(self, "worker", ("benchmarks.peers.huey_peer", str(int(self.fsync))))

    async def install(self, url: str) -> None:
        _huey(url, self.fsync).storage.close()

    @asynccontextmanager
    async def producer(self, url: str, tasks: int) -> AsyncIterator[HueyProducer]:
        huey = _huey(url, self.fsync)
        yield HueyProducer(huey.task(name=DEFAULT_LANE.kind)(_noop))
        huey.storage.close()

    @asynccontextmanager
    async def embedded(self, url: str, counter: RunCounter) -> AsyncIterator[HueyProducer]:
        huey = _huey(url, self.fsync)
        noop = _counted(huey, counter)
        consumer = _started(huey)
        yield HueyProducer(noop)
        consumer.stop(graceful=True)
        huey.storage.close()

    async def unfinished(self, url: str) -> int:
        huey = _huey(url, self.fsync)
        count = int(huey.pending_count())
        huey.storage.close()
        return count


def _huey(path: str, fsync: bool) -> SqliteHuey:
    return SqliteHuey("bench", filename=path, fsync=fsync, results=False)


def _noop(payload: Payload) -> None:
    raise AssertionError("the producer only enqueues")


def _counted(huey: SqliteHuey, counter: RunCounter) -> Callable[[Payload], object]:
    @huey.task(name=DEFAULT_LANE.kind)  # type: ignore[untyped-decorator]
    def noop(payload: Payload) -> None:
        counter.hit(payload["sent"])

    found: Callable[[Payload], object] = noop
    return found


def _started(huey: SqliteHuey) -> Consumer:
    # It polls, however close the producer is.
    consumer = Consumer(huey, workers=1, periodic=False, initial_delay=_POLL_S, max_delay=_POLL_S)
    consumer.start()
    return consumer


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    huey = _huey(url, fsync=sys.argv[5] == "1")
    _counted(huey, counter)
    _started(huey)
    await asyncio.Event().wait()


UNSYNCED = HueyPeer("huey", fsync=False, drain_jobs=50_000)
SYNCED = HueyPeer("huey-full", fsync=True, drain_jobs=25_000)
