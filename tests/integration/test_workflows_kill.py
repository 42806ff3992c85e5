"""A worker that dies between the end of a job and the release of what waits for it."""

from pathlib import Path

import pytest
import workflow_jobs
from fault_jobs import address

from dutiful import PREVIOUS, State, chain
from dutiful.store import Store
from faults import Fleet, until


@pytest.mark.req("L101")
async def test_a_child_runs_although_the_worker_died_before_it_released_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "death"
    mark.touch()
    monkeypatch.setenv(workflow_jobs.DEATH, str(mark))
    app = workflow_jobs.app
    app.configure(database_url=address(store))
    async with (
        app,
        Fleet("workflow_jobs:app", address(store), folder=tmp_path, path=Path(__file__).parent) as fleet,
    ):
        flow = await chain(workflow_jobs.first.call(), workflow_jobs.second.call(PREVIOUS)).enqueue()
        fleet.start("--lease", "2s")

        async def dead() -> bool:
            return not mark.exists()

        await until(dead, "the worker has died")
        assert [(await job.record()).state for job in flow.jobs] == [State.COMPLETED, State.BLOCKED]
        fleet.start("--lease", "2s")

        assert await flow.result("60s") == 21
        assert await store.queries.check_places() == []
