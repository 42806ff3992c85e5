"""Seals what is stored of a job of an encrypted kind, and opens it again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from dutiful.core.errors import CannotOpen
from dutiful.core.job import AttemptRecord, JobRecord, NewJob, PhaseRecord, Progress
from dutiful.core.outcome import STOPPED, Cancelled, Done, Failed, Outcome, Partial, TimedOut
from dutiful.core.sealed import MESSAGE, SEALED, START, envelope_of, origin, origin_in
from dutiful.core.steps import SentEvent, StepKind, StepRecord
from dutiful.payload.key_ring import JobSeal, KeyRing

# What lists, filters and the stores read of an error; its fingerprint is replaced by one that says nothing.
_CLEAR = frozenset(("type", "class", "phase", "breaker", "given_up"))
Opened = TypeVar("Opened", JobRecord, AttemptRecord, PhaseRecord, StepRecord, Progress)


def seal_of(ring: KeyRing, job_id: UUID, tenant: str | None, kind: str, options: str | None) -> JobSeal:
    return JobSeal(ring, str(job_id), tenant, kind, origin_in(options, job_id))


def seal_job(ring: KeyRing, job: NewJob) -> NewJob:
    """The job with its payload sealed."""
    seal = seal_of(ring, job.id, job.tenant, job.kind, job.options)
    return msgspec.structs.replace(job, payload=seal.seal_text("payload", job.payload))


def open_payload(seal: JobSeal, payload: str) -> str:
    """A stored payload as JSON text; one that was stored before its kind was encrypted is not sealed."""
    if not payload.startswith(START):
        return payload
    envelope = envelope_of(msgspec.json.decode(payload))
    if envelope is None:
        raise CannotOpen("the payload cannot be opened: its envelope is malformed, or of a later release")
    return seal.open("payload", envelope)


def open_value(seal: JobSeal, part: str, value: Any) -> Any:
    """A stored value; itself if it is not sealed."""
    envelope = envelope_of(value)
    return value if envelope is None else msgspec.json.decode(seal.open(part, envelope))


# --- errors


def seal_error(seal: JobSeal, error: Mapping[str, Any]) -> dict[str, Any]:
    """Seals what an error says, because it may quote the payload."""
    clear = {name: value for name, value in error.items() if name in _CLEAR}
    if "fingerprint" in error:
        clear["fingerprint"] = seal.mark(str(error["fingerprint"]))
    secret = {name: value for name, value in error.items() if name not in _CLEAR}
    return {**clear, "message": MESSAGE, **seal.seal("error", msgspec.json.encode(secret).decode())}


def open_error(seal: JobSeal, error: dict[str, Any] | None) -> dict[str, Any] | None:
    if error is None or (envelope := envelope_of(error)) is None:
        return error
    secret = msgspec.json.decode(seal.open("error", envelope))
    return {**{name: value for name, value in error.items() if name != SEALED}, **secret}


def seal_outcome(seal: JobSeal, outcome: Outcome) -> Outcome:
    """The outcome of an attempt as it may be stored and logged."""
    match outcome:
        case Done(result):
            return Done(seal.seal_text("result", result))
        case Partial(result, errors):
            return Partial(seal.seal_text("result", result), tuple(seal_error(seal, error) for error in errors))
        case Failed(exception=exception) if exception is CannotOpen:
            return outcome
        case Failed(error, more=more):
            return replace(
                outcome, error=seal_error(seal, error), more=tuple(seal_error(seal, error) for error in more)
            )
        case TimedOut(error=error) if "traceback" in error:  # else it says no more than how long it was
            return replace(outcome, error=seal_error(seal, error))
        case Cancelled(reason) if reason != STOPPED:
            secret = msgspec.json.encode({"message": reason}).decode()
            return replace(outcome, reason=MESSAGE, sealed=seal.seal("error", secret))
    return outcome


def seal_step(seal: JobSeal, name: str, fingerprint: str, result: str | None) -> tuple[str, str | None]:
    """A step's fingerprint and result as they are stored; the first is a hash of arguments, so it is sealed as well."""
    return MESSAGE, seal.seal_text(f"step {name}", f'["{fingerprint}",{result or "null"}]')


