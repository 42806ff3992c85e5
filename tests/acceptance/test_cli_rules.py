"""`enqueue` of a kind with rules: validated as everywhere."""

from pathlib import Path

import pytest
from command_line import Project

JOBS = """
from uuid import UUID
from dutiful import Dutiful, Rules

app = Dutiful()
app.category("ingestion", Rules(
    required={"tenant_id": int, "correlation_id": UUID, "idempotency_key": str},
    tenant="tenant_id", correlation_id="correlation_id", unique="idempotency_key",
))

@app.job(category="ingestion")
async def fetch(connection_id: int) -> None: ...
"""


@pytest.mark.req("W17")
def test_the_command_line_keeps_to_the_rules(tmp_path: Path, sqlite_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{sqlite_path}")
    (tmp_path / "jobs.py").write_text(JOBS)
    project.run("migrate")
    refused = project.run("enqueue", "fetch", "tenant_id=x", "connection_id=4", "api_key=hunter2")
    assert refused.code != 0 and "hunter2" not in refused.err
    for reported in ("tenant_id is not", "correlation_id is missing", "idempotency_key is missing", "api_key means"):
        assert reported in refused.err

    # A key of digits is a text all the same.
    job = project.run(
        "enqueue", "fetch", "tenant_id=7", "connection_id=4", "idempotency_key=12345",
        "correlation_id=550e8400-e29b-41d4-a716-446655440000", "--json",
    ).json  # fmt: skip
    assert (job["tenant"], job["payload"]["idempotency_key"]) == ("7", "12345")
    assert job["correlation_id"] == "550e8400-e29b-41d4-a716-446655440000"
