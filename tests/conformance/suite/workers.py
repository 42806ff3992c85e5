"""Worker records: heartbeats, processes that are seen to run or end, and the claims of dead ones."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from dutiful.core.job import HeldClaim
from dutiful.store import Store
from dutiful.store.workers import LaneRecord, Process, WorkerRecord
from suite.builders import ADA, BOB, KIND, LEASE, T0, at, claim_one, enqueue_one, start_one

TTL = timedelta(seconds=10)


async def heartbeat(
    store: Store,
    worker_id: UUID,
    *,
    ttl: timedelta = TTL,
    now: datetime | None = None,
    host: str = "host",
    pid: int = 42,
    jobs: Sequence[UUID] = (),
) -> None:
    worker = WorkerRecord(
        id=worker_id, name="ada-1", host=host, pid=pid, started_at=T0, seen_at=now or T0,
        lanes={"fast": LaneRecord(slots=3, queues=("fast",), busy=1, jobs=tuple(jobs))}, kinds=["greet", "part"],
    )  # fmt: skip
    await store.workers.heartbeat(worker, ttl, now=now)


async def serve(
    store: Store,
    kinds: Collection[str] = (KIND,),
    now: datetime = T0,
    ttl: timedelta = timedelta(days=1),
    **lanes: Sequence[str] | LaneRecord,
) -> None:
    """Register a living worker of this process; a lane is given by its queues, or as a whole."""
    its = {
        name: lane if isinstance(lane, LaneRecord) else LaneRecord(slots=1, queues=tuple(lane))
        for name, lane in lanes.items()
    }
    worker = WorkerRecord(
        id=ADA, name="ada", host=socket.gethostname(), pid=os.getpid(), started_at=T0, seen_at=T0, lanes=its,
        kinds=[*kinds],
    )  # fmt: skip
    await store.workers.heartbeat(worker, ttl, now=now)


class WorkerSuite:
    sees_processes = False  # True for a store whose workers are all on this host

    async def test_a_worker_with_a_recent_heartbeat_is_alive(self, store: Store) -> None:
        await heartbeat(store, ADA, ttl=timedelta(hours=1))

        (worker,) = await store.workers.all()

        assert (worker.id, worker.name, worker.host, worker.pid) == (ADA, "ada-1", "host", 42)
        assert worker.alive
        assert worker.lanes == {"fast": LaneRecord(slots=3, queues=("fast",), busy=1)}
        assert worker.kinds == ["greet", "part"]

    async def test_a_worker_without_a_recent_heartbeat_is_not_alive(self, store: Store) -> None:
        await heartbeat(store, ADA, now=T0)

        assert [worker.alive for worker in await store.workers.all()] == [False]
        assert (await store.queries.stats(LEASE, now=at(9))).workers == 1
        assert (await store.queries.stats(LEASE, now=at(11))).workers == 0
        await heartbeat(store, ADA, now=at(20))
        assert (await store.queries.stats(LEASE, now=at(29))).workers == 1

    async def test_a_busy_worker_is_seen_at_each_heartbeat(self, store: Store) -> None:
        for second in (0, 10, 20):
            await heartbeat(store, ADA, host=socket.gethostname(), pid=os.getpid(), jobs=[ADA], now=at(second))
            assert [worker.seen_at for worker in await store.workers.all()] == [at(second)]

    async def test_an_idle_worker_is_seen_at_least_every_minute(self, store: Store) -> None:
        for second in range(0, 130, 10):
            await heartbeat(store, ADA, host=socket.gethostname(), pid=os.getpid(), now=at(second))
            (worker,) = await store.workers.all()
            assert at(second) - worker.seen_at < timedelta(minutes=1)

    async def test_the_state_of_a_worker_process_is_seen_on_its_host(self, store: Store) -> None:
        process = await asyncio.create_subprocess_exec("sleep", "60")
        await heartbeat(store, ADA, host=socket.gethostname(), pid=process.pid)
        await heartbeat(store, BOB, host="far-away", pid=process.pid)

        async def seen(expected: Process) -> None:
            async with asyncio.timeout(60):
                while True:  # a signal is delivered with a delay
                    found = {worker.id: worker.process for worker in await store.workers.all()}
                    assert found[BOB] is Process.UNSEEN
                    if found[ADA] is expected:
                        return

        try:
            await seen(Process.RUNS)
            if sys.platform == "linux":  # elsewhere the state of a process cannot be read
                process.send_signal(signal.SIGSTOP)
                await seen(Process.STOPPED)
        finally:
            process.kill()
        await process.wait()
        await seen(Process.ENDED)
        alive = {worker.id: worker.alive for worker in await store.workers.all()}
        assert alive[ADA] is False, "even with a recent heartbeat"
        assert (await store.queries.stats(LEASE)).workers == 1, "BOB, who is on another host"

    async def test_a_removed_worker_is_not_listed(self, store: Store) -> None:
        await heartbeat(store, ADA, now=T0)
        await heartbeat(store, BOB, now=T0)

        await store.workers.remove(ADA)

        assert [worker.id for worker in await store.workers.all()] == [BOB]

    async def test_the_claims_of_a_process_that_died_are_orphans(self, store: Store) -> None:
        if not self.sees_processes:
            pytest.skip("this store does not see processes")
        process = await asyncio.create_subprocess_exec("sleep", "60")
        await heartbeat(store, ADA, host=socket.gethostname(), pid=os.getpid())
        await heartbeat(store, BOB, host=socket.gethostname(), pid=process.pid)
        await start_one(store)
        await enqueue_one(store)
        held = await claim_one(store, worker_id=BOB)
        assert await store.claims.orphans() == []

        process.kill()
        await process.wait()

        assert await store.claims.orphans() == [
            HeldClaim(held.job_id, held.claim_id, 1, 0, KIND, BOB, cancel_requested=False)
        ]

    async def test_the_claims_of_a_worker_that_is_not_known_to_be_dead_are_no_orphans(self, store: Store) -> None:
        await heartbeat(store, ADA, ttl=timedelta(hours=1), host="far-away", pid=42)
        await start_one(store)

        assert await store.claims.orphans() == []
