"""Workers that are killed in the middle of a pipeline: what was completed is kept, and not done again."""

from pathlib import Path

import fault_jobs
import pipeline_jobs
import pytest

from dutiful.store import Store
from faults import Fleet, until


@pytest.mark.req("J36", "J39")
async def test_a_pipeline_goes_on_where_its_worker_was_killed(store: Store, tmp_path: Path) -> None:
    diary, gate, killed = tmp_path / "pipeline diary", tmp_path / "gate", tmp_path / "killed"
    url = fault_jobs.address(store)
    environment = {pipeline_jobs.DIARY: str(diary)}
    pipeline_jobs.app.configure(database_url=url)

    async def second_runs() -> bool:
        return diary.exists() and diary.read_text().split().count("second") > 0

    async with (
        pipeline_jobs.app,
        Fleet("pipeline_jobs:app", url, folder=tmp_path, path=Path(__file__).parent, environment=environment) as fleet,
    ):
        worker = fleet.start("--lease", "2s", "--no-services")
        job = await pipeline_jobs.steps.enqueue(n=1, gate=str(gate), killed=str(killed))
        await until(second_runs, "the second phase runs")
        worker.kill()
        fleet.start("--lease", "2s", "--processes", "2")  # whose supervisor replaces those that are killed
        gate.touch()
        assert await job.result("60s") == [1, 2]

    assert diary.read_text().split() == ["first", "second", "second", "third"]
    assert killed.exists()
    phases = await store.progress.phases(job.id)
    assert [(phase.name, phase.state.value, phase.result) for phase in phases] == [
        ("first", "completed", {"n": 1}),
        ("second", "completed", 2),
        ("third", "completed", [1, 2]),
    ]
    # A death is not the fault of the phase that ran.
    assert [phase.attempt for phase in phases] == [1, 1, 1]
    record = await store.queries.job(job.id)
    assert record is not None and (record.crashes, record.attempt) == (2, 1)
    assert await store.queries.check_places() == []
