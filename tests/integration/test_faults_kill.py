"""Killed workers: no job is lost or ends twice, and other jobs are not blamed."""

import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import fault_jobs
import pytest
from fault_jobs import executions

from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.queries import JobFilter
from dutiful.stores.liveness import process_started
from dutiful.stores.postgres import PostgresStore
from dutiful.worker.lanes.lane import LEAST_BACKLOG
from faults import Fleet, WorkerProcess, children, end, until
from postgres_locks import disconnected

HOUR = timedelta(hours=1)


def started(folder: Path) -> int:
    """How many runs were started, by the length of their log, because killed workers lose their counts."""
    diary = folder / "diary"
    return diary.stat().st_size // 37 if diary.exists() else 0


async def live(store: Store) -> int:
    return sum((await store.queries.stats(HOUR)).live.values())


SLOTS, BATCH, MORE, SEEN = 25, 20, 500, 50
WORKER = (
    "--lease", "2s", "--lane", "brief=20:default", "--lane", "long=5:long",
    "--batch", str(BATCH), "--log-level", "error",
)  # fmt: skip


async def enqueue_briefs(count: int) -> None:
    await fault_jobs.brief.enqueue_many({"milliseconds": random.randint(5, 50)} for _ in range(count))


class Slaughter:
    """Kills busy workers one after the other, and starts new ones in their place."""

    def __init__(self, fleet: Fleet, store: Store, *, workers: int, doomed: int) -> None:
        self._fleet = fleet
        self._store = store
        self._workers = [fleet.start(*WORKER) for _ in range(workers)]
        self._doomed = doomed
        self.victims: set[UUID | None] = set()
        self.more = 0  # jobs that were added so that workers are busy

    async def begin(self) -> None:
        """Kill the leader first, because its loss has the largest effect."""

        async def leader() -> WorkerProcess | None:
            leading = {worker.id for worker in await self._store.workers.all() if worker.leading}
            return next((worker for worker in self._workers if worker.id in leading), None)

        first = await until(leader, "a worker leads")
        assert first is not None
        self._workers.sort(key=lambda worker: worker is not first)
        await until(lambda: self._kill(0), "the leader was hit at work")

    async def kill_one(self) -> None:
        async def hit() -> bool:
            await self.keep_busy()
            return await self._kill(random.randrange(self._doomed))

        await until(hit, "a worker was hit at work")

    async def keep_busy(self) -> None:
        """Add jobs if all that wait have lost a worker: those run one at a time in each process, however many wait."""
        waiting = await self._store.queries.jobs(JobFilter(state=State.READY, limit=SEEN))
        if not any(job.crashes == 0 for job in waiting):
            await enqueue_briefs(MORE)
            self.more += MORE

    async def _kill(self, seat: int) -> bool:
        """Kill the worker in this seat, unless it is idle, and start another there."""
        victim = self._workers[seat]
        victim.stop()
        if not await self._store.claims.held_by(victim.id):
            victim.resume()
            return False
        ports = victim.ports()
        victim.kill()
        if isinstance(self._store, PostgresStore):
            # The server still executes what the worker had sent: a completion, after which it holds nothing.
            await disconnected(self._store.direct_dsn, ports)
        self._workers[seat] = self._fleet.start(*WORKER)
        if not await self._store.claims.held_by(victim.id):
            return False
        self.victims.add(victim.id)
        return True


