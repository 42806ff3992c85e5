"""Fresh databases, real worker processes and the one way in which every system is measured."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.costs import ServerMeter, read
from benchmarks.peer import DEFAULT_LANE, Lane, Pausing, Peer, payload
from benchmarks.round_trips import RoundTrips, counted
from benchmarks.run_counter import RunCounter
from servers import PostgresServer

# A checkpoint in the middle of a run would be noise; durability stays as in production.
SERVER_SETTINGS = {"max_wal_size": "8GB", "checkpoint_timeout": "30min"}

_STALL_S = 60.0
_BULK = 1_000

Metrics = dict[str, float]


class BenchmarkError(RuntimeError):
    """A system did not do what its peer promised."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; `quick` only proves that everything runs."""

    drain_scale: float = 1.0
    enqueue_s: float = 3.0
    latency_jobs: int = 300
    backlog_jobs: int = 500_000
    head_jobs: int = 100_000
    pin_s: float = 120.0
    phased_jobs: int = 1_000
    listeners: int = 200
    listed_jobs: int = 1_000_000
    counted_hours: float = 24.0
    trip_jobs: int = 20_000
    supervised_sends: int = 3_000
    docverse_builds: int = 1_000
    door_rounds: int = 15
    pairs: int = 24  # a short drain is noisy, the median of many pairs is not

    @classmethod
    def quick(cls) -> Sizes:
        return cls(
            drain_scale=0.05, enqueue_s=0.3, latency_jobs=30, backlog_jobs=5_000, head_jobs=2_000, pin_s=4.0,
            phased_jobs=50, listeners=20, listed_jobs=5_000, counted_hours=0.2, trip_jobs=6_000, pairs=2,
            supervised_sends=50, door_rounds=2, docverse_builds=20,
        )  # fmt: skip


