"""A worker that is killed while it runs a batch."""

from pathlib import Path

import batch_jobs
import pytest
from fault_jobs import address

from dutiful.store import Store
from faults import Fleet, until


@pytest.mark.req("L101")
async def test_the_jobs_of_a_killed_batch_are_rescued_and_run_one_at_a_time(store: Store, tmp_path: Path) -> None:
    app, calls = batch_jobs.app, tmp_path / "calls"
    app.configure(database_url=address(store))
    async with app, Fleet("batch_jobs:app", address(store), folder=tmp_path, path=Path(__file__).parent) as fleet:
        doomed = await fleet.doomed(store)
        jobs = await batch_jobs.write.enqueue_many([{"number": n, "folder": str(tmp_path)} for n in range(12)])
        victim = fleet.start(*doomed)

        async def called() -> bool:
            return calls.exists() and calls.read_text().endswith("\n")

        await until(called, "the batch runs")
        assert len(calls.read_text().split()) == 12, "one call has all jobs"
        (tmp_path / "killed").touch()
        victim.kill()
        fleet.start("--lease", "2s")

        assert [await job.result("60s") for job in jobs] == list(range(12))
        assert sorted(calls.read_text().splitlines()[1:], key=int) == [str(n) for n in range(12)]
        records = [await job.record() for job in jobs]
        assert {(record.attempt, record.crashes) for record in records} == {(1, 1)}
        assert await store.queries.check_places() == []
