"""The examples as processes that a person starts: the world outside, a worker on `main:app`, and a job by command."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORRELATION = "550e8400-e29b-41d4-a716-446655440000"
FETCH = [
    "email_ingestion_fetch", "tenant_id=123", f"correlation_id={CORRELATION}", "idempotency_key=k", "connection_id=456",
    "external_message_id=msg_789",
]  # fmt: skip


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def started(environment: dict[str, str], ready: str, *command: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if ready in line:
                break
        else:
            raise AssertionError("".join(said))
        yield
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.req("L6", "L68", "L69")
@pytest.mark.parametrize(
    ("example", "prefix", "job"),
    [("practice", "PRACTICE", FETCH), ("sports_sites", "SPORTS", ["integration", "lipas-id=12345"])],
)
def test_an_example_runs_as_processes_with_the_world_outside(
    tmp_path: Path, example: str, prefix: str, job: list[str]
) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DUTIFUL_", prefix))}
    environment = {
        **kept,
        "PYTHONUNBUFFERED": "1",
        "DUTIFUL_DATABASE_URL": f"sqlite:///{tmp_path}/jobs.db",
        f"{prefix}_FOLDER": str(tmp_path / "data"),
        f"{prefix}_SERVICES": f"http://127.0.0.1:{free_port()}",
        f"{prefix}_SMTP_PORT": str(free_port()),
    }
    app = f"examples.{example}.main:app"

    def dutiful(*words: str) -> str:
        command = [sys.executable, "-m", "dutiful.cli", "--app", app, *words]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with ExitStack() as stack:
        stack.enter_context(started(environment, "Ctrl-C", f"examples.{example}", "--world"))
        dutiful("migrate")
        stack.enter_context(started(environment, "worker", "dutiful.cli", "worker", app))
        dutiful("enqueue", *job, "--wait", "--timeout", "60s")
        listed = json.loads(dutiful("jobs", "list", "--state", "completed", "--json"))
    assert job[0] in str(listed)
