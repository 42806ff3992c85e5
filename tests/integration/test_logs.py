"""Log lines of handlers and of workers: which job they are about, in text and in JSON, and that none is forged."""

import asyncio
import io
import json
import logging
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import msgspec
import observed_jobs
import pytest
from running_workers import working

from dutiful import Context, Dutiful, JobFailed, JobRecord, ResultTimeout, Retry, UsageError
from dutiful.core import ids
from dutiful.core.errors import DataRefused
from dutiful.core.job import Claim
from dutiful.core.outcome import Done
from dutiful.maintenance.rescuer import Rescuer
from dutiful.observe.logs import FIELDS, PROCESS_JOB, JobFields, JsonLines, TextLines
from dutiful.settings import load
from dutiful.store import Store
from dutiful.worker.executor.progress import ProgressTracker, ProgressWriter
from dutiful.worker.leases import Leases
from dutiful.worker.settler import Settler
from faults import Fleet, until
from suite.builders import start_one

HERE = Path(__file__).parent
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")


@contextmanager
def captured(formatter: logging.Formatter) -> Iterator[io.StringIO]:
    """What this process logs meanwhile, as one handler of the user's would write it."""
    handler = logging.StreamHandler(io.StringIO())
    handler.addFilter(JobFields())
    handler.setFormatter(formatter)
    root, shop = logging.getLogger(), logging.getLogger("shop")
    shop.setLevel("INFO")
    root.addHandler(handler)
    try:
        yield handler.stream
    finally:
        root.removeHandler(handler)
        shop.setLevel("NOTSET")


def written(formatter: logging.Formatter, message: str, **fields: Any) -> str:
    error = fields.pop("error", None)
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("shop", logging.INFO, "shop.py", 1, message, (), info)
    vars(record).update(fields)
    JobFields().filter(record)
    return formatter.format(record)


def fields_of(job: JobRecord, **more: Any) -> dict[str, Any]:
    own = {"job": ids.public(job.id), "kind": job.kind, "attempt": job.attempt, "correlation_id": job.correlation_id}
    return own | more


