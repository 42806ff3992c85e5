"""Job ids: UUIDv7 in the database, and one exact spelling for people and URLs.

The public form is Crockford's Base32 with two check digits in four groups, `01JCPZ5-…`. Each id has only one spelling,
so that ids can be compared, logged and searched as text.
"""

import hashlib
import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

import base32_lib

from dutiful.core.errors import MalformedId, UsageError

_LENGTH = 28  # 26 characters carry 130 bits, 2 more the checksum
_GROUP = 7
_ALPHABET = frozenset("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
_LOOKALIKES = str.maketrans("ILOilo", "110110")
_HEX = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_VERSION_7 = 0x7 << 76
_VARIANT = 0b10 << 62
_FIXED_BITS = 0xF << 76 | 0b11 << 62


def public(uuid: UUID) -> str:
    """The public spelling of an id, 31 characters long."""
    spelling: str = base32_lib.encode(uuid.int, split_every=_GROUP, min_length=_LENGTH, checksum=True)
    return spelling.upper()


def parse(text: str) -> UUID:
    """Reads exactly the public spelling; the error for a variant names the right one."""
    uuid = _decode(text)
    if text != (spelling := public(uuid)):
        raise MalformedId(f"{_shown(text)} is not the exact spelling of this id: write it as {spelling}.")
    return uuid


def parse_any(text: str) -> UUID:
    """Reads the public spelling or the plain UUID that SQL shows."""
    if _HEX.fullmatch(text):
        return UUID(text)
    try:
        return parse(text)
    except MalformedId as error:
        raise MalformedId(f"{error} A plain UUID, as SQL shows it, is accepted too.") from None


def from_parts(ms: int, random: bytes) -> UUID:
    """Makes a v7 id from a Unix time in milliseconds and ten random bytes."""
    if not 0 <= ms < 1 << 48:
        raise UsageError(f"ms {ms} does not fit a v7 id: pass Unix milliseconds, from 1970 on.")
    if len(random) != 10:
        raise UsageError(f"random has {len(random)} bytes: pass exactly 10.")
    bits = ms << 80 | int.from_bytes(random, "big")
    return UUID(int=bits & ~_FIXED_BITS | _VERSION_7 | _VARIANT)


def derived(parent: UUID, name: str) -> UUID:
    """An id of the same millisecond, and the same each time for this name."""
    return from_parts(parent.int >> 80, hashlib.sha256(parent.bytes + name.encode()).digest()[:10])


def time_of(uuid: UUID) -> datetime:
    """When a v7 id was made, to the millisecond, by its maker's clock."""
    if uuid.version != 7:
        raise MalformedId(f"{uuid} carries no time: only v7 ids do. Make ids with Dutiful's client.")
    try:
        return _EPOCH + (uuid.int >> 80) * _MILLISECOND
    except OverflowError:
        raise MalformedId(f"{uuid} carries a time after the year 9999: check its maker's clock.") from None


def floor_at(moment: datetime) -> UUID:
    """The smallest v7 id of that millisecond: `id >= floor_at(since)` finds what was made since."""
    return from_parts((moment - _EPOCH) // _MILLISECOND, bytes(10))


def first_from(moment: datetime) -> UUID:
    """The smallest v7 id whose time is not before `moment`, which may lie before 1970 or within a millisecond."""
    return from_parts(max(0, -((_EPOCH - moment) // _MILLISECOND)), bytes(10))


def _decode(text: str) -> UUID:
    # base32-lib tolerates signs and foreign digits in a checksum, and any length, so these are checked first.
    plain = text.replace("-", "")
    if len(plain) != _LENGTH:
        raise _malformed(
            text, f"has {len(plain)} character{'s' * (len(plain) != 1)} instead of {_LENGTH}, hyphens not counted"
        )
    plain = plain.translate(_LOOKALIKES)
    if strange := [c for c in plain if not c.isascii() or c.upper() not in _ALPHABET]:
        raise _malformed(text, f"contains the character {strange[0]!r}, which no id has")
    try:
        number: int = base32_lib.decode(plain, checksum=True)
    except ValueError:
        raise _malformed(text, "has a wrong checksum, so at least one character is mistyped") from None
    if number >= 1 << 128:
        raise _malformed(text, "is too large: ids begin with a digit from 0 to 7")
    return UUID(int=number)


def _malformed(text: str, problem: str) -> MalformedId:
    return MalformedId(f"{_shown(text)} is not a job's id: it {problem}. Copy the whole id as Dutiful printed it.")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
