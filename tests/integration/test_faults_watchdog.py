"""Jobs that block the event loop or threads for ever: their worker ends itself, and only those jobs fail."""

import sys
from datetime import timedelta
from pathlib import Path

import fault_jobs
import pytest
from fault_jobs import executions

from dutiful import Dutiful
from dutiful.cli.commands.worker import _is_stuck
from dutiful.core import ids
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.workers import WorkerRecord
from dutiful.worker.pulse import PULSE
from dutiful.worker.supervisor import WORKER_ID
from faults import until
from suite.builders import at, claim_one, enqueue_one, new_id


async def test_a_job_that_blocks_the_event_loop_ends_as_a_dead_letter_and_its_neighbours_complete(
    store: Store, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(store, tmp_path, watchdog="1s", lease="2s") as fleet:
        # Its neighbours are in the same process when it blocks, and end only after the last time that it did.
        neighbours = [await fault_jobs.app.enqueue("wait", {"gate": str(gate)}) for _ in range(4)]
        guilty = await fault_jobs.app.enqueue("stuck")
        supervisor = fleet.start("--processes", "2")

        async def condemned() -> bool:
            return (await guilty.record()).state is State.FAILED

        await until(condemned, "the job that blocks is a dead letter")
        gate.touch()
        for neighbour in neighbours:
            await neighbour.result(timeout="60s")

        record = await guilty.record()
        assert executions(tmp_path).count(guilty.id) == record.crashes == 3
        assert record.errors is not None
        assert record.errors[0]["type"] == "WorkerLost"
        assert (await store.queries.stats(timedelta(hours=1))).dead_letters == 1
        for neighbour in neighbours:
            assert (await neighbour.record()).crashes == 0
            attempts = await store.queries.attempts(neighbour.id)
            assert [attempt.outcome for attempt in attempts] == ["released"] * len(attempts)
        message = f"job {ids.public(guilty.id)} (stuck) holds the event loop past its timeout"
        assert supervisor.output.count(message) == 3
        assert supervisor.output.count("ended with exit code 70; it is started again") == 3
        assert supervisor.output.count('fault_jobs.py", line') >= 3, "the stacks name the place"
        assert await store.queries.check_places() == []


@pytest.mark.req("J49")
async def test_a_cancelled_job_that_blocks_the_event_loop_is_cancelled_with_its_worker(
    store: Store, tmp_path: Path
) -> None:
    async with fault_jobs.fleet(store, tmp_path, watchdog="1s", cancel_grace="0s", lease="2s") as fleet:
        guilty = await fault_jobs.app.enqueue("block_loop", {"gate": str(tmp_path / "never")})
        supervisor = fleet.start("--processes", "2")

        async def begun() -> bool:
            return guilty.id in executions(tmp_path)

        async def ended() -> bool:
            return (await guilty.record()).state.final

        await until(begun, "it blocks")
        assert await guilty.cancel()
        await until(ended, "it is cancelled")
        assert (await guilty.record()).state is State.CANCELLED
        assert executions(tmp_path).count(guilty.id) == 1
        assert "holds the event loop although it was cancelled" in supervisor.output


@pytest.mark.req("L59")
@pytest.mark.parametrize(
    ("backend", "kind"),
    [("sqlite", "hang"), ("postgres18", "hang"), ("sqlite", "hang_elsewhere")],
    indirect=["backend"],
)
async def test_a_worker_in_which_handlers_pile_up_is_replaced_by_its_supervisor(
    store: Store, kind: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with fault_jobs.fleet(store, tmp_path, lingering_limit="2") as fleet:
        supervisor = fleet.start("--processes", "2")
        await until(lambda: _has_workers(store, 2), "both work")
        first = {worker.pid for worker in await store.workers.all()}
        hanging = [await fault_jobs.app.enqueue(kind) for _ in range(4)]
        neighbour = await fault_jobs.app.enqueue("wait", {"gate": str(gate)})

        async def replaced() -> bool:
            return "ended with exit code 75; it is started again" in supervisor.output

        async def all_timed_out() -> bool:
            return all([(await job.record()).state is State.FAILED for job in hanging])

        await until(all_timed_out, "all that hang are timed out")
        gate.touch()
        await neighbour.result(timeout="60s")
        await until(replaced, "one has stopped by itself")
        assert "stopped, because handlers linger in it; no job was left running" in supervisor.output
        await until(lambda: _has_workers(store, 2), "another has taken its place")
        assert {worker.pid for worker in await store.workers.all()} != first
        assert isinstance(await (await fault_jobs.app.enqueue("nothing")).result(timeout="60s"), int)
        assert (await neighbour.record()).crashes == 0
        assert await store.queries.check_places() == []


@pytest.mark.req("L59")
async def test_a_job_that_keeps_the_interpreter_is_ended_with_its_worker_by_the_supervisor(
    store: Store, tmp_path: Path
) -> None:
    async with fault_jobs.fleet(store, tmp_path, watchdog="1s", lease="2s") as fleet:
        guilty = await fault_jobs.app.enqueue("seize")
        supervisor = fleet.start("--processes", "2")

        async def condemned() -> bool:
            return (await guilty.record()).state is State.FAILED

        await until(condemned, "the job is a dead letter")
        record = await guilty.record()
        assert executions(tmp_path).count(guilty.id) == record.crashes == 3
        assert record.errors is not None and record.errors[0]["type"] == "WorkerLost"
        assert supervisor.output.count("a call into C keeps the interpreter lock") == 3
        assert supervisor.output.count('fault_jobs.py", line') >= 3, "the stacks name the place"
        names = await (await fault_jobs.app.enqueue("surroundings")).result(timeout="60s")
        assert not {WORKER_ID, PULSE} & set(names), "what a handler starts is no worker of this supervisor"
        await until(lambda: _has_workers(store, 2), "others have taken the places of those that were killed")
        assert await store.queries.check_places() == []


async def test_a_worker_is_stuck_when_all_its_jobs_are_past_their_timeouts(store: Store) -> None:
    app = Dutiful(watchdog="5s", lease="30s")
    for kind, timeout in {"short": "2s", "long": "40s", "longest": "10m", "endless": "never"}.items():
        app.job(name=kind, timeout=timeout)(lambda: None)

    async def stuck(*kinds: str, after: float) -> bool:
        worker_id = new_id()
        for kind in kinds:
            await enqueue_one(store, kind=kind)
            await claim_one(store, kinds=kinds, worker_id=worker_id)
        return await _is_stuck(app, store, worker_id, after)

    assert [await stuck("short", after=after) for after in (4, 6, 7)] == [False, False, True]
    # The long one may be what keeps the interpreter, within its time.
    assert [await stuck("short", "long", after=after) for after in (7, 44, 45)] == [False, False, True]
    for other in ("longest", "endless", "unknown"):  # nobody is left to take their jobs over
        assert [await stuck("short", other, after=after) for after in (64, 65)] == [False, True]
    assert not await stuck(after=10_000), "it has not begun"
    begun = WorkerRecord(
        id=new_id(), name="a", host="b", pid=1, started_at=at(0), seen_at=at(0), lanes={}, kinds=["short"]
    )
    await store.workers.heartbeat(begun, timedelta(minutes=1))
    assert [await _is_stuck(app, store, begun.id, after) for after in (34, 35)] == [False, True]


@pytest.mark.req("L59")
@pytest.mark.parametrize("backend", ["sqlite", "postgres18"], indirect=True)
async def test_workers_that_calls_without_a_timeout_keep_all_at_once_are_killed_past_their_leases(
    store: Store, tmp_path: Path
) -> None:
    async with fault_jobs.fleet(store, tmp_path, watchdog="1s", lease="2s") as fleet:
        guilty = [await fault_jobs.app.enqueue("seize_endlessly") for _ in range(2)]
        supervisor = fleet.start("--processes", "2", "--general", "1")

        async def both_begun() -> bool:
            return {job.id for job in guilty} <= set(executions(tmp_path))

        await until(both_begun, "each keeps one worker")
        neighbour = await fault_jobs.app.enqueue("nothing")
        assert isinstance(await neighbour.result(timeout="60s"), int)
        assert "a call into C keeps the interpreter lock" in supervisor.output


async def test_a_worker_whose_resources_take_long_to_load_is_left_alone(store: Store, tmp_path: Path) -> None:
    async with fault_jobs.fleet(store, tmp_path, of=fault_jobs.loading, watchdog="1s", lease="1s") as fleet:
        job = await fault_jobs.loading.enqueue("predict")
        supervisor = fleet.start("--processes", "2")
        assert await job.result(timeout="60s") == "loaded"
        assert "keeps the interpreter lock" not in supervisor.output


@pytest.mark.req("L59")
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_worker_that_nothing_replaces_prints_where_its_interpreter_is_kept(
    store: Store, tmp_path: Path
) -> None:
    async with fault_jobs.fleet(store, tmp_path, watchdog="1s", lease="2s") as fleet:
        await fault_jobs.app.enqueue("seize")
        worker = fleet.run(sys.executable, "-m", "dutiful.cli", "worker", "fault_jobs:app")  # as a person starts it

        async def printed() -> bool:
            return "in seize" in worker.output and "Timeout (0:00:03)!" in worker.output

        await until(printed, "it prints its stacks")
        assert worker.running


async def _has_workers(store: Store, number: int) -> bool:
    return sum(worker.alive for worker in await store.workers.all()) == number
