"""A job that blocks the event loop for ever: the watchdog ends its worker, and only that job fails."""

from datetime import timedelta
from pathlib import Path

import fault_jobs
from fault_jobs import executions

from dutiful.core import ids
from dutiful.core.states import State
from dutiful.store import Store
from faults import until


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
            assert await store.queries.attempts(neighbour.id) == []
        message = f"job {ids.public(guilty.id)} (stuck) holds the event loop past its timeout"
        assert supervisor.output.count(message) == 3
        assert supervisor.output.count("ended with exit code 70; it is started again") == 3
        assert supervisor.output.count('fault_jobs.py", line') >= 3, "the stacks name the place"
        assert await store.queries.check_places() == []
