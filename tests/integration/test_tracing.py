"""OpenTelemetry spans of enqueues and attempts, joined across loops, threads and processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import observed_jobs
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from running_workers import working
from uuid_utils.compat import uuid7

from dutiful import Context, Dutiful, Fixed, JobFailed, JobRecord, OnConflict, Retry, Unique, UniqueConflict, UsageError
from dutiful.core import ids
from dutiful.core.job import NewJob
from dutiful.observe import tracing
from faults import Fleet, until

HERE = Path(__file__).parent
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def sdk() -> None:
    """A process has one; no other test turns tracing on."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture(autouse=True)
def nothing_yet() -> Iterator[None]:
    EXPORTER.clear()
    yield
    context.attach(context.Context())


@pytest.fixture
def traced(app: Dutiful) -> Dutiful:
    app.configure(tracing=True)
    return app


def spans(name: str) -> Sequence[ReadableSpan]:
    return [span for span in EXPORTER.get_finished_spans() if span.name == name]


def span(name: str) -> ReadableSpan:
    (only,) = spans(name)
    return only


def above(one: ReadableSpan) -> int | None:
    return None if one.parent is None else one.parent.span_id


def id_of(one: ReadableSpan) -> int:
    assert one.context is not None
    return int(one.context.span_id)


def facts(one: ReadableSpan) -> dict[str, Any]:
    return dict(one.attributes or {})


async def all_ended(app: Dutiful, count: int) -> list[JobRecord]:
    jobs = [job for job in await app.jobs() if job.state.final]
    return jobs if len(jobs) == count else []


async def test_an_enqueue_and_its_attempts_are_linked_across_processes(sqlite_path: Path, tmp_path: Path) -> None:
    url, file = f"sqlite:///{sqlite_path}", tmp_path / "spans.jsonl"
    environment = {"SPANS": str(file), "DUTIFUL_TRACING": "1"}
    fleet = Fleet("observed_jobs:app", url, folder=tmp_path, path=HERE, environment=environment)
    async with fleet, Dutiful(url) as app:
        assert await fleet.run(*observed_jobs.producer("in_loop", "in_process")).ended() == 0
        worker = fleet.start("--log-format", "json")
        jobs = await until(lambda: all_ended(app, 3), "all jobs have ended")
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0

    text = file.read_text()
    spans = {one["name"]: one for one in map(json.loads, text.splitlines())}
    tree = {name: _name_above(one, spans) for name, one in spans.items()}
    assert tree == {
        "request": None,
        "enqueue in_loop": "request",
        "enqueue in_process": "request",
        "run in_loop": "enqueue in_loop",
        "work in loop": "run in_loop",
        "enqueue in_thread": "run in_loop",  # by the handler
        "run in_thread": "enqueue in_thread",
        "work in thread": "run in_thread",
        "run in_process": "enqueue in_process",
        "work in process": "run in_process",
    }
    assert len({one["context"]["trace_id"] for one in spans.values()}) == 1
    pids = {spans[f"work in {where}"]["attributes"]["pid"] for where in ("loop", "process")}
    assert len(pids) == 2, "in a process of its own"
    lines = [json.loads(line) for line in worker.output.splitlines()]
    for where in ("loop", "thread", "process"):
        (line,) = [line for line in lines if line["message"] == f"working in {where}"]
        current = spans[f"work in {where}"]["context"]
        assert (f"0x{line['trace_id']}", f"0x{line['span_id']}") == (current["trace_id"], current["span_id"])
    assert "trace_id" not in lines[-1], "nothing runs any more"
    job = next(job for job in jobs if job.kind == "in_loop")
    assert spans["run in_loop"]["attributes"] == {
        "messaging.system": "dutiful",
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": ids.public(job.id),
        "messaging.message.conversation_id": "order 7",
        "messaging.client.id": str(worker.id),
        "dutiful.job.kind": "in_loop",
        "dutiful.job.attempt": 1,
        "dutiful.job.max_attempts": 5,
        "dutiful.tenant": "acme",
        "dutiful.outcome": "done",
    }
    assert observed_jobs.SECRET not in text, "no payload goes into spans"


