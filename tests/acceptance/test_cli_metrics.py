"""`dutiful metrics`, as a person at a terminal sees it."""

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import Project

from dutiful.core.metrics.catalogue import METRICS
from dutiful.core.metrics.sketch import bucket
from dutiful.store import Store
from dutiful.store.metrics import AttemptStats
from suite.builders import enqueue_one


@pytest.fixture
def project(tmp_path: Path, backend: str, request: pytest.FixtureRequest) -> Project:
    if backend == "sqlite":
        return Project(tmp_path, f"sqlite:///{request.getfixturevalue('sqlite_path')}").write_jobs()
    return Project(tmp_path, str(request.getfixturevalue("pg18_url"))).write_jobs()


@pytest.mark.req("L39", "L76", "L77", "L78", "L80")
async def test_metrics_are_tables_for_people_and_one_document_for_programs(project: Project, store: Store) -> None:
    quiet = project.run("metrics")
    assert quiet.code == 0
    assert "no attempt has ended in the last 5m" in quiet.out and "workers alive 0" in quiet.out

    await enqueue_one(store, kind="greet", queue="mail")
    await store.breakers.open("email-service", timedelta(hours=1))
    took = {bucket(1_500_000): 30}
    stats = [
        AttemptStats(kind="greet", outcome="completed", count=27, run=took, wait=took, payload_most=2048),
        AttemptStats(kind="greet", outcome="failed", count=3),
        AttemptStats(kind="greet", outcome="lost", count=1),
    ]
    await store.metrics.add(uuid4(), 1, stats)

    reported = project.run("metrics", "--since", "1h").out
    greet = next(line for line in reported.splitlines() if line.startswith("greet"))
    assert greet.split("  ")[0] == "greet"
    assert all(part in greet for part in ("30", "10.0 %", "1.4s", "2,048 bytes")), greet
    assert "email-service" in reported and "open" in reported and "mail" in reported
    found = project.run("metrics", "--json").json
    assert found["since_seconds"] == 300
    assert {sample["metric"] for sample in found["metrics"]} <= set(METRICS)
    (rate,) = [sample for sample in found["metrics"] if sample["metric"] == "error_rate"]
    assert rate == {
        "metric": "error_rate",
        "value": 0.1,
        "labels": {"kind": "greet"},
        "count": 30,
        "bounds": None,
    }


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_time_that_is_none_is_refused(project: Project, store: Store) -> None:
    answer = project.run("metrics", "--since", "soon")
    assert answer.code == 2 and "--since" in answer.err


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize("since", ["0s", "10d"])
async def test_a_time_for_which_nothing_is_kept_is_refused(project: Project, store: Store, since: str) -> None:
    answer = project.run("metrics", "--since", since)
    assert answer.code == 2 and f"--since {since}" in answer.err and "from 1m to 7d" in answer.err
    assert "by the minute for 2h, and by the hour for 7d" in answer.err
