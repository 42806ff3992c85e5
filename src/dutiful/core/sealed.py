"""Sealed values: the shape in which an encrypted value is stored, and how it is shown without its content.

A sealed payload or result is {"$sealed": envelope}. An error, and the items of a progress, keep beside it what the
database and lists need: type, class and fingerprint, counts.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from dutiful.core.job import AttemptRecord, JobRecord, PhaseRecord, Progress
from dutiful.core.steps import StepRecord

SEALED = "$sealed"
START = '{"$sealed"'  # of a sealed payload, as both stores return it
ORIGIN = "sealed_for"  # in the options of a copy: the job, or the schedule, for which its payload was sealed
MESSAGE = "(sealed)"  # instead of a text
Record = TypeVar("Record", JobRecord, AttemptRecord, PhaseRecord, StepRecord, Progress)


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """For whom a value is sealed; each part is authenticated, so that it opens nowhere else."""

    job: str  # its id; of a payload that of the job, or the schedule, of which this one is a copy
    tenant: str | None
    kind: str
    part: str  # payload, result, error, progress, "phase NAME", "step NAME"


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value as it is stored."""

    v: Literal[1]
    key: str  # the id of the key, never the key
    of: Owner
    text: str  # Base64 of the nonce and the ciphertext


def envelope_of(value: Any) -> Envelope | None:
    """The envelope of a stored value; None if it is not sealed."""
    if not isinstance(value, dict) or not isinstance(found := value.get(SEALED), dict):
        return None
    try:
        return msgspec.convert(found, Envelope)
    except msgspec.ValidationError:
        return None


def is_sealed(value: Any) -> bool:
    return isinstance(value, dict) and SEALED in value and envelope_of(value) is not None


def origin(options: Mapping[str, Any] | None, job_id: object) -> str:
    """The job for which the payload of this one was sealed: itself, unless its options name another."""
    named = (options or {}).get(ORIGIN)
    return named if isinstance(named, str) else str(job_id)


def origin_in(options: str | None, job_id: object) -> str:
    """The same, of options as text."""
    return str(job_id) if options is None or ORIGIN not in options else origin(msgspec.json.decode(options), job_id)


def map_sealed(value: Any, change: Callable[[Envelope], Any]) -> Any:
    """The value with each envelope in it, however deep, replaced; also in texts, as messages of a progress are."""
    match value:
        case dict():
            found = envelope_of(value) if SEALED in value else None
            return {
                name: change(found) if name == SEALED and found is not None else map_sealed(one, change)
                for name, one in value.items()
            }
        case list():
            return [map_sealed(one, change) for one in value]
        case str() if value.startswith(START):
            try:
                inner = msgspec.json.decode(value)
            except msgspec.DecodeError:
                return value
            return msgspec.json.encode(map_sealed(inner, change)).decode()
    return value


def key_ids(value: Any) -> list[str]:
    """The ids of the keys of all envelopes in a value."""
    found: list[str] = []
    map_sealed(value, lambda envelope: found.append(envelope.key))
    return found


# --- what readers without keys see


def shown(value: Any) -> Any:
    """A payload, a result or an error without ciphertext: {"$sealed": {"key": id}}; itself if it is not sealed."""
    # Nothing else is looked through, because few are sealed and some are large.
    return shown_within(value) if isinstance(value, dict) and SEALED in value else value


def shown_within(value: Any) -> Any:
    """The same for a value that has sealed ones in it."""
    return map_sealed(value, lambda envelope: {"key": envelope.key})


# Fields that may be sealed; the others of a record are never looked at.
_FIELDS: dict[type[Any], tuple[str, ...]] = {
    JobRecord: ("payload", "result", "errors", "last_error", "progress"),
    AttemptRecord: ("error",),
    PhaseRecord: ("result", "error", "progress"),
    StepRecord: ("result",),
    Progress: ("message", "items"),
}


def shown_record(record: Record) -> Record:
    """The record without ciphertext; itself if nothing in it is sealed."""
    changes: dict[str, Any] = {}
    for name in _FIELDS[type(record)]:
        value = new = getattr(record, name)
        match value:
            case Progress():
                new = shown_record(value)
            case dict():
                new = shown(value)
            case list() if any(isinstance(one, dict) and SEALED in one for one in value):
                new = [shown(one) for one in value]
            case str() if value.startswith(START):
                new = MESSAGE
        if new is not value:
            changes[name] = new
    return msgspec.structs.replace(record, **changes) if changes else record
