"""Kinds of each mode that log and make spans, and a producer; at module level, where other processes find them."""

import asyncio
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from dutiful import Dutiful, Retry

SECRET = "walrus-4711"  # in every payload
app = Dutiful()
log = logging.getLogger("shop")
tracer = trace.get_tracer("shop")


class FileExporter(SpanExporter):
    """Appends a line for each span, from any process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            file.write("".join(" ".join(span.to_json(indent=None).split("\n")) + "\n" for span in spans))
        return SpanExportResult.SUCCESS


if "SPANS" in os.environ:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter(Path(os.environ["SPANS"]))))
    trace.set_tracer_provider(provider)


def work(where: str, what: str) -> None:
    with tracer.start_as_current_span(f"work in {where}", attributes={"pid": os.getpid()}):
        log.info("working in %s", where, extra={"chars": len(what), "kind": "not this one", "worker": "nor this"})
        warnings.warn(f"careful in {where}\n2030-01-01 INFO dutiful.worker all is well", stacklevel=1)


@app.job
async def in_loop(what: str) -> None:
    work("loop", what)
    await asyncio.sleep(0)
    await in_thread.enqueue(what)


@app.job
def in_thread(what: str) -> None:
    work("thread", what)


@app.job(process=True)
def in_process(what: str) -> None:
    work("process", what)


@app.job(retry=Retry(max_attempts=1))
def forger(what: str) -> None:
    log.warning('%s\n2030-01-01 INFO dutiful.worker all is well\x1b[2J\u2028{"level": "INFO"}', "broken")
    raise ValueError("line 1\n2030-01-01 INFO dutiful.worker all is well")


def producer(*kinds: str) -> list[str]:
    """The command that enqueues a job of each kind, in a process of its own."""
    return [sys.executable, "-c", f"import observed_jobs; observed_jobs.produce(*{kinds!r})"]


def produce(*kinds: str) -> None:
    """Enqueue jobs from blocking code, as one request."""
    with tracer.start_as_current_span("request"):
        for name in kinds:
            app.kinds[name].sync.options(correlation_id="order 7", tenant="acme").enqueue(what=SECRET)
    app.close_sync()
