"""Lengths of time as people write them: `"1h30m"`, a number of seconds, or a timedelta."""

import re
from datetime import timedelta
from typing import TypeAlias

from dutiful.core.errors import UsageError

Duration: TypeAlias = timedelta | float | str

# Far beyond any use, and near enough that now + LONGEST is still a date.
LONGEST = timedelta(days=36_525)

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_TEXT = re.compile(" ?".join(f"(?:{_NUMBER}{unit})?" for unit in ("d", "h", "m", "s", "ms")))


def duration(value: Duration, name: str = "duration") -> timedelta:
    """Reads a length of time from zero to a century; errors call it `name`."""
    try:
        length = _read(value)
    except (OverflowError, ValueError):  # too large for a timedelta, or not a number at all
        length = None
    if length is None or not timedelta(0) <= length <= LONGEST:
        shown = f"{name} {_shown(value)}" if name else _shown(value)
        raise UsageError(f"{shown} is not a length of time from 0 to {LONGEST.days} days. {_remedy(value)}")
    return length


def brief(length: timedelta) -> str:
    """A length of time for people, in its two largest units: "350ms", "2.5s", "1h30m", "7d"."""
    seconds = abs(length.total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = round(seconds)
    for size, unit, smaller, part in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}{rest}{part}" if rest else f"{whole // size}{unit}"
    return f"{whole}s"


def _read(value: object) -> timedelta | None:
    match value:
        case timedelta():
            return value
        case int() | float() if not isinstance(value, bool):
            return timedelta(seconds=value)
        case str():
            return _read_text(value.strip())
    return None


def _read_text(text: str) -> timedelta | None:
    match = _TEXT.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes, seconds, milliseconds = (float(number or 0) for number in match.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)


def _remedy(value: object) -> str:
    text = 'Write it as "500ms", "30s", "2m", "1h30m" or "7d"'
    # Text may come from a command line or over HTTP, where nothing else can be given.
    return f"{text}." if isinstance(value, str) else f"{text}, as a number of seconds, or as a timedelta."


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