def _name_above(one: dict[str, Any], spans: dict[str, Any]) -> str | None:
    above = {other["context"]["span_id"]: name for name, other in spans.items()}
    return None if one["parent_id"] is None else above[one["parent_id"]]


async def test_each_attempt_has_a_span_with_its_outcome(traced: Dutiful) -> None:
    @traced.job(retry=Retry(max_attempts=2, backoff=Fixed(0)))
    async def mail(ctx: Context) -> None:
        raise ConnectionError(f"no route, password=hunter2 at {ctx.attempt}")

    async with working(traced):
        with pytest.raises(JobFailed):
            await (await mail.enqueue()).result(timeout=60)

    produced = span("enqueue mail")
    assert produced.kind is SpanKind.PRODUCER
    first, second = sorted(spans("run mail"), key=lambda one: facts(one)["dutiful.job.attempt"])
    for number, attempt in enumerate((first, second), 1):
        assert attempt.kind is SpanKind.CONSUMER
        assert above(attempt) == id_of(produced)
        assert attempt.status.status_code is StatusCode.ERROR
        known = {"dutiful.outcome": "failed", "error.type": "ConnectionError", "dutiful.job.attempt": number}
        assert facts(attempt).items() >= known.items()
        (event,) = attempt.events
        message = (event.attributes or {})["exception.message"]
        assert str(message).startswith("no route") and "hunter2" not in str(message)


@sqlite
async def test_an_attempt_long_after_its_enqueue_is_a_trace_of_its_own_that_links_to_it(
    traced: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "SAME_TRACE", timedelta(0))

    @traced.job
    async def late() -> None: ...

    async with working(traced):
        await (await late.options(delay="10ms").enqueue()).result(timeout=60)

    produced, ran = span("enqueue late"), span("run late")
    assert ran.parent is None
    assert [link.context.span_id for link in ran.links] == [id_of(produced)]
    assert ran.context is not None and produced.context is not None
    assert ran.context.trace_id != produced.context.trace_id


@sqlite
async def test_many_jobs_enqueued_at_once_share_one_span(traced: Dutiful) -> None:
    @traced.job
    async def each(number: int) -> None: ...

    async with working(traced):
        for job in await each.enqueue_many([{"number": number} for number in range(3)]):
            await job.result(timeout=60)

    produced = span("enqueue each")
    assert facts(produced)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in facts(produced)
    assert [above(one) for one in spans("run each")] == [id_of(produced)] * 3


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_a_job_of_the_callers_own_transaction_belongs_to_the_callers_trace(traced: Dutiful, app_url: str) -> None:
    @traced.job
    async def bill() -> None: ...

    connection = await asyncpg.connect(app_url)
    with trace.get_tracer("shop").start_as_current_span("request"):
        async with connection.transaction():
            job = await bill.options(within=connection).enqueue()
    await connection.close()
    async with working(traced):
        await job.result(timeout=60)

    assert above(span("enqueue bill")) == id_of(span("request"))
    assert above(span("run bill")) == id_of(span("enqueue bill"))


@sqlite
async def test_only_the_trace_context_is_stored_beside_what_else_the_job_has(traced: Dutiful) -> None:
    @traced.job
    async def mail() -> None: ...

    context.attach(baggage.set_baggage("card", "4111"))
    held = Unique("k", on_conflict=OnConflict.RETURN)
    first = await mail.options(unique=held).enqueue()
    second = await mail.options(unique=held).enqueue()

    options = (await first.record()).options or {}
    assert set(options) == {"unique", "trace"}
    assert set(options["trace"]) == {"traceparent", "at"}
    assert second.id == first.id
    assert [facts(one).get("dutiful.insertion") for one in spans("enqueue mail")] == [None, "existing"]
    assert {facts(one)["messaging.message.id"] for one in spans("enqueue mail")} == {first.public_id}