async def survive_kills(
    store: Store, folder: Path, *, briefs: int, lengthies: int, kills: int, doomed: int, within: float
) -> None:
    """Only `doomed` of the four seats are killed, because lost jobs are run one at a time, which is slow."""
    async with fault_jobs.fleet(store, folder) as fleet:
        await fault_jobs.lengthy.enqueue_many({"seconds": 6.0} for _ in range(lengthies))
        await enqueue_briefs(briefs)
        slaughter = Slaughter(fleet, store, workers=4, doomed=doomed)
        await slaughter.begin()
        for number in range(1, kills):

            async def progress(wanted: int = started(folder) + briefs // (kills + 2)) -> bool:
                await slaughter.keep_busy()
                return started(folder) > wanted

            await until(progress, f"there is progress after {number} kills", every=0.1)
            await slaughter.kill_one()

        async def drained() -> bool:
            return await live(store) == 0

        await until(drained, "every job is final", within=within, every=0.2)

    jobs = await store.queries.jobs(JobFilter(limit=2 * (briefs + lengthies + slaughter.more)))
    assert Counter(job.state for job in jobs) == {State.COMPLETED: briefs + lengthies + slaughter.more}
    crashed = [await store.queries.attempts(job.id) for job in jobs if job.crashes]
    lost = Counter(attempt.worker_id for attempts in crashed for attempt in attempts if attempt.outcome == "lost")
    assert lost.keys() >= slaughter.victims
    assert len(slaughter.victims) == kills
    # On a busy machine a living worker may fail to renew its leases, too. What has run may wait to be stored.
    assert max(lost.values()) <= SLOTS + 2 * BATCH + LEAST_BACKLOG
    runs = executions(folder)
    assert set(runs) == {job.id for job in jobs}
    again = len(runs) - len(jobs)
    print(f"\n{kills} kills, {lost.total()} claims lost, {again} re-runs, {slaughter.more} jobs added")
    assert again <= lost.total()
    assert await store.queries.check_places() == []


@pytest.mark.req("L92")
@pytest.mark.parametrize("backend", ["postgres18"])
async def test_no_job_is_lost_or_ends_twice_when_workers_are_killed(store: Store, tmp_path: Path) -> None:
    await survive_kills(store, tmp_path, briefs=4_000, lengthies=10, kills=6, doomed=2, within=120)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_no_job_is_lost_or_ends_twice_in_a_long_run_of_kills(store: Store, tmp_path: Path) -> None:
    await survive_kills(store, tmp_path, briefs=100_000, lengthies=40, kills=150, doomed=4, within=1200)


@pytest.mark.req("L92")
async def test_a_job_that_kills_its_worker_fails_alone(store: Store, tmp_path: Path) -> None:
    async with fault_jobs.fleet(store, tmp_path, lease="2s") as fleet:
        innocent = await fault_jobs.nothing.enqueue_many({} for _ in range(250))
        guilty = await fault_jobs.killer.enqueue()
        innocent += await fault_jobs.nothing.enqueue_many({} for _ in range(250))
        fleet.start("--processes", "2")

        async def drained() -> bool:
            return await live(store) == 0

        await until(drained, "every job is final")

    jobs = {job.id: job for job in await store.queries.jobs(JobFilter(limit=1000))}
    assert {job.id for job in jobs.values() if job.state is State.FAILED} == {guilty.id}
    assert {job.id for job in jobs.values() if job.state is State.COMPLETED} == {job.id for job in innocent}
    assert (await store.queries.stats(HOUR)).dead_letters == 1
    assert Counter(executions(tmp_path))[guilty.id] == jobs[guilty.id].crashes == 3
    print(f"\n{sum(job.crashes for job in jobs.values()) - 3} other jobs lost their worker")
    assert any(job.crashes for job in jobs.values() if job.id != guilty.id), "no other job ran then"
    assert await store.queries.check_places() == []


async def test_jobs_that_lost_their_worker_are_run_one_at_a_time(store: Store, tmp_path: Path) -> None:
    gate, count = tmp_path / "gate", 4
    async with fault_jobs.fleet(store, tmp_path, lease="2s", poll="1h") as fleet:
        two_lanes = ("--lane", "one=2:default", "--lane", "two=2:long")
        first = fleet.start(*two_lanes, "--no-services")
        jobs = [
            await fault_jobs.app.enqueue("wait", {"gate": str(gate)}, queue=queue)
            for queue in ["default", "long"] * (count // 2)
        ]

        async def all_run() -> bool:
            return len(executions(tmp_path)) == count

        await until(all_run, "all jobs run")
        first.kill()
        second = fleet.start(*two_lanes)

        async def again() -> bool:
            return len(executions(tmp_path)) > count

        await until(again, "one of them is tried again")
        bystander = await fault_jobs.nothing.enqueue()
        assert await bystander.result(timeout="60s") == second.pid
        assert len(executions(tmp_path)) == count + 2
        assert len(await store.claims.held_by(second.id)) == 1
        gate.touch()
        for job in jobs:
            assert await job.result(timeout="60s") == second.pid
        assert await store.queries.check_places() == []


async def test_a_supervisor_rescues_the_jobs_of_a_killed_worker_at_once(store: Store, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(store, tmp_path, lease="5m", poll="1h") as fleet:
        supervisor = fleet.start("--processes", "2", "--lane", "one=2:default", "--lane", "two=2:long")
        jobs = [
            await fault_jobs.app.enqueue("wait", {"gate": str(gate)}, queue=queue) for queue in ["default", "long"] * 4
        ]

        async def all_run() -> bool:
            return len(executions(tmp_path)) == len(jobs)

        await until(all_run, "all jobs run")
        victim, other = await store.workers.all()
        held = await store.claims.held_by(victim.id)
        kept = await store.claims.held_by(other.id)
        assert len(held) == len(kept) == 4
        assert {victim.pid, other.pid} == set(children(supervisor.pid))
        end(victim.pid)

        async def taken_back() -> bool:
            return not await store.claims.held_by(victim.id)

        # Long before the five minutes of their leases are over.
        await until(taken_back, "the killed worker's jobs are taken back")
        records = {job.id: await job.record() for job in jobs}
        gate.touch()
        for job in jobs:
            await job.result(timeout="60s")

        assert {key for key, record in records.items() if record.crashes == 1} == {claim.job_id for claim in held}
        assert all(records[claim.job_id].worker_id == other.id for claim in kept)
        assert await store.queries.check_places() == []


@pytest.mark.parametrize("backend", ["sqlite"])
async def test_a_handler_in_a_process_ends_with_its_worker_even_if_it_computes_in_c(
    store: Store, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    async with fault_jobs.fleet(store, tmp_path) as fleet:
        worker = fleet.start("--no-services")
        await fault_jobs.compute_in_c.enqueue(str(pid_file))

        async def begun() -> int:
            return int(pid_file.read_text() or 0) if pid_file.exists() else 0

        child = await until(begun, "the handler computes")
        assert child in children(worker.pid)
        worker.kill()

        async def gone() -> bool:
            return process_started(child) is None

        try:
            await until(gone, "its process has ended", within=20)
        finally:
            end(child)
