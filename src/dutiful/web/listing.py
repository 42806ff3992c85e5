"""Shared by lists: opaque cursors, and filters by category."""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.app import Dutiful
from dutiful.operator.encryption import Position
from dutiful.store.dead_letters import LetterCursor
from dutiful.web.problems import field_problem

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Detects typing errors. It need not resist forgery, because a cursor gives access to nothing.
_CHECK = 6
_LENGTH = 16
_POSITION = tuple[str, tuple[Any, ...] | None]  # a key is text, a number or bytes, as its store has it


class BadCursor(ValueError):
    """The text is not a cursor of this list."""


def of_id(list_name: str, last: UUID) -> str:
    return _written(list_name, last.bytes)


def read_id(list_name: str, text: str) -> UUID:
    return UUID(bytes=_read(list_name, text, _LENGTH))


def of_letter_cursor(list_name: str, cursor: LetterCursor) -> str:
    moment = (cursor.died_at - _EPOCH) // _MICROSECOND
    return _written(list_name, moment.to_bytes(8, "big", signed=True) + cursor.id.bytes)


def read_letter_cursor(list_name: str, text: str) -> LetterCursor:
    content = _read(list_name, text, 8 + _LENGTH)
    moment = int.from_bytes(content[:8], "big", signed=True)
    try:
        return LetterCursor(_EPOCH + moment * _MICROSECOND, UUID(bytes=content[8:]))
    except OverflowError:
        raise _bad(list_name) from None


def of_position(list_name: str, position: Position) -> str:
    return _written(list_name, msgspec.msgpack.encode((position.place, position.after)))


def read_position(list_name: str, text: str) -> Position:
    try:
        return Position(*msgspec.msgpack.decode(_read(list_name, text), type=_POSITION))
    except msgspec.MsgspecError:
        raise _bad(list_name) from None


def _written(list_name: str, content: bytes) -> str:
    check = hashlib.blake2b(content, digest_size=_CHECK, person=list_name.encode()[:16]).digest()
    return base64.urlsafe_b64encode(check + content).decode().rstrip("=")


def _read(list_name: str, text: str, length: int | None = None) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise _bad(list_name) from None
    content = data[_CHECK:]
    if len(content) != (length or len(content)) or _written(list_name, content) != text:
        raise _bad(list_name)
    return content


def _bad(list_name: str) -> BadCursor:
    return BadCursor(f"this is not a cursor of the {list_name}: give next_cursor of the previous page, unchanged")


def category_of(app: Dutiful, kind: str) -> str | None:
    known = app.kinds.get(kind)
    return None if known is None else known.category


def kinds_of(app: Dutiful, category: str | None, kinds: Sequence[str]) -> list[str]:
    """The kinds that both filters allow; [] if there is no filter.

    Without a category, `kinds` may be unknown to this process.
    """
    if category is None:
        return list(kinds)
    members = sorted(name for name, known in app.kinds.items() if known.category == category)
    if not members:
        known = ", ".join(sorted({k.category for k in app.kinds.values() if k.category})) or "none"
        raise field_problem("category", f"no kind of this app has it; categories with kinds are: {known}")
    if others := [kind for kind in kinds if kind not in members]:
        problem = f"{others[0]!r} is not of that category, whose job types are: {', '.join(members)}"
        raise field_problem("job_type", problem)
    return list(kinds) or members