class Workers:
    """Running worker processes and what they have counted."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], counters: Sequence[RunCounter]) -> None:
        self._processes = processes
        self._tallies = counters

    @property
    def pids(self) -> list[int]:
        """The processes that were started; they may have children."""
        return [process.pid for process in self._processes]

    @property
    def count(self) -> int:
        """How many jobs they have run between them."""
        return sum(counter.count for counter in self._tallies)

    @property
    def first(self) -> float:
        """When the first job of any of them ended."""
        return min(counter.first for counter in self._tallies if counter.count)

    @property
    def last(self) -> float:
        """When the latest job of any of them ended."""
        return max(counter.last for counter in self._tallies)

    @property
    def reports(self) -> int:
        """How many reports of progress they have stored."""
        return sum(counter.reports for counter in self._tallies)

    @property
    def rounds(self) -> int:
        """How many transactions that took."""
        return sum(counter.rounds for counter in self._tallies)

    def rate(self) -> float:
        """Jobs a second, from the end of the first to the end of the latest."""
        # Read in this order: a job that ends in between then lowers the rate, never raises it.
        count, last = self.count, self.last
        return (count - 1) / (last - self.first)

    def latencies(self) -> list[float]:
        """Seconds from enqueue to handler."""
        return [value for counter in self._tallies for value in counter.latencies()]

    def memory_mb(self) -> float:
        """Resident memory of the largest worker."""
        return max(_resident_mb(process.pid) for process in self._processes)

    async def reach(self, target: int, within_s: float = math.inf) -> None:
        """Wait until they have run this many jobs, or for so long."""
        began = since = time.monotonic()
        seen = -1
        while (count := self.count) < target and time.monotonic() - began < within_s:
            if count != seen:
                seen, since = count, time.monotonic()
            if dead := [process.returncode for process in self._processes if process.poll() is not None]:
                raise BenchmarkError(f"a worker ended with code {dead[0]} after {count:,} of {target:,} jobs")
            if time.monotonic() - since > _STALL_S:
                raise BenchmarkError(f"workers stalled at {count:,} of {target:,} jobs")
            await asyncio.sleep(0.002)


@dataclass(slots=True)
class Bench:
    """One sitting: a Postgres server, what measures it, a directory for SQLite files, and the sizes."""

    server: PostgresServer
    meter: ServerMeter
    directory: Path
    sizes: Sizes
    # What each system reached in the long run without an old snapshot, to compare with.
    unpinned: dict[str, float] = field(default_factory=dict)
    _trips: dict[str, float] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @asynccontextmanager
    async def database(self, peer: Peer) -> AsyncIterator[str]:
        """An empty database with the peer's tables, dropped afterwards."""
        name = f"bench_{next(self._numbers)}"
        if peer.store == "sqlite":
            with tempfile.TemporaryDirectory(dir=self.directory) as directory:
                url = str(Path(directory) / f"{name}.db")
                await peer.install(url)
                yield url
            return
        url = self.server.create_database(name)
        try:
            await peer.install(url)
            self.server.run_sql("CHECKPOINT")
            yield url
        finally:
            self.server.drop_database(name)

    async def preload(self, peer: Peer, url: str, jobs: int, lane: Lane = DEFAULT_LANE) -> None:
        """Fill the queue and write it to the disk, then refresh the planner's statistics, as autovacuum would."""
        async with peer.producer(url, 1) as producer:
            for start in range(0, jobs, _BULK):
                await producer.enqueue_many([payload(i) for i in range(start, min(start + _BULK, jobs))], lane)
        os.sync()  # hundreds of MB, which the kernel would write beside the commits of what is measured
        self.analyze(peer, url)

    def analyze(self, peer: Peer, url: str) -> None:
        """Refresh the planner's statistics."""
        if peer.store == "postgres":
            self.server.run_sql("ANALYZE", url.rpartition("/")[2])

    def vacuum(self, peer: Peer, url: str) -> None:
        """What autovacuum does within the minute after many rows came."""
        if peer.store == "postgres":
            self.server.run_sql("VACUUM (ANALYZE)", url.rpartition("/")[2])

    def drain_jobs(self, peer: Peer) -> int:
        """How many jobs a drain of this sitting has."""
        return max(int(peer.drain_jobs * self.sizes.drain_scale), 200)

    @contextmanager
    def workers(self, peer: Peer, url: str, count: int = 1, queues: Sequence[str] = ("bench",)) -> Iterator[Workers]:
        """Real processes, killed at the end."""
        processes: list[subprocess.Popen[bytes]] = []
        counters: list[RunCounter] = []
        module, *options = peer.worker
        try:
            for _ in range(count):
                path = self.directory / f"counter_{next(self._numbers)}"
                counters.append(RunCounter.create(path))
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.worker",
                    module,
                    url,
                    str(path),
                    ",".join(queues),
                    *options,
                ]
                processes.append(subprocess.Popen(command))
            yield Workers(processes, counters)
        finally:
            for process in processes:
                process.kill()
                process.wait()

    async def drain(
        self, peer: Peer, jobs: int, workers: int = 1, behind: int = 0, head: int = 0, head_kind: str = "unknown"
    ) -> Metrics:
        """Run the first `jobs` waiting jobs, with others behind them, or some of another kind ahead of them."""
        async with self.database(peer) as url:
            meter = self.meter_of(peer)
            wal = meter.wal_bytes() if meter else 0
            if head:
                await self.preload(peer, url, head, Lane(kind=head_kind))
            if head_kind == "paused" and isinstance(peer, Pausing):
                await peer.pause(url, head_kind)
            await self.preload(peer, url, jobs + behind)
            if behind or head:
                with self.workers(peer, url, workers) as crew:
                    await crew.reach(1)
                    since, count = read(meter, crew.pids), crew.count
                    await crew.reach(jobs)
                    metrics = {"jobs_per_s": crew.rate(), "memory_mb": crew.memory_mb()}
                    if jobs - count > jobs / 2:
                        metrics |= read(meter, crew.pids).per_job(since, crew.count - count)
                    return metrics
            metrics = await self.measured(peer, url, jobs, workers)
            if meter:
                metrics["life_wal_bytes_per_job"] = (meter.wal_bytes() - wal) / jobs
        if meter:
            metrics["round_trips_per_1000"] = await self._drain_trips(peer, workers)
        return metrics

    async def measured(self, peer: Peer, url: str, jobs: int, workers: int = 1) -> Metrics:
        """Run all jobs; what they cost is counted from the first job on, because starting is no part of a job."""
        meter, name = self.meter_of(peer), url.rpartition("/")[2]
        commits = meter.commits(name) if meter else 0
        with self.workers(peer, url, workers) as crew:
            await crew.reach(1)
            since, count = read(meter, crew.pids), crew.count
            await crew.reach(jobs)
            # Not asked of the peer: the server would have to answer, and its CPU is being counted.
            settled = await (meter.still() if meter else self._settled(peer, url))
            metrics = {
                "jobs_per_s": crew.rate(),
                "memory_mb": crew.memory_mb(),
                "settle_lag_ms": max(settled - crew.last, 0.0) * 1000,
            }
            # A batch that is as large as the drain has been fetched before its first job has run.
            if jobs - count > jobs / 2:
                metrics |= read(meter, crew.pids).per_job(since, jobs - count)
        if meter:
            metrics["commits_per_1000"] = (meter.commits(name) - commits) * 1000 / jobs
            await self._settled(peer, url)
        return metrics

    async def _drain_trips(self, peer: Peer, workers: int) -> float:
        # Enough for several of the largest batches that any system fetches.
        jobs = min(peer.drain_jobs, self.sizes.trip_jobs)

        async def count() -> float:
            async with self.database(peer) as url:
                await self.preload(peer, url, jobs)
                with self.round_trips() as trips, self.workers(peer, trips.through(url), workers) as crew:
                    await crew.reach(1)
                    since, ran = trips.count, crew.count
                    await crew.reach(jobs)
                    await self.meter.still()
                    return (trips.count - since) * 1000 / max(jobs - ran, 1)

        return await self.once(f"drain {peer.name} {workers}", count)

    def meter_of(self, peer: Peer) -> ServerMeter | None:
        """What measures its server, if it has one."""
        return self.meter if peer.store == "postgres" else None

    @contextmanager
    def round_trips(self) -> Iterator[RoundTrips]:
        """Counts those of a run that is not timed, because it is slower."""
        with counted(self.server.port, self.directory / f"trips_{next(self._numbers)}") as trips:
            yield trips

    async def once(self, key: str, count: Callable[[], Awaitable[float]]) -> float:
        """A figure that does not vary, so that the first run of a sitting is enough."""
        if key not in self._trips:
            self._trips[key] = await count()
        return self._trips[key]

    async def _settled(self, peer: Peer, url: str) -> float:
        deadline = time.monotonic() + _STALL_S
        while unfinished := await peer.unfinished(url):
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{peer.name} never finished {unfinished:,} jobs that it ran")
            await asyncio.sleep(0.005)
        return time.time()


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
