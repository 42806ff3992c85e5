"""`jobs show` shows the progress of a job."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from command_line import Project

from dutiful.core.items import ItemCounts
from dutiful.core.job import PhaseState
from dutiful.store import Store
from dutiful.store.progress import PhaseMark, ProgressReport
from suite.builders import start_one


@pytest.mark.parametrize("backend", ["sqlite"])
async def test_a_pipeline_is_shown_with_its_phases_progress_and_items(tmp_path: Path, store: Store) -> None:
    project = Project(tmp_path, store.url).write_jobs()
    claimed = await start_one(store, options='{"phases": ["download", "editions"]}', now=datetime.now(UTC))
    ids: dict[str, Any] = {"job_id": claimed.job_id, "claim_id": claimed.claim_id}
    ledger = ItemCounts(["main", *range(7)])
    ledger.complete("main")
    for number in range(7):
        ledger.fail(number, f"no\x1b[2J {number}")
    marks = [
        PhaseMark(**ids, name="download", position=0, state=PhaseState.RUNNING),
        PhaseMark(**ids, name="download", position=0, state=PhaseState.COMPLETED, result="1"),
        PhaseMark(**ids, name="editions", position=1, state=PhaseState.RUNNING),
    ]
    said = "Cataloging 1,247 objects"
    items = json.dumps(ledger.as_dict())
    report = ProgressReport(**ids, phase="editions", percent=50.0, overall=75, message=said, items=items)
    assert await store.progress.report([report], marks, now=datetime.now(UTC)) == frozenset()

    shown = project.run("jobs", "show", str(claimed.job_id)).out
    full = project.run("jobs", "show", str(claimed.job_id), "--full").out
    page = project.run("jobs", "show", str(claimed.job_id), "--json").json

    for part in ("75 %", "phase editions: 50 %", said, "8 items: 0 in progress, 1 completed, 0 skipped, 7 failed"):
        assert part in shown
    assert "failed: 4:" in shown and "failed: 6:" not in shown and "and 2 more: --full" in shown
    assert "failed: 6:" in full and "\x1b" not in full
    assert [(phase["name"], phase["state"]) for phase in page["phases"]] == [
        ("download", "completed"),
        ("editions", "running"),
    ]
    assert (page["progress"]["overall"], page["progress"]["items"]["total"]) == (75, 8)
