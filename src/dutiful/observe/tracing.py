"""OpenTelemetry spans: one for each enqueue, one for each attempt, joined across processes by W3C trace context.

Imported only where the setting `tracing` is on. Errors of the user's SDK never keep jobs from being stored or run.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec
from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dutiful.core import ids
from dutiful.core.job import Claim, Inserted, Insertion, NewJob
from dutiful.core.outcome import Failed, Outcome, TimedOut
from dutiful.core.states import State
from dutiful.observe.logs import WORKER, set_span_reader
from dutiful.observe.producer import ProducerSpan

log = logging.getLogger("dutiful.tracing")
SAME_TRACE = timedelta(minutes=15)  # an attempt that begins within this of its enqueue belongs to the same trace
FLUSH_TIMEOUT = timedelta(seconds=5)
OPTION = "trace"  # in a job's options
MAX_FAILED = 10_000  # attempts whose outcomes are not yet stored
MAX_LINKS = 100  # of one enqueue; an SDK keeps few more
_W3C = TraceContextTextMapPropagator()  # and no baggage, which may hold anything
_NO_PARENT = Context()
_SINGLE, _BATCH = "messaging.message.id", "messaging.batch.message_count"


class ActiveSpan(NamedTuple):
    """A span that is current until it is ended."""

    span: Span
    token: Any


class TracedProducerSpan(ProducerSpan):
    def __init__(self, jobs: Sequence[NewJob], active: ActiveSpan | None) -> None:
        super().__init__(jobs)
        self._active = active

    def stored(self, inserted: Sequence[Inserted]) -> None:
        if self._active is not None and len(inserted) == 1:
            (one,) = inserted
            self._active.span.set_attribute(_SINGLE, ids.public(one.job_id))
            if one.insertion is not Insertion.MADE:
                self._active.span.set_attribute("dutiful.insertion", one.insertion.value)


class Tracer:
    def __init__(self) -> None:
        # Without an SDK its spans cost next to nothing.
        self._tracer = trace.get_tracer("dutiful", version("dutiful"))
        # By claim: the span of an attempt, for the log line about its failure.
        self._failed: dict[int, Mapping[str, str]] = {}
        set_span_reader(_current_span)

    @contextmanager
    def producing(self, jobs: Sequence[NewJob], *, new_trace: bool = False) -> Iterator[ProducerSpan]:
        """Opens one span for one enqueue of one or many jobs, and stores its ids with each of them."""
        context = _NO_PARENT if new_trace else None
        active = self._activate(lambda: self._start_producing(jobs, context)) if jobs else None
        span = TracedProducerSpan(jobs, active)
        if active is not None and (carrier := self.carrier()):
            span.jobs = _with_trace(jobs, carrier)
        try:
            yield span
        except BaseException as error:
            # The type only: a message may quote the unique key, which may come from the payload.
            _end(active, {"error.type": type(error).__qualname__}, Status(StatusCode.ERROR))
            raise
        if not span.void:
            _end(active, {})
        elif active is not None:
            with suppress(Exception):
                otel.detach(active.token)  # a span that is not ended is never exported

    def carrier(self) -> dict[str, str] | None:
        """The current span in the form that another process can continue; None if there is none."""
        carrier: dict[str, str] = {}
        with suppress(Exception):
            _W3C.inject(carrier)
        return carrier or None

    def begin(self, claim: Claim) -> ActiveSpan | None:
        """Starts the span of an attempt."""
        return self._activate(lambda: self._start_consuming(claim))

    def end(self, active: ActiveSpan | None, claim: Claim, outcome: Outcome | State) -> None:
        """A State as outcome means that the handler completed the job in a transaction."""
        if isinstance(outcome, State):
            name = "done" if outcome is State.COMPLETED else "partial"
        else:
            name = "timed_out" if isinstance(outcome, TimedOut) else type(outcome).__name__.lower()
        if not isinstance(outcome, (Failed, TimedOut)):
            _end(active, {"dutiful.outcome": name})
            return
        error = {name: str(outcome.error.get(name)) for name in ("type", "message", "class")}
        if active is not None:
            while len(self._failed) >= MAX_FAILED:
                del self._failed[next(iter(self._failed))]
            self._failed[claim.claim_id] = _span_ids(lambda: active.span)
            with suppress(Exception):
                exception = {"exception.type": error["type"], "exception.message": error["message"]}
                active.span.add_event("exception", exception)
        attributes = {"dutiful.outcome": name, "error.type": error["type"], "dutiful.error.class": error["class"]}
        _end(active, attributes, Status(StatusCode.ERROR, error["message"]))

    def span_of(self, claim: Claim) -> Mapping[str, str]:
        """The span ids of a failed attempt, for its log line; can be read once."""
        return self._failed.pop(claim.claim_id, {})

    def interrupted(self, active: ActiveSpan | None) -> None:
        _end(active, {"dutiful.outcome": "interrupted"})

    def flush(self) -> None:
        """Exports pending spans, because the process is about to exit abruptly."""
        with suppress(Exception):
            force = getattr(trace.get_tracer_provider(), "force_flush", None)
            if force is not None:
                force(int(FLUSH_TIMEOUT.total_seconds() * 1000))

    def _activate(self, start: Callable[[], Span]) -> ActiveSpan | None:
        try:
            span = start()
            return ActiveSpan(span, otel.attach(trace.set_span_in_context(span)))
        except Exception:
            log.exception("a span could not be made; jobs run without it")
            return None

    def _start_producing(self, jobs: Sequence[NewJob], context: Context | None) -> Span:
        kinds, queues = {job.kind for job in jobs}, {job.queue for job in jobs}
        first = jobs[0]
        attributes: dict[str, Any] = {
            "messaging.system": "dutiful",
            "messaging.operation.name": "enqueue",
            "messaging.operation.type": "send",
        }
        if len(queues) == 1:
            attributes["messaging.destination.name"] = first.queue
        if len(kinds) == 1:
            attributes["dutiful.job.kind"] = first.kind
        if len(jobs) == 1:
            conversation = first.correlation_id or str(first.id)
            attributes |= {_SINGLE: ids.public(first.id), "messaging.message.conversation_id": conversation}
            attributes |= {} if first.tenant is None else {"dutiful.tenant": first.tenant}
        else:
            attributes[_BATCH] = len(jobs)
        name = f"enqueue {first.kind}" if len(kinds) == 1 else "enqueue"
        # A job that replaces a dead letter carries the trace of the first job.
        origins = {origin.span_id: origin for origin in filter(None, map(_replaced, jobs[:MAX_LINKS]))}
        links = [Link(origin) for origin in origins.values()]
        return self._tracer.start_span(
            name, context=context, kind=SpanKind.PRODUCER, attributes=attributes, links=links
        )

    def _start_consuming(self, claim: Claim) -> Span:
        parent, links = _origin(claim)
        attributes: dict[str, Any] = {
            "messaging.system": "dutiful",
            "messaging.operation.name": "run",
            "messaging.operation.type": "process",
            "messaging.destination.name": claim.queue,
            _SINGLE: ids.public(claim.job_id),
            "messaging.message.conversation_id": claim.correlation,
            "dutiful.job.kind": claim.kind,
            "dutiful.job.attempt": claim.attempt,
            "dutiful.job.max_attempts": claim.max_attempts,
        }
        attributes |= {} if claim.tenant is None else {"dutiful.tenant": claim.tenant}
        if (worker := WORKER.get()) is not None:
            attributes["messaging.client.id"] = worker
        return self._tracer.start_span(
            f"run {claim.kind}", context=parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )


@contextmanager
def continue_trace(carrier: Mapping[str, str]) -> Iterator[None]:
    """Continues, in this process, the trace of another one."""
    set_span_reader(_current_span)
    token = otel.attach(_W3C.extract(carrier, context=_NO_PARENT))
    try:
        yield
    finally:
        otel.detach(token)


def _current_span() -> Mapping[str, str]:
    """The ids of the current span, as log lines write them."""
    return _span_ids(trace.get_current_span)


def _span_ids(find: Callable[[], Span]) -> Mapping[str, str]:
    try:
        one = find().get_span_context()
        known = {"trace_id": trace.format_trace_id(one.trace_id), "span_id": trace.format_span_id(one.span_id)}
        return known if one.is_valid else {}
    except Exception:  # a log line is worth more than its span
        return {}


def _with_trace(jobs: Sequence[NewJob], carrier: Mapping[str, str]) -> list[NewJob]:
    """Adds the trace to the options of each job; encodes once for all jobs with the same options."""
    mark = {OPTION: {**carrier, "at": round(time.time(), 3)}}
    made: dict[str | None, str] = {}
    for options in {job.options for job in jobs}:
        made[options] = msgspec.json.encode((msgspec.json.decode(options) if options else {}) | mark).decode()
    return [msgspec.structs.replace(job, options=made[job.options]) for job in jobs]


def _origin(claim: Claim) -> tuple[Context, list[Link]]:
    """Returns the parent context of an attempt, and its links.

    An attempt long after its enqueue, such as a late retry, starts a trace of its own with a link, because readers
    would not look for it in an old trace.
    """
    carrier = _carrier(claim.options)
    if carrier is None:
        return _NO_PARENT, []
    asked = carrier.get("at")
    if isinstance(asked, (int, float)) and time.time() - asked < SAME_TRACE.total_seconds():
        return _W3C.extract(carrier, context=_NO_PARENT), []
    origin = _span_of(carrier)
    return _NO_PARENT, [] if origin is None else [Link(origin)]


def _replaced(job: NewJob) -> SpanContext | None:
    carrier = None if job.retry_of is None else _carrier(job.options)
    return None if carrier is None else _span_of(carrier)


def _span_of(carrier: Mapping[str, Any]) -> SpanContext | None:
    origin = trace.get_current_span(_W3C.extract(carrier, context=_NO_PARENT)).get_span_context()
    return origin if origin.is_valid else None


def _carrier(options: str | None) -> dict[str, Any] | None:
    """Reads the option, which a user may have written in SQL."""
    if options is None or f'"{OPTION}"' not in options:
        return None
    try:
        found = msgspec.json.decode(options)[OPTION]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("traceparent"), str):
        return None
    return {name: value for name, value in found.items() if name == "at" or isinstance(value, str)}


def _end(active: ActiveSpan | None, attributes: Mapping[str, Any], status: Status | None = None) -> None:
    if active is None:
        return
    try:
        otel.detach(active.token)
        active.span.set_attributes(dict(attributes))
        if status is not None:
            active.span.set_status(status)
        active.span.end()
    except Exception:
        log.exception("a span could not be ended; jobs run without it")
