"""How values are spelt in SQLite: ids as 16 bytes, times as microseconds since 1970, JSON as text."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast, overload
from uuid import UUID, SafeUUID

import msgspec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

_new = UUID.__new__
_set = object.__setattr__
_UNKNOWN = SafeUUID.unknown


def uuid(raw: bytes) -> UUID:
    """The id of 16 bytes; without the checks of the constructor, which cost more than reading the row."""
    made = _new(UUID)
    _set(made, "int", int.from_bytes(raw, "big"))
    _set(made, "is_safe", _UNKNOWN)
    return made


@overload
def maybe_uuid(raw: bytes) -> UUID: ...
@overload
def maybe_uuid(raw: bytes | None) -> UUID | None: ...
def maybe_uuid(raw: bytes | None) -> UUID | None:
    return None if raw is None else uuid(raw)


def maybe_bytes(value: UUID | None) -> bytes | None:
    return None if value is None else value.bytes


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


def maybe_micros(moment: datetime | None) -> int | None:
    return None if moment is None else micros(moment)


def span(length: timedelta) -> int:
    return length // MICROSECOND


def moment(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def maybe_moment(micros: int | None) -> datetime | None:
    return None if micros is None else moment(micros)


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def from_json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def errors_json(errors: Iterable[dict[str, Any]]) -> str | None:
    listed = list(errors)
    return to_json(listed) if listed else None


def row_of(found: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """A row that must be there."""
    return cast(tuple[Any, ...], found)
