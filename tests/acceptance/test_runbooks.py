"""Every command of the runbooks is run, on an app in just the trouble that its page is for.

A page is followed from its top to its end, line by line; `<!-- fails: 1 -->` before a block is its exit code. The
trouble is made by real jobs and a real worker; what has to be over afterwards is looked at.
"""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, Project

from dutiful.store.claims import QueueLevel
from dutiful.stores.sqlite import SqliteStore
from servers import PostgresServer
from suite.builders import claim_one, enqueue_one

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
BLOCK = re.compile(r"(?:<!-- fails: (\d+) -->\n)?^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PATIENCE = 120.0
JOBS = """
import asyncio
import os
from pathlib import Path
from dutiful import Dutiful, Fixed, Retry

app = Dutiful(heartbeat="200ms", alert_interval="200ms", retry_base="1ms", retry_max="1ms")
HELD = []
app.breaker("email-service", failures=3, open_for="1h")

def mail(to):
    if not Path("mail-server").exists():
        raise ConnectionError("the mail server is down")

@app.job(retry=Retry(max_attempts=1))
async def send_email(to: str) -> None:
    mail(to)

@app.job(breaker="email-service", retry=Retry(max_attempts=1))
async def remind(to: str) -> None:
    mail(to)

@app.job(max_crashes=1)
def parse_video(name: str) -> None:
    if not Path("mended").exists():
        os._exit(9)

@app.job
async def import_file(name: str, lines: list[str] = []) -> None:
    if name == "leaks":
        HELD.append(bytes(5_000_000))
    while name == "endless" and not Path("go").exists():
        await asyncio.sleep(0.02)
"""
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Night:
    """A project in trouble, and the shell of the engineer on call."""

    def __init__(self, project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._project = project
        self._patch = monkeypatch
        self._capsys = capsys
        self._workers: list[subprocess.Popen[bytes]] = []
        self.log = project.folder
        self.names: dict[str, str] = {}  # what $JOB and the like stand for

    @property
    def folder(self) -> Path:
        return self._project.folder

    def call(self, *args: str) -> Answer:
        return self._project.call(self._patch, self._capsys, *args)

    def enqueue(self, kind: str, **payload: Any) -> str:
        return str(self.call("enqueue", kind, *(f"{k}={v}" for k, v in payload.items()), "--json").json["id"])

    def start_worker(self, *options: str, **environment: str) -> None:
        self.log = log = self.folder / f"worker-{len(self._workers)}.log"
        with log.open("wb") as out:
            worker = subprocess.Popen(
                self._project.command("worker", *options),
                cwd=self.folder,
                env=self._project.environment(**environment),
                stdout=out,
                stderr=out,
            )
        self._workers.append(worker)
        self.names["WORKER"] = str(worker.pid)
        self.until(lambda: bool(re.search(r"worker \d+ on ", log.read_text())), f"a worker works: {log.read_text()}")

    def old_workers_ended(self) -> bool:
        return all(worker.poll() is not None for worker in self._workers[:-1])

    def kill(self, signal: signal.Signals) -> None:
        """Sends a signal to the newest worker."""
        self._workers[-1].send_signal(signal)

    def until(self, look: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not look():
            assert time.monotonic() < deadline, what
            time.sleep(0.05)

    def state(self, job: str) -> str:
        return str(self.call("jobs", "show", job, "--json").json["state"])

    def follow(self, page: str, *, after_the_first: Callable[[], None] = lambda: None) -> None:
        """Do all that the page says; `after_the_first` block, what it can only ask for."""
        first, *others = BLOCK.finditer((RUNBOOKS / page).read_text())
        self._follow([first])
        after_the_first()
        self._follow(others)

    def _follow(self, blocks: Sequence[re.Match[str]]) -> None:
        for block in blocks:
            for line in block[2].splitlines():
                self._run(line, int(block[1] or 0))

    def _run(self, line: str, expected: int) -> None:
        for name, value in self.names.items():
            line = line.replace(f"${name}", value)
        assert "$" not in line, line
        match shlex.split(line):
            case ["dutiful", "worker", *options]:
                self.start_worker(*options)
            case ["PYTHONTRACEMALLOC=1", "dutiful", "worker", *options]:
                self.start_worker(*options, PYTHONTRACEMALLOC="1")
            case ["kill", number, pid]:
                os.kill(int(pid), getattr(signal, f"SIG{number[1:]}"))
            case ["dutiful", *args]:
                answer = self.call(*args)
                assert answer.code == expected, f"{line}\n{answer.out}\n{answer.err}"
                assert "Traceback" not in answer.err, answer.err
            case _:
                pytest.fail(f"no rule runs {line!r}")

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Night]:
    shown = PYTHON.findall((RUNBOOKS / "worker-memory.md").read_text())
    (tmp_path / "jobs.py").write_text("\n".join([JOBS, *shown]))
    night = Night(Project(tmp_path, f"sqlite:///{tmp_path}/jobs.db"), monkeypatch, capsys)
    assert night.call("migrate").code == 0
    yield night
    night.close()


def metric(night: Night, name: str, **labels: str) -> float:
    found = night.call("metrics", "--json").json["metrics"]
    return max((one["value"] for one in found if one["metric"] == name and one["labels"] == labels), default=0.0)


def letters(night: Night, status: str) -> Any:
    return night.call("dead-letters", "list", "--status", status, "--json").json["dead_letters"]


def firing(night: Night) -> set[str]:
    return {one["rule"] for one in night.call("alerts", "--json").json["alerts"] if one["state"] == "firing"}


@pytest.mark.req("L96")
def test_every_runbook_has_symptom_cause_and_steps_and_is_followed_here() -> None:
    pages = {page.name for page in RUNBOOKS.glob("*.md")} - {"README.md"}
    followed = set(re.findall(r'follow\("([\w-]+\.md)"', Path(__file__).read_text()))
    assert pages == followed
    for page in pages:
        headings = re.findall(r"^## (.+)$", (RUNBOOKS / page).read_text(), re.MULTILINE)
        assert headings == ["Symptom", "Cause", "Steps"], page
        assert f"({page})" in (RUNBOOKS / "README.md").read_text()


async def held_for_two_hours(database: Path) -> str:
    """A job in the hands of a worker that says nothing, under a lease that is not over."""
    store, begun = SqliteStore(database), datetime.now(UTC) - timedelta(hours=2)
    await store.open()
    job_id = await enqueue_one(store, kind="import_file", payload='{"name": "one"}', now=begun)
    lease = timedelta(days=1)
    await claim_one(store, levels=[QueueLevel("default", 100)], kinds=["import_file"], lease=lease, now=begun)
    await store.close()
    return str(job_id)


@pytest.mark.req("L96", "L73", "L95")
def test_jobs_that_are_stuck_are_given_to_another_worker(night: Night) -> None:
    night.names["JOB"] = job = asyncio.run(held_for_two_hours(night.folder / "jobs.db"))
    night.start_worker()

    night.follow("stuck-jobs.md")

    night.until(lambda: night.state(job) == "completed", "the other worker runs it")


@pytest.mark.req("L96", "L82", "L74")
def test_a_high_error_rate_of_jobs_that_wait_for_a_retry_is_seen_stopped_and_made_good(night: Night) -> None:
    patient = JOBS.replace("@app.job(retry=Retry(max_attempts=1))", '@app.job(retry=Retry(backoff=Fixed("1h")))')
    (night.folder / "jobs.py").write_text(patient)
    jobs = [night.enqueue("send_email", to=f"{number}@example.org") for number in range(12)]
    night.start_worker()
    waiting = {"queue": "default", "kind": "send_email"}
    night.until(lambda: metric(night, "scheduled", **waiting) == len(jobs), "all have failed once, and wait")
    night.until(lambda: "errors" in firing(night), "the alert fires")
    reported = night.call("doctor")
    assert reported.code == 1 and "problem: alert 'errors' (kind=send_email) has fired for" in reported.out
    assert "read docs/runbooks/high-error-rate.md" in reported.out
    for asked in (["--text", "mail server"], ["--state", "scheduled", "--error-class", "transient"]):
        found = night.call("jobs", "list", "--kind", "send_email", *asked, "--json").json["jobs"]
        assert {job["id"] for job in found} == set(jobs), asked
    assert "the mail server is down" in night.call("jobs", "show", jobs[0]).out
    night.names["JOB"] = jobs[0]
    (night.folder / "mail-server").touch()

    night.follow("high-error-rate.md")

    night.until(lambda: night.state(jobs[0]) == "completed", "what cannot wait has been made due")
    assert night.state(jobs[1]) == "scheduled"


@pytest.mark.req("L96", "L82", "L74")
def test_a_high_error_rate_is_seen_stopped_and_made_good(night: Night) -> None:
    jobs = [night.enqueue("send_email", to=f"{number}@example.org") for number in range(12)]
    night.start_worker()
    night.until(lambda: metric(night, "error_rate", kind="send_email") == 1.0, "all attempts fail")
    night.until(lambda: "errors" in firing(night), "the alert fires")
    night.names["JOB"] = jobs[0]
    (night.folder / "mail-server").touch()

    night.follow("high-error-rate.md")

    for status in ("reprocessing", "pending_review"):
        night.until(lambda status=status: letters(night, status) == [], f"none is {status}")  # type: ignore[misc]


@pytest.mark.req("L96", "L76")
def test_a_queue_that_backs_up_is_worked_off(night: Night) -> None:
    jobs = [night.enqueue("import_file", name=f"file{number}") for number in range(20)]
    night.names["JOB"] = jobs[-1]
    assert metric(night, "pending_total") == 20

    night.follow("queue-backing-up.md")

    night.until(lambda: metric(night, "pending_total") == 0, "it has run dry")


@pytest.mark.req("L96", "L28")
def test_large_payloads_are_seen_and_held_by_fewer_slots(night: Night) -> None:
    night.start_worker()
    lines = "[" + ",".join(['"' + "x" * 1_000 + '"'] * 100) + "]"
    night.names["JOB"] = night.enqueue("import_file", name="large", lines=lines)
    night.until(lambda: metric(night, "payload_most_bytes", kind="import_file") > 100_000, "its size is measured")

    assert "payload" in (shown := night.call("jobs", "show", night.names["JOB"]).out) and " bytes" in shown

    night.follow("worker-memory.md")

    night.until(night.old_workers_ended, "only the worker that traces is left")
    for name in ("small", "leaks"):
        later = night.enqueue("import_file", name=name)
        night.until(lambda job=later: night.state(job) == "completed", "the new worker works")  # type: ignore[misc]
    report = night.call("enqueue", "memory_report", "--wait", "--timeout", "2m").out
    leak = (night.folder / "jobs.py").read_text().splitlines().index("        HELD.append(bytes(5_000_000))") + 1
    assert f"jobs.py:{leak}: size=4883 KiB" in report, report


@pytest.mark.req("L96", "L75", "L85", "L90", "L91")
def test_an_open_breaker_is_seen_kept_open_and_reset(night: Night) -> None:
    night.start_worker()
    for number in range(3):
        night.enqueue("remind", to=f"{number}@example.org")
    night.until(lambda: "breaker-open" in firing(night), "the breaker trips, and the alert fires")
    night.names["JOB"] = waiting = night.enqueue("remind", to="ada@example.org")
    assert night.state(waiting) == "blocked"
    (night.folder / "mail-server").touch()

    night.follow("breaker-open.md")

    night.until(lambda: night.state(waiting) == "completed", "what has waited runs")


@pytest.mark.req("L96", "L86", "L87", "L88", "L89")
def test_dead_letters_are_reviewed_until_none_is_left(night: Night) -> None:
    jobs = [night.enqueue("send_email", to=f"{number}@example.org") for number in range(4)]
    night.start_worker()
    for job in jobs:
        night.until(lambda job=job: night.state(job) == "failed", "it fails for good")  # type: ignore[misc]
    night.names["JOB"], night.names["OTHER"] = jobs[:2]
    (night.folder / "mail-server").touch()

    night.follow("dead-letters.md")

    assert letters(night, "pending_review") == []


@pytest.mark.req("L96", "L93")
def test_kinds_are_drained_for_maintenance_and_go_on_afterwards(night: Night) -> None:
    night.start_worker()
    (night.folder / "mail-server").touch()
    night.names["JOB"] = endless = night.enqueue("import_file", name="endless")
    night.enqueue("send_email", to="ada@example.org")
    night.until(lambda: night.state(endless) == "running", "it runs without end")

    night.follow("drain-for-maintenance.md")

    later = night.enqueue("import_file", name="later")
    night.until(lambda: night.state(later) == "completed", "it goes on")
    assert night.state(endless) == "cancelled"


@pytest.mark.req("L96")
def test_a_database_that_was_away_is_used_again_without_a_restart_of_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "mail-server").touch()
    with PostgresServer(18) as server, closing(Night(Project(tmp_path, server.dsn()), monkeypatch, capsys)) as night:
        assert night.call("migrate").code == 0
        night.start_worker()
        server.stop()
        night.until(lambda: "the database is away" in night.log.read_text(), "the worker has noticed")

        def bring_back() -> None:
            server.start()
            night.until(lambda: "the database is back" in night.log.read_text(), "the worker has noticed")

        night.follow("database-away.md", after_the_first=bring_back)

        job = night.enqueue("send_email", to="ada@example.org")
        night.until(lambda: night.state(job) == "completed", "the same worker runs it")


@pytest.mark.req("L96")
def test_a_job_that_kills_its_worker_is_found_kept_from_running_and_made_good(night: Night) -> None:
    night.names["JOB"] = job = night.enqueue("parse_video", name="broken")
    for _ in range(2):  # the job ends the first one, and the second one rescues it
        night.start_worker()
    night.until(lambda: night.state(job) == "failed", "it is not run again")
    assert "WorkerLost" in night.call("jobs", "list", "--state", "failed", "--text", "WorkerLost").out
    (night.folder / "mended").touch()

    night.follow("workers-die.md")

    night.until(lambda: letters(night, "reprocessing") == [], "its new job has completed")
    assert letters(night, "pending_review") == []


@pytest.mark.req("L96")
def test_a_leader_that_is_stopped_is_found_and_continues(night: Night) -> None:
    night.start_worker()
    night.until(lambda: "leader" in night.call("workers").out, "it leads")

    def stopped_between_transactions() -> bool:
        night.kill(signal.SIGSTOP)
        if "is stopped (by a signal or a debugger) and leads" in night.call("doctor").out:
            return True
        night.kill(signal.SIGCONT)
        return False

    night.until(stopped_between_transactions, "doctor names it")

    night.follow("maintenance-late.md")
