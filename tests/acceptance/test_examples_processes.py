"""The examples as processes that a person starts: the world outside, a worker on `main:app`, and a job by command."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from examples.practice.firms import Firms
from examples.practice.sample_data import ADA
from servers import free_port

ROOT = Path(__file__).parents[2]
CORRELATION = "550e8400-e29b-41d4-a716-446655440000"
MESSAGE = ["tenant_id=123", f"correlation_id={CORRELATION}", "connection_id=456", "external_message_id=msg_789"]
INGESTION = [
    ["email_ingestion_fetch", "idempotency_key=fetch", *MESSAGE],
    ["email_ingestion_parse", "idempotency_key=parse", *MESSAGE],  # the fetch enqueues one, this one is waited for
]


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
    ("example", "prefix", "jobs"),
    [("practice", "PRACTICE", INGESTION), ("sports_sites", "SPORTS", [["integration", "lipas-id=12345"]])],
)
def test_an_example_runs_as_processes_with_the_world_outside(
    tmp_path: Path, example: str, prefix: str, jobs: list[list[str]]
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
        for job in jobs:
            dutiful("enqueue", *job, "--wait", "--timeout", "60s")
        listed = json.loads(dutiful("jobs", "list", "--state", "completed", "--json"))
    assert all(job[0] in str(listed) for job in jobs)
    if example == "practice":
        firm = Firms(tmp_path / "data").firm(123)
        message = firm.one("message", connection_id=456, external_id="msg_789")
        ada = firm.one("client_at", address=ADA)
        assert message and ada and message["client_id"] == ada["id"], "the mail is assigned to its client"
        assert len(firm.dump()["clients"]) == 2, "each client once, though every process adds them"


@pytest.mark.parametrize("wrong", ["taken", "too large"])
@pytest.mark.parametrize("example", ["media_pipeline", "practice", "sports_sites"])
def test_a_port_that_cannot_be_had_is_named_in_one_line(example: str, wrong: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUTIFUL_")}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1] if wrong == "taken" else 70_000
        command = [sys.executable, "-m", f"examples.{example}", "--serve", "--port", str(port)]
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].endswith("choose another port")


@pytest.mark.parametrize("example", ["media_pipeline", "practice", "sports_sites"])
def test_term_ends_an_example_as_ctrl_c_does_and_nothing_is_left_behind(example: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DUTIFUL_")}
    process = subprocess.Popen(
        [sys.executable, "-um", f"examples.{example}", "--serve", "--port", "0"], cwd=ROOT,
        env={**kept, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()  # it serves
    assert list(tmp_path.iterdir()) != []
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors, list(tmp_path.iterdir())) == (0, "", [])


@pytest.mark.parametrize("example", ["media_pipeline", "practice", "sports_sites"])
def test_ctrl_c_ends_a_story_without_a_traceback(example: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUTIFUL_")}
    process = subprocess.Popen(
        [sys.executable, "-um", f"examples.{example}"], cwd=ROOT, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()  # it has begun
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (130, False), errors