@sqlite
async def test_a_trace_that_a_user_wrote_into_the_options_is_used_only_if_valid(
    traced: Dutiful, caplog: pytest.LogCaptureFixture
) -> None:
    @traced.job
    async def odd() -> None: ...

    client = await traced.client()
    strange: list[Any] = [7, {"traceparent": 7}, {"traceparent": "x"}, {"traceparent": PARENT}, None]
    strange.append({"traceparent": PARENT, "tracestate": 5})
    options = [json.dumps({"trace": one, "webhookless": '"trace"'}) for one in strange]
    await client.store.jobs.insert([NewJob(uuid7(), "odd", "default", "{}", options=one) for one in options])
    async with working(traced):
        await until(lambda: all_ended(traced, len(strange)), "all have ended")

    assert [above(one) for one in spans("run odd")] == [None] * len(strange), "of unknown age, so no child"
    assert sum(len(one.links) for one in spans("run odd")) == 2
    assert not [record for record in caplog.records if record.name == "dutiful.tracing"]


class Broken:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"the SDK is broken: {name}")


@sqlite
async def test_whatever_the_sdk_does_jobs_are_stored_and_run(
    traced: Dutiful, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    @traced.job
    async def sturdy(name: str) -> None:
        ran.append(name)

    async with working(traced):
        client = await traced.client()
        tracer = client.tracer
        assert tracer is not None
        monkeypatch.setattr(tracer, "_tracer", Broken())
        await (await sturdy.enqueue("no span can be made")).result(timeout=60)
        monkeypatch.setattr(tracer, "_tracer", trace.get_tracer("dutiful"))
        monkeypatch.setattr("opentelemetry.sdk.trace.Span.end", Broken.__getattr__)
        await (await sturdy.enqueue("no span can be ended")).result(timeout=60)

    assert ran == ["no span can be made", "no span can be ended"]
    assert {"a span could not be made; jobs run without it", "a span could not be ended; jobs run without it"} <= {
        record.getMessage() for record in caplog.records
    }


@sqlite
async def test_an_enqueue_that_is_refused_says_so_without_its_key(traced: Dutiful) -> None:
    @traced.job
    async def mail() -> None: ...

    held = Unique("secret key", on_conflict=OnConflict.REJECT)
    await mail.options(unique=held).enqueue()
    with pytest.raises(UniqueConflict, match="secret key"):
        await mail.options(unique=held).enqueue()

    refused = spans("enqueue mail")[-1]
    assert refused.status.status_code is StatusCode.ERROR
    assert facts(refused)["error.type"] == "UniqueConflict"
    assert "secret key" not in refused.to_json()


@sqlite
async def test_without_the_extra_the_error_names_the_remedy(traced: Dutiful, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dutiful.observe.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with pytest.raises(UsageError, match=r"setting tracing needs an extra .*pip install 'dutiful\[otel\]'"):
        await traced.client()
    monkeypatch.undo()
    traced.configure(tracing=False)


OFF = """
import asyncio, sys
from dutiful import Dutiful

app = Dutiful()

@app.job
async def plain() -> None: ...

async def main():
    async with app, app.embedded():
        job = await plain.enqueue()
        await job.result(timeout=60)
        assert (await job.record()).options is None
    assert not [name for name in sys.modules if name.startswith("opentelemetry")]

asyncio.run(main())
"""


def test_off_means_that_nothing_is_imported_or_stored(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DUTIFUL_")}
    done = subprocess.run(
        [sys.executable, "-c", OFF], cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


@sqlite
async def test_the_line_about_a_failed_attempt_names_its_span(
    traced: Dutiful, caplog: pytest.LogCaptureFixture
) -> None:
    @traced.job(retry=Retry(max_attempts=2, backoff=Fixed("1ms")))
    async def breaks() -> None:
        raise OSError("no route")

    @traced.job(timeout="10ms", retry=Retry(max_attempts=1))
    async def hangs() -> None:
        await asyncio.Event().wait()

    async with working(traced):
        for job in (await breaks.enqueue(), await hangs.enqueue()):
            with pytest.raises(JobFailed):
                await job.result()

    logged = [line for line in caplog.records if " failed at attempt " in line.getMessage()]
    named = sorted((vars(line)["kind"], vars(line)["trace_id"], vars(line)["span_id"]) for line in logged)
    ran = [(name, one.context) for name in ("breaks", "hangs") for one in spans(f"run {name}")]
    assert len(ran) == 3
    assert named == sorted((name, f"{one.trace_id:032x}", f"{one.span_id:016x}") for name, one in ran if one)
