"""The story of the documentation host, played by its own command; and its pages, served."""

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psycopg
import pytest

from databases import Postgres

ROOT = Path(__file__).parents[2]


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("DUTIFUL_") and k != "DATABASE_URL"}


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.docverse", *options]
    return subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=200)


@pytest.mark.req("D2", "D7", "D13", "D30", "D49", "D63", "D87", "D93", "D122")
@pytest.mark.parametrize("delivery", ["store", "arq"])
def test_the_story_ends_with_every_check_passed_and_removes_what_it_made(
    postgres18: Postgres, request: pytest.FixtureRequest, delivery: str
) -> None:
    before = _databases(postgres18)
    redis = [] if delivery == "store" else ["--redis-url", request.getfixturevalue("empty_redis")]
    done = _run("--database-url", postgres18.dsn(), "--delivery", delivery, *redis)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    marks = re.findall(r"^  ([✓✗]) ", done.stdout, re.MULTILINE)
    assert len(marks) == 17 and set(marks) == {"✓"}
    counted = set(re.findall(r"^ +\d+ (\w+) completed", done.stdout, re.MULTILINE))
    assert counted == {
        "build_processing", "edition_update", "dashboard_sync", "lifecycle_eval", "git_ref_audit", "purgatory_cleanup",
        "credential_reencrypt",
    }  # fmt: skip
    assert _databases(postgres18) == before


def test_the_sample_pages_are_served_until_the_worker_is_gone(postgres18: Postgres) -> None:
    with _serving("--database-url", postgres18.dsn()) as (process, site):
        assert "main" in httpx2.get(f"{site}/rubin/guide/", trust_env=False).text
        assert "v2.0.x" in httpx2.get(f"{site}/rubin/guide/v/", trust_env=False).text
        os.kill(_worker(process), signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "the worker ended with -9" in errors and "Traceback" not in errors


def _ignore_ctrl_c() -> None:
    """As a shell does for what a script starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize("preexec", [None, _ignore_ctrl_c], ids=["in front", "in the background"])
def test_a_host_that_is_terminated_takes_its_worker_and_its_database_with_it(
    postgres18: Postgres, preexec: Callable[[], object] | None
) -> None:
    before = _databases(postgres18)
    with _serving("--database-url", postgres18.dsn(), preexec=preexec) as (process, _):
        worker = _worker(process)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert not Path(f"/proc/{worker}").exists() and _databases(postgres18) == before


def test_a_host_that_waits_for_its_object_store_ends_its_worker_all_the_same(postgres18: Postgres) -> None:
    with _serving("--database-url", postgres18.dsn()) as (process, site):
        worker = os.pidfd_open(_worker(process))
        folder = _variable(process, "DOCVERSE_FOLDER")
        # A pipe that no one writes to is an object that is never read.
        os.mkfifo(folder / "objects/orgs/lsst/projects/notes/editions/__main/silent.html")
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.get(f"{site}/lsst/notes/silent.html", trust_env=False, timeout=httpx2.Timeout(60, read=1))
        process.terminate()
        assert select.select([worker], [], [], 60)[0], "the worker is still there"
        os.close(worker)
        process.kill()
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def _worker(process: "subprocess.Popen[str]") -> int:
    assert process.poll() is None, process.communicate()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (worker,) = [int(pid) for pid in children if b"dutiful.cli" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return worker


def _variable(process: "subprocess.Popen[str]", name: str) -> Path:
    """A setting of the host, as its worker has it."""
    environment = Path(f"/proc/{_worker(process)}/environ").read_bytes().decode().split("\0")
    return Path(dict(line.split("=", 1) for line in environment if line)[name])


def test_a_port_that_is_taken_is_reported_in_a_line(postgres18: Postgres) -> None:
    before = _databases(postgres18)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = _run("--serve", "--port", str(port), "--database-url", postgres18.dsn())
    assert done.returncode == 2 and f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr and _databases(postgres18) == before


@contextmanager
def _serving(
    *options: str, preexec: Callable[[], object] | None = None
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`--serve` on free ports, when it says where its pages are."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.docverse", "--serve", "--port", "0", *options],
        cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=preexec,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        opened = next((line for line in process.stdout if line.startswith("Open http")), None)
        assert opened is not None, process.communicate()
        yield process, re.findall(r"Open (http://[^/]+)/", opened)[0]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--database-url", "postgresql://127.0.0.1:1/nowhere"), "the database"),
        (("--serve", "--delivery", "arq", "--redis-url", "redis://127.0.0.1:1"), "Redis"),
        (("--delivery", "arq", "--redis-url", "127.0.0.1:1"), "Redis"),
    ],
)
def test_an_address_where_nothing_answers_is_reported_in_a_line(options: tuple[str, ...], what: str) -> None:
    done = _run(*options)
    assert done.returncode == 2 and f"cannot connect to {what}" in done.stderr
    assert "Traceback" not in done.stderr


def _databases(server: Postgres) -> list[str]:
    with psycopg.connect(server.dsn()) as connection:
        return [name for (name,) in connection.execute("select datname from pg_database order by datname")]
