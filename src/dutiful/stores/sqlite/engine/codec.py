"""How values are stored in SQLite: ids as 16 bytes, times as microseconds since 1970, JSON as text."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, SafeUUID

import msgspec

from dutiful.core.errors import DataRefused

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

_new = UUID.__new__
_set = object.__setattr__
_UNKNOWN = SafeUUID.unknown
_skimmer = msgspec.json.Decoder(msgspec.Raw)


def uuid(raw: bytes) -> UUID:
    """The UUID of 16 bytes, without the constructor's checks, which cost more than reading the row."""
    made = _new(UUID)
    _set(made, "int", int.from_bytes(raw, "big"))
    _set(made, "is_safe", _UNKNOWN)
    return made


def maybe_uuid(raw: bytes | None) -> UUID | None:
    return None if raw is None else uuid(raw)


def maybe_bytes(value: UUID | None) -> bytes | None:
    return None if value is None else value.bytes


def clock(now: datetime | None) -> int:
    """The store's time, or `now` of a test. Verbs read it on the writer's thread, so times are in commit order."""
    return time.time_ns() // 1000 if now is None else micros(now)


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def maybe_micros(moment: datetime | None) -> int | None:
    return None if moment is None else micros(moment)


def span(length: timedelta) -> int:
    return length // MICROSECOND


def moment(micros: int) -> datetime:
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:  # written by another program, beyond the range of datetime
        return datetime.max.replace(tzinfo=UTC) if micros > 0 else datetime.min.replace(tzinfo=UTC)


def maybe_moment(micros: int | None) -> datetime | None:
    return None if micros is None else moment(micros)


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def checked(text: str) -> str:
    """Returns `text` if it is JSON; SQLite would store any text, and the job could not be read again."""
    try:
        _skimmer.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise DataRefused(f"this is not JSON that can be stored ({error}): {text[:60]!r}") from error
    return text


def maybe_checked(text: str | None) -> str | None:
    return None if text is None else checked(text)


def errors_json(errors: Iterable[dict[str, Any]]) -> str | None:
    listed = list(errors)
    return to_json(listed) if listed else None
