"""OpenTelemetry spans: one for each enqueue, one for each attempt, joined across processes by W3C trace context.

Imported only where the setting `tracing` is on. Whatever the user's SDK does, jobs are stored and run all the same.
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
from dutiful.core.transitions import State
from dutiful.observe.logs import WORKER, follow
from dutiful.production import Production

log = logging.getLogger("dutiful.tracing")
NEAR = timedelta(minutes=15)  # an attempt that begins within this of its enqueue belongs to the same trace
FLUSH = timedelta(seconds=5)
KEY = "trace"  # in a job's options
MOST_FAILED = 10_000  # attempts whose outcomes wait to be stored
MOST_LINKS = 100  # of one enqueue; an SDK keeps few more
_W3C = TraceContextTextMapPropagator()  # and no baggage: who knows what is in it
_NOWHERE = Context()
_SINGLE, _BATCH = "messaging.message.id", "messaging.batch.message_count"


class Begun(NamedTuple):
    """A span that is current from here on, until it is ended."""

    span: Span
    token: Any


class Traced(Production):
    def __init__(self, jobs: Sequence[NewJob], begun: Begun | None) -> None:
        super().__init__(jobs)
        self._begun = begun

    def stored(self, inserted: Sequence[Inserted]) -> None:
        if self._begun is not None and len(inserted) == 1:
            (one,) = inserted
            self._begun.span.set_attribute(_SINGLE, ids.public(one.job_id))
            if one.insertion is not Insertion.MADE:
                self._begun.span.set_attribute("dutiful.insertion", one.insertion.value)


class Tracer:
    def __init__(self) -> None:
        # Until the process sets up an SDK, and without one, its spans cost next to nothing.
        self._tracer = trace.get_tracer("dutiful", version("dutiful"))
        self._failed: dict[int, Mapping[str, str]] = {}  # by claim: the span of an attempt of which a line will tell
        follow(_current)

    @contextmanager
    def producing(self, jobs: Sequence[NewJob], *, apart: bool = False) -> Iterator[Production]:
        """One span for one enqueue, be it of many jobs; each of them remembers it."""
        begun = self._begin(lambda: self._start_producing(jobs, _NOWHERE if apart else None)) if jobs else None
        production = Traced(jobs, begun)
        if begun is not None and (carrier := self.carrier()):
            production.jobs = _marked(jobs, carrier)
        try:
            yield production
        except BaseException as error:
            # By its type only: a message may quote the unique key, and that may be of the payload.
            _end(begun, {"error.type": type(error).__qualname__}, Status(StatusCode.ERROR))
            raise
        if production.void:
            _forget(begun)
        else:
            _end(begun, {})

    def carrier(self) -> dict[str, str] | None:
        """The current span, as another process can take it up; None if there is none to speak of."""
        carrier: dict[str, str] = {}
        with suppress(Exception):
            _W3C.inject(carrier)
        return carrier or None

    def begin(self, claim: Claim) -> Begun | None:
        """An attempt begins: its span is current until it is ended."""
        return self._begin(lambda: self._start_consuming(claim))

    def end(self, begun: Begun | None, claim: Claim, outcome: Outcome | State) -> None:
        """A state: the handler has brought the job there in a transaction."""
        if isinstance(outcome, State):
            word = "done" if outcome is State.COMPLETED else "partial"
        else:
            word = "timed_out" if isinstance(outcome, TimedOut) else type(outcome).__name__.lower()
        if not isinstance(outcome, (Failed, TimedOut)):
            _end(begun, {"dutiful.outcome": word})
            return
        error = {name: str(outcome.error.get(name)) for name in ("type", "message", "class")}
        if begun is not None:
            while len(self._failed) >= MOST_FAILED:
                del self._failed[next(iter(self._failed))]
            self._failed[claim.claim_id] = _named(lambda: begun.span)
            with suppress(Exception):
                told = {"exception.type": error["type"], "exception.message": error["message"]}
                begun.span.add_event("exception", told)
        facts = {"dutiful.outcome": word, "error.type": error["type"], "dutiful.error.class": error["class"]}
        _end(begun, facts, Status(StatusCode.ERROR, error["message"]))

    def span_of(self, claim: Claim) -> Mapping[str, str]:
        """Of an attempt that has failed, as log lines write it; asked for once."""
        return self._failed.pop(claim.claim_id, {})

    def interrupted(self, begun: Begun | None) -> None:
        _end(begun, {"dutiful.outcome": "interrupted"})

    def flush(self) -> None:
        """Send what the process has not sent yet, for it is about to end without further ado."""
        with suppress(Exception):
            force = getattr(trace.get_tracer_provider(), "force_flush", None)
            if force is not None:
                force(int(FLUSH.total_seconds() * 1000))

    def _begin(self, start: Callable[[], Span]) -> Begun | None:
        try:
            span = start()
            return Begun(span, otel.attach(trace.set_span_in_context(span)))
        except Exception:
            log.exception("a span could not be made; jobs go on without")
            return None

    def _start_producing(self, jobs: Sequence[NewJob], context: Context | None) -> Span:
        kinds, queues = {job.kind for job in jobs}, {job.queue for job in jobs}
        first = jobs[0]
        facts: dict[str, Any] = {
            "messaging.system": "dutiful",
            "messaging.operation.name": "enqueue",
            "messaging.operation.type": "send",
        }
        if len(queues) == 1:
            facts["messaging.destination.name"] = first.queue
        if len(kinds) == 1:
            facts["dutiful.job.kind"] = first.kind
        if len(jobs) == 1:
            facts |= {_SINGLE: ids.public(first.id), "messaging.message.conversation_id": _correlation(first)}
            facts |= {} if first.tenant is None else {"dutiful.tenant": first.tenant}
        else:
            facts[_BATCH] = len(jobs)
        name = f"enqueue {first.kind}" if len(kinds) == 1 else "enqueue"
        # A job that is run again brings the trace of the one that it repeats.
        origins = {origin.span_id: origin for origin in filter(None, map(_repeated, jobs[:MOST_LINKS]))}
        links = [Link(origin) for origin in origins.values()]
        return self._tracer.start_span(name, context=context, kind=SpanKind.PRODUCER, attributes=facts, links=links)

    def _start_consuming(self, claim: Claim) -> Span:
        parent, links = _origin(claim)
        facts: dict[str, Any] = {
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
        facts |= {} if claim.tenant is None else {"dutiful.tenant": claim.tenant}
        if (worker := WORKER.get()) is not None:
            facts["messaging.client.id"] = worker
        return self._tracer.start_span(
            f"run {claim.kind}", context=parent, kind=SpanKind.CONSUMER, attributes=facts, links=links
        )


@contextmanager
def carried(carrier: Mapping[str, str]) -> Iterator[None]:
    """Go on, in this process, with the trace of another one."""
    follow(_current)
    token = otel.attach(_W3C.extract(carrier, context=_NOWHERE))
    try:
        yield
    finally:
        otel.detach(token)


def _current() -> Mapping[str, str]:
    """The span that log lines belong to, as they write it."""
    return _named(trace.get_current_span)


def _named(find: Callable[[], Span]) -> Mapping[str, str]:
    try:
        one = find().get_span_context()
        known = {"trace_id": trace.format_trace_id(one.trace_id), "span_id": trace.format_span_id(one.span_id)}
        return known if one.is_valid else {}
    except Exception:  # a line is worth more than its span
        return {}


def _marked(jobs: Sequence[NewJob], carrier: Mapping[str, str]) -> list[NewJob]:
    """With the trace among their options; most of a batch have the same ones."""
    mark = {KEY: {**carrier, "at": round(time.time(), 3)}}
    made: dict[str | None, str] = {}
    for options in {job.options for job in jobs}:
        made[options] = msgspec.json.encode((msgspec.json.decode(options) if options else {}) | mark).decode()
    return [msgspec.structs.replace(job, options=made[job.options]) for job in jobs]


def _origin(claim: Claim) -> tuple[Context, list[Link]]:
    """The context that an attempt is a part of, and what it is linked to.

    One long after its enqueue, be it a late retry or a job for tomorrow, is a trace of its own: nobody would find it
    in one that has been looked at and filed long ago.
    """
    carrier = _carrier(claim.options)
    if carrier is None:
        return _NOWHERE, []
    asked = carrier.get("at")
    if isinstance(asked, (int, float)) and time.time() - asked < NEAR.total_seconds():
        return _W3C.extract(carrier, context=_NOWHERE), []
    origin = _span_of(carrier)
    return _NOWHERE, [] if origin is None else [Link(origin)]


def _repeated(job: NewJob) -> SpanContext | None:
    carrier = None if job.retry_of is None else _carrier(job.options)
    return None if carrier is None else _span_of(carrier)


def _span_of(carrier: Mapping[str, Any]) -> SpanContext | None:
    origin = trace.get_current_span(_W3C.extract(carrier, context=_NOWHERE)).get_span_context()
    return origin if origin.is_valid else None


def _carrier(options: str | None) -> dict[str, Any] | None:
    """What was stored; it may have been written by hand, in SQL."""
    if options is None or f'"{KEY}"' not in options:
        return None
    try:
        found = msgspec.json.decode(options)[KEY]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("traceparent"), str):
        return None
    return {name: value for name, value in found.items() if name == "at" or isinstance(value, str)}


def _correlation(job: NewJob) -> str:
    return job.correlation_id or str(job.id)


def _forget(begun: Begun | None) -> None:
    """A span that never ends is never sent."""
    if begun is not None:
        with suppress(Exception):
            otel.detach(begun.token)


def _end(begun: Begun | None, facts: Mapping[str, Any], status: Status | None = None) -> None:
    if begun is None:
        return
    try:
        otel.detach(begun.token)
        begun.span.set_attributes(dict(facts))
        if status is not None:
            begun.span.set_status(status)
        begun.span.end()
    except Exception:
        log.exception("a span could not be ended; jobs go on without")
