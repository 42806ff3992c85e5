"""Where a page of a list ended, as a word that is opaque to whoever carries it to the next page."""

import base64
import binascii
import hashlib
from datetime import UTC, datetime, timedelta
from uuid import UUID

from dutiful.reviewing import Place

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Finds slips and meddling. It need not withstand a forger: a cursor is a place in a list, and no key to anything.
_CHECK = 6
_LENGTH = 16


class BadCursor(ValueError):
    """The text is no cursor of this list."""


def of_id(list_name: str, last: UUID) -> str:
    return _written(list_name, last.bytes)


def read_id(list_name: str, text: str) -> UUID:
    return UUID(bytes=_read(list_name, text, _LENGTH))


def of_place(list_name: str, place: Place) -> str:
    moment = (place.died_at - _EPOCH) // _MICROSECOND
    return _written(list_name, moment.to_bytes(8, "big", signed=True) + place.id.bytes)


def read_place(list_name: str, text: str) -> Place:
    content = _read(list_name, text, 8 + _LENGTH)
    moment = int.from_bytes(content[:8], "big", signed=True)
    try:
        return Place(_EPOCH + moment * _MICROSECOND, UUID(bytes=content[8:]))
    except OverflowError:
        raise _bad(list_name) from None


def _written(list_name: str, content: bytes) -> str:
    check = hashlib.blake2b(content, digest_size=_CHECK, person=list_name.encode()[:16]).digest()
    return base64.urlsafe_b64encode(check + content).decode().rstrip("=")


def _read(list_name: str, text: str, length: int) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise _bad(list_name) from None
    content = data[_CHECK:]
    if len(content) != length or _written(list_name, content) != text:
        raise _bad(list_name)
    return content


def _bad(list_name: str) -> BadCursor:
    return BadCursor(f"this is no cursor of the {list_name}: give next_cursor of the page before, unchanged")