@sqlite
@pytest.mark.req("L7", "L51")
async def test_what_handlers_and_the_worker_say_of_a_job_names_it_and_its_correlation(app: Dutiful) -> None:
    log = logging.getLogger("shop")
    pipeline = app.pipeline("pipeline")

    @app.job
    async def on_loop(ctx: Context) -> None:
        log.info("from the loop")
        await in_thread.enqueue()

    @app.job
    def in_thread() -> None:
        log.info("from a thread")

    @pipeline.phase
    async def phase() -> None:
        log.info("from a phase")

    @app.job(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise ValueError("oops")

    with captured(JsonLines()) as stream:
        async with working(app) as worker:
            log.info("from no job")
            first = await on_loop.options(correlation_id="order 7", tenant="acme").enqueue()
            await first.result(timeout=60)
            await (await pipeline.enqueue()).result(timeout=60)
            with pytest.raises(JobFailed):
                await (await fails.enqueue()).result(timeout=60)
            (child,) = await until(lambda: _ended(app, "in_thread"), "the child has ended")
    jobs = {job.kind: job for job in [child, await first.record(), *await app.jobs()]}
    lines = {line["message"]: line for line in map(json.loads, stream.getvalue().splitlines())}

    def fields(message: str) -> dict[str, Any]:
        return {name: value for name, value in lines[message].items() if name in FIELDS}

    assert fields("from no job") == {}
    inherited = {"tenant": "acme", "worker": str(worker.id)}
    assert fields("from the loop") == fields_of(jobs["on_loop"], **inherited) | {"correlation_id": "order 7"}
    assert fields("from a thread") == fields_of(jobs["in_thread"], **inherited) | {"correlation_id": "order 7"}
    assert fields("from a phase") == fields_of(jobs["pipeline"], worker=str(worker.id))
    failure = next(message for message in lines if "failed at attempt 1 of 1: ValueError: oops" in message)
    assert fields(failure) == fields_of(jobs["fails"], worker=str(worker.id))


async def _ended(app: Dutiful, kind: str) -> list[JobRecord]:
    return [job for job in await app.jobs(kind=kind) if job.state.final]


@pytest.mark.req("L51")
async def test_a_worker_logs_json_whatever_process_its_handlers_run_in(sqlite_path: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{sqlite_path}"
    async with Fleet("observed_jobs:app", url, folder=tmp_path, path=HERE) as fleet, Dutiful(url) as app:
        producer = observed_jobs.producer("in_loop", "in_process", "forger")
        assert await fleet.run(*producer).ended() == 0
        worker = fleet.start("--log-format", "json")
        jobs = await until(lambda: _all_ended(app, 4), "all jobs have ended")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0

    lines = [json.loads(line) for line in worker.output.split("\n") if line]
    assert {"time", "level", "logger", "message"} <= set.intersection(*(set(line) for line in lines))
    by_kind = {job.kind: job for job in jobs}
    for where in ("loop", "thread", "process"):
        (line,) = [line for line in lines if line["message"] == f"working in {where}"]
        known = fields_of(by_kind[f"in_{where}"], tenant="acme", worker=str(worker.id))
        assert {name: line[name] for name in FIELDS} == known
        assert line["extra"] == {"chars": len(observed_jobs.SECRET)}
        (warned,) = [line for line in lines if line["logger"] == "py.warnings" and f"in {where}" in line["message"]]
        assert {name: warned[name] for name in FIELDS} == known
    (warning,) = [line for line in lines if line["logger"] == "shop" and line["level"] == "WARNING"]
    assert warning["message"].startswith("broken\n") and warning["correlation_id"] == "order 7"
    (failure,) = [line for line in lines if "failed at attempt" in line["message"]]
    assert failure["job"] == fields_of(by_kind["forger"])["job"] and failure["correlation_id"] == "order 7"


async def _all_ended(app: Dutiful, count: int) -> list[JobRecord]:
    jobs = [job for job in await app.jobs() if job.state.final]
    return jobs if len(jobs) == count else []


async def test_what_is_said_of_a_job_where_it_does_not_run_names_its_tenant_and_correlation_too(store: Store) -> None:
    claimed = await start_one(store, tenant="acme", correlation_id="order 7")
    with captured(JsonLines()) as stream:
        await _lose(store, claimed)
        leases = Leases()
        leases.add([claimed])
        settler = Settler(store.claims, {}, leases, lambda low, high: low)
        settler.settle(claimed, Done())
        settler.close()
        await asyncio.wait_for(settler.run(), 60)
        reporter = ProgressWriter(Mock(report=AsyncMock(side_effect=DataRefused("too odd"))), lambda: None)
        with pytest.raises(DataRefused):
            await reporter.write(ProgressTracker(claimed, reporter), ())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    parts = ("was lost with worker", "its claim was lost", "the progress of job")
    assert [part for line in lines for part in parts if part in line["message"]] == list(parts)
    whose = {"kind": claimed.kind, "attempt": 1, "tenant": "acme", "correlation_id": "order 7"}
    for line in lines:
        assert {name: line[name] for name in FIELDS if name in line} == {"job": ids.public(claimed.job_id), **whose}


async def _lose(store: Store, claimed: Claim) -> None:
    held = await store.claims.held(claimed.job_id)
    assert held is not None
    await Rescuer(store, {}).rescue([held])


WHO: ContextVar[str] = ContextVar("who", default="none")


async def test_what_is_shared_runs_in_an_empty_context(app: Dutiful, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the log fields and the trace of the first caller would stay for all others after it."""
    done_by: dict[str, str] = {}

    def spied(store: Any, name: str) -> None:
        real = getattr(store, name)

        async def spy(*args: Any, **options: Any) -> Any:
            done_by[name] = WHO.get()
            return await real(*args, **options)

        monkeypatch.setattr(store, name, spy)

    @app.job
    async def later() -> None: ...

    spied(type(app.make_store()), "open")
    WHO.set("the first handler")
    client = await app.client()
    spied(client.store.jobs, "insert")
    spied(client.store.queries, "outcomes")
    spied(client.store.events, "listen")
    job, *_ = await asyncio.gather(*(later.enqueue() for _ in range(2)))  # one alone belongs to its caller
    with pytest.raises(ResultTimeout):
        await job.result("50ms")
    async with app.events():
        await until(lambda: _has(done_by, "listen"), "the watcher has signed on")
    assert done_by == dict.fromkeys(("open", "insert", "outcomes", "listen"), "none")


async def _has(found: dict[str, str], name: str) -> bool:
    return name in found


def test_text_shows_the_job_and_its_correlation_id_always() -> None:
    about = {"job": "01JC", "kind": "mail", "attempt": 2, "tenant": None, "correlation_id": "order 7"}

    plain = written(TextLines(), "sent", **about)
    assert LINE.match(plain)
    assert plain.endswith(' INFO shop sent [job=01JC kind=mail attempt=2 correlation_id="order 7"]')
    assert written(TextLines(), "hello").endswith(" INFO shop hello")


@pytest.fixture
def running() -> Iterator[dict[str, Any]]:
    """A job, as in a process of its handler's own, and its fields."""
    job = {"job": "01JC", "kind": "mail", "attempt": 2, "tenant": "acme", "correlation_id": "7", "worker": "ada"}
    token = PROCESS_JOB.set(job)
    yield job
    PROCESS_JOB.reset(token)


def test_no_message_and_no_extra_passes_for_the_fields_of_the_job_that_runs(running: dict[str, Any]) -> None:
    forged = dict.fromkeys(FIELDS, "forged")

    read = json.loads(written(JsonLines(), "hello", **forged))
    assert {name: read[name] for name in FIELDS} == running and "extra" not in read
    line = written(TextLines(), "01JC paid [job=02 kind=refund]", **forged)
    assert line.endswith(" [job=02 kind=refund] [job=01JC kind=mail attempt=2 tenant=acme correlation_id=7]")


def _raised(message: str = "a\n2030-01-01 00:00:00,000 INFO dutiful.worker forged") -> ValueError:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_no_message_and_no_error_can_forge_a_line() -> None:
    evil = "a\n2030-01-01 00:00:00,000 INFO dutiful.worker forged\r\x1b[2J\x85\u2028\ud800b"

    text = written(TextLines(), evil, correlation_id=evil, error=_raised())
    first, *rest = text.split("\n")
    assert first.isprintable() and "\\n2030" in first
    assert rest and all(line.startswith("    ") and line.isprintable() for line in rest)
    line = written(JsonLines(), evil, correlation_id=evil, error=_raised())
    assert line.isascii() and line.isprintable()
    read = json.loads(line)
    readable = evil.replace("\ud800", "\ufffd")  # because readers of JSON refuse a lone surrogate
    assert (read["message"], read["correlation_id"]) == (readable, readable)
    assert read["exception"]["type"] == "ValueError" and "forged" in read["exception"]["traceback"]


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError


def test_whatever_callers_add_the_json_line_is_not_lost() -> None:
    ring: dict[str, Any] = {}
    ring["self"] = ring
    for extra in (ring, {(1, 2): 3}, Unspeakable(), float("nan"), b"\xff"):
        read = json.loads(written(JsonLines(), "hello", thing=extra, other=1), parse_constant=pytest.fail)
        assert read["message"] == "hello" and read["extra"]["other"] == 1 and "thing" in read["extra"]
        read = json.loads(written(JsonLines(), "hello", job=extra, attempt=1), parse_constant=pytest.fail)
        assert isinstance(read["job"], (str, dict)) and read["attempt"] == 1
        assert written(TextLines(), "hello", job=extra).startswith("20")
    vars(record := logging.makeLogRecord({"msg": "hello", "name": "shop"}))[1, 2] = 3  # type: ignore[index]
    assert json.loads(JsonLines().format(record))["extra"] == {"(1, 2)": 3}
    record = logging.makeLogRecord({"msg": "%d sent", "args": ("two",)})
    assert json.loads(JsonLines().format(record))["message"].startswith("%d sent (its arguments could not be put in")


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("half \ud83d of one", "half \ufffd of one"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud800\ud83d\ude00", "\ufffd\N{GRINNING FACE}"),
        ("\N{GRINNING FACE}\udfff", "\N{GRINNING FACE}\ufffd"),
        ("no \0 byte", "no \ufffd byte"),
        (r"\ud800 \u0000 \\ud800", r"\ud800 \u0000 \\ud800"),
        ("\\\ud800", "\\\ufffd"),
    ],
)
def test_every_reader_of_json_takes_a_line(said: str, read: str) -> None:
    line = written(JsonLines(), said, job=said, thing={said: [said]}, error=ValueError(said))
    found = msgspec.json.decode(line)  # which refuses what Python's own reader lets pass
    assert (found["message"], found["job"], found["extra"]["thing"]) == (read, read, {read: [read]})
    assert found["exception"]["message"] == read


def test_what_dutiful_itself_writes_has_no_secrets_in_it_and_what_others_write_is_theirs() -> None:
    secret = "postgresql://ada:hunter2hunter2@db/shop"
    for formatter in (TextLines(), JsonLines()):
        ours = written(formatter, f"no {secret}", error=_raised(f"not {secret}"), name="dutiful.worker")
        assert "hunter2" not in ours and "ValueError: not " in ours and "[redacted]" in ours
        theirs = written(formatter, f"no {secret}", error=_raised(f"not {secret}"))
        assert theirs.count("hunter2hunter2") >= 2


@pytest.mark.parametrize("given", ["yaml", ""])
def test_a_format_that_there_is_not_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match=r'log_format is .*: it must be "text" or "json"'):
        load({"log_format": given})
