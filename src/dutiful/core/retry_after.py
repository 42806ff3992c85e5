"""What a Retry-After header asks for: a length of time, or a moment."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TypeAlias

# Who asks for more is asked again after a day: a slip of their clock must not put a job to sleep for good.
LONGEST_WAIT = timedelta(days=1)
NOTHING = timedelta(0)

RetryTime: TypeAlias = timedelta | datetime

_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def read_retry_after(text: str | None) -> RetryTime | None:
    """Seconds, as far as we go along with them, or a date; None if it says neither, or no seconds at all."""
    text = (text or "").strip()
    if _SECONDS.fullmatch(text):
        return timedelta(seconds=min(float(text), LONGEST_WAIT.total_seconds())) or None
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError, TypeError, IndexError):  # as the parser of mail fails on what is no date
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def wait_from(now: datetime, asked: RetryTime | None) -> timedelta | None:
    """How long that is from now; None if it is over. How far off a date is shows only here, so it is bounded here."""
    if not isinstance(asked, datetime):
        return asked
    if asked.tzinfo is None:
        asked = asked.replace(tzinfo=UTC)
    wait = min(asked - now, LONGEST_WAIT)
    return wait if wait > NOTHING else None
