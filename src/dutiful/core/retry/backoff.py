"""How long to wait before the next attempt: backoffs as values, and what a Retry-After header asks for."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeAlias, runtime_checkable

from dutiful.core.duration import LONGEST, Duration, duration
from dutiful.core.errors import UsageError

Uniform: TypeAlias = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Jitter:
    """Multiplies a delay by a random factor from `low` to `high`, so that jobs that failed together spread out."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < math.inf:
            raise UsageError(
                f"jitter {self.low}–{self.high} is not a range: give 0 <= low <= high, as in Jitter(0.8, 1.2)."
            )


NO_JITTER = Jitter(1.0, 1.0)
UP_TO_TEN_PERCENT_MORE = Jitter(1.0, 1.1)
WITHIN_TWENTY_PERCENT = Jitter(0.8, 1.2)
FIVE_MINUTES = timedelta(minutes=5)


@runtime_checkable
class Backoff(Protocol):
    """How long to wait after attempt number `attempt`, the first being 1."""

    def after(self, attempt: int, uniform: Uniform) -> timedelta: ...


@dataclass(frozen=True, slots=True, init=False)
class Fixed:
    """The same delay each time."""

    delay: timedelta
    jitter: Jitter

    def __init__(self, delay: Duration, *, jitter: Jitter = NO_JITTER) -> None:
        _assign(self, delay=duration(delay, "delay"), jitter=jitter)

    def after(self, attempt: int, uniform: Uniform) -> timedelta:
        return _jittered(self.delay.total_seconds(), self.jitter, LONGEST, uniform)


@dataclass(frozen=True, slots=True, init=False)
class Linear:
    """`base`, then `step` more each time (by default `base` again), never above `cap`."""

    base: timedelta
    step: timedelta
    cap: timedelta
    jitter: Jitter

    def __init__(
        self, base: Duration, step: Duration | None = None, *, cap: Duration = FIVE_MINUTES, jitter: Jitter = NO_JITTER
    ) -> None:
        first = duration(base, "base")
        each = first if step is None else duration(step, "step")
        _assign(self, base=first, step=each, cap=_cap(cap, first), jitter=jitter)

    def after(self, attempt: int, uniform: Uniform) -> timedelta:
        seconds = self.base.total_seconds() + self.step.total_seconds() * (attempt - 1)
        return _jittered(seconds, self.jitter, self.cap, uniform)


@dataclass(frozen=True, slots=True, init=False)
class Exponential:
    """`base`, then `factor` times as long each time, never above `cap`."""

    base: timedelta
    factor: float
    cap: timedelta
    jitter: Jitter

    def __init__(
        self,
        base: Duration = timedelta(seconds=1),
        factor: float = 2,
        *,
        cap: Duration = FIVE_MINUTES,
        jitter: Jitter = UP_TO_TEN_PERCENT_MORE,
    ) -> None:
        first = duration(base, "base")
        if not first:
            raise UsageError("base 0 never grows: give Exponential a base above 0, or use Fixed(0) to retry at once.")
        if not 1 <= factor < math.inf:
            raise UsageError(f"factor {factor} makes no growing delay: give 1 or more, as in Exponential(factor=2).")
        _assign(self, base=first, factor=float(factor), cap=_cap(cap, first), jitter=jitter)

    def after(self, attempt: int, uniform: Uniform) -> timedelta:
        try:
            seconds = self.base.total_seconds() * self.factor ** (attempt - 1)
        except OverflowError:
            seconds = math.inf
        return _jittered(seconds, self.jitter, self.cap, uniform)


@dataclass(frozen=True, slots=True)
class LongerOf:
    """The longer delay of two backoffs."""

    one: Backoff
    other: Backoff

    def after(self, attempt: int, uniform: Uniform) -> timedelta:
        return max(self.one.after(attempt, uniform), self.other.after(attempt, uniform))


def _assign(value: object, **fields: object) -> None:
    for name, content in fields.items():
        object.__setattr__(value, name, content)


def _cap(cap: Duration, base: timedelta) -> timedelta:
    length = duration(cap, "cap")
    if length < base:
        raise UsageError(f"cap {length} is below base {base}: raise cap, or use Fixed for a delay that does not grow.")
    return length


def _jittered(seconds: float, jitter: Jitter, cap: timedelta, uniform: Uniform) -> timedelta:
    # Bounded first, because infinity times 0 is no number; capped last, so that jitter never exceeds the cap.
    bounded = min(seconds, LONGEST.total_seconds())
    return timedelta(seconds=min(bounded * uniform(jitter.low, jitter.high), cap.total_seconds()))


# --- Retry-After

# A longer wait is cut to a day, because a wrong clock of the other side must not delay a job for ever.
LONGEST_WAIT = timedelta(days=1)
RetryTime: TypeAlias = timedelta | datetime

_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def read_retry_after(text: str | None) -> RetryTime | None:
    """Seconds (at most a day) or a date; None if the text is neither, or 0 seconds."""
    text = (text or "").strip()
    if _SECONDS.fullmatch(text):
        return timedelta(seconds=min(float(text), LONGEST_WAIT.total_seconds())) or None
    from email.utils import parsedate_to_datetime  # here, because few programs need it, and it takes memory

    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError, TypeError, IndexError):  # it is no date
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def wait_from(now: datetime, asked: RetryTime | None) -> timedelta | None:
    """The wait from `now`, at most a day; None if that moment has passed."""
    if not isinstance(asked, datetime):
        return asked
    if asked.tzinfo is None:
        asked = asked.replace(tzinfo=UTC)
    wait = min(asked - now, LONGEST_WAIT)
    return wait if wait > timedelta(0) else None
