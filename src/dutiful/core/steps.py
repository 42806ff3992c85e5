"""The steps of a job: calls whose results are stored, durable sleeps, and waits for events."""

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.errors import StepMismatch
from dutiful.core.json import check_name, encode

STEP_LIMIT = 10_000  # of one job: each attempt reads all of them
EVENT_LIMIT = 1024 * 1024  # bytes of JSON, whatever a payload may have: each job that waits gets a copy


class StepKind(StrEnum):
    CALL = "call"
    SLEEP = "sleep"
    EVENT = "event"


class StepState(StrEnum):
    DONE = "done"
    WAITING = "waiting"  # for its time, or for its event
    TIMED_OUT = "timed_out"  # no event came in time


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored step of a job."""

    name: str
    position: int  # the first is 0
    kind: StepKind
    state: StepState
    code: str  # the function that was called, or what the step waits for
    fingerprint: str  # of the code and its arguments
    started_at: datetime
    ended_at: datetime | None = None
    due_at: datetime | None = None  # the end of a sleep, or of the wait for an event; None: it waits for good
    event: str | None = None
    key: str | None = None
    result: Any = None


class SentEvent(msgspec.Struct, frozen=True):
    """An event that jobs may wait for. `data` holds JSON text."""

    id: UUID
    name: str
    key: str
    data: str | None = None
    tenant: str | None = None
    by: str | None = None


class Waiting(BaseException):
    """Ends an attempt whose job waits in steps; no Exception, so that no handler takes it for an error."""

    def __init__(self, steps: Sequence[StepRecord], now: datetime) -> None:
        super().__init__(f"the job waits in its step {', '.join(step.name for step in steps)}")
        self.steps = steps
        self.now = now


def name_of(function: Callable[..., Any]) -> str:
    """The name of a step's function, as people read it in an error."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name)[:200]


def fingerprint(code: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> str:
    """Identifies code with its arguments, so that a result is not taken for that of another call.

    An argument that cannot be written as JSON, such as a connection, counts by its type.
    """
    try:
        given = _encoder.encode([args, kwargs or {}])
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        given = _encoder.encode([[type(arg).__qualname__ for arg in args], sorted(kwargs or {})])
    return hashlib.sha256(b"\0".join([code.encode("utf-8", "replace"), given])).hexdigest()[:32]


_encoder = msgspec.json.Encoder(enc_hook=lambda value: f"<{type(value).__qualname__}>", order="deterministic")


def check_step(name: str) -> str:
    return str.__str__(check_name(name, "step"))


def check_event(name: str, key: str) -> tuple[str, str]:
    """The name and the key of an event; both are texts."""
    return str.__str__(check_name(name, "event")), str.__str__(check_name(key, "key"))


def event_gate(event: str, key: str) -> str:
    """The gate at which jobs wait for an event; as Postgres writes it."""
    return f"{event}:{key}"


def check_same(known: StepRecord, kind: StepKind, code: str, mark: str) -> StepRecord:
    """Raises StepMismatch if a step was stored by other code."""
    if known.kind is kind and known.fingerprint == mark:
        return known
    what = f"{known.code} with other arguments" if known.code == code else f"{known.code}"
    raise StepMismatch(
        f"step {known.name!r} was stored as {what}, and is now {code}: a step that does something else needs another "
        "name; deploy the code that stored it, or rename the new step"
    )


def make_event(
    event_id: UUID, name: str, key: str, data: Any, limit: int, *, tenant: str | None = None, by: str | None = None
) -> SentEvent:
    """A checked and encoded event."""
    name, key = check_event(name, key)
    text = None if data is None else encode(data, what="data of an event", limit=min(limit, EVENT_LIMIT))
    return SentEvent(event_id, name, key, text, tenant, by)