# --- sent events, which belong to no kind and are sealed where all kinds are


def seal_event(ring: KeyRing, event: SentEvent) -> SentEvent:
    data = _seal_of_event(ring, event.name, event.key, event.tenant).seal_text("event", event.data)
    return msgspec.structs.replace(event, data=data)


def open_event(ring: KeyRing | None, event: str, key: str, tenant: str | None, data: Any) -> Any:
    if envelope_of(data) is None:
        return data
    if ring is None:
        raise CannotOpen("the event's data is sealed, and this worker has no key: set encryption_keys")
    return open_value(_seal_of_event(ring, event, key, tenant), "event", data)


def _seal_of_event(ring: KeyRing, event: str, key: str, tenant: str | None) -> JobSeal:
    return JobSeal(ring, f"event {key}", tenant, event)


# --- progress


def seal_message(seal: JobSeal, message: str | None) -> str | None:
    return None if message is None else seal.seal_text("progress", msgspec.json.encode(message).decode())


def seal_items(seal: JobSeal, items: dict[str, Any]) -> dict[str, Any]:
    """The counts, with names and reasons sealed."""
    clear = {
        "total": items["total"],
        **{name: [MESSAGE] * len(items[name]) for name in ("in_progress", "completed")},
        "skipped": [{"item": MESSAGE, "reason": MESSAGE}] * len(items["skipped"]),
        "failed": [{"item": MESSAGE, "error": MESSAGE}] * len(items["failed"]),
    }
    return {**clear, **seal.seal("progress", msgspec.json.encode(items).decode())}


def _open_progress(seal: JobSeal, progress: Progress) -> Progress:
    message, items = progress.message, progress.items
    if message is not None and message.startswith(START):
        message = open_value(seal, "progress", msgspec.json.decode(message))
    return msgspec.structs.replace(progress, message=message, items=open_value(seal, "progress", items))


# --- records


def open_job(ring: KeyRing, job: JobRecord) -> JobRecord:
    """A record with all that is sealed in it opened; CannotOpen if some of it cannot be."""
    seal = seal_of_record(ring, job)
    return msgspec.structs.replace(
        open_outcome(ring, job),
        payload=open_value(seal, "payload", job.payload),
        progress=None if job.progress is None else _open_progress(seal, job.progress),
    )


def open_outcome(ring: KeyRing, job: JobRecord) -> JobRecord:
    """A record with its result and errors opened."""
    seal = seal_of_record(ring, job)
    return msgspec.structs.replace(
        job,
        result=open_value(seal, "result", job.result),
        errors=None if job.errors is None else [open_error(seal, error) for error in job.errors],
        last_error=open_error(seal, job.last_error),
    )


def seal_of_record(ring: KeyRing, job: JobRecord) -> JobSeal:
    return JobSeal(ring, str(job.id), job.tenant, job.kind, origin(job.options, job.id))


def open_part(seal: JobSeal, record: Opened) -> Opened:
    """An attempt, a phase or a step of a job, opened."""
    match record:
        case AttemptRecord():
            return msgspec.structs.replace(record, error=open_error(seal, record.error))
        case PhaseRecord():
            return msgspec.structs.replace(
                record,
                result=open_value(seal, f"phase {record.name}", record.result),
                error=open_error(seal, record.error),
                progress=None if record.progress is None else _open_progress(seal, record.progress),
            )
        case StepRecord(kind=StepKind.CALL) if envelope_of(record.result) is not None:
            mark, result = open_value(seal, f"step {record.name}", record.result)
            return msgspec.structs.replace(record, fingerprint=mark, result=result)
    return record
