"""How long to wait before the next attempt: backoffs as values."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeAlias, runtime_checkable

from dutiful.core.duration import LONGEST, Duration, duration
from dutiful.core.errors import UsageError

Uniform: TypeAlias = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Jitter:
    """A delay is multiplied by a random factor from `low` to `high`, so that jobs that failed together part."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < math.inf:
            raise UsageError(
                f"jitter {self.low}–{self.high} is not a range: give 0 <= low <= high, as in Jitter(0.8, 1.2)."
            )


STEADY = Jitter(1.0, 1.0)
UP_TO_A_TENTH_MORE = Jitter(1.0, 1.1)
WITHIN_A_FIFTH = Jitter(0.8, 1.2)
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

    def __init__(self, delay: Duration, *, jitter: Jitter = STEADY) -> None:
        _assign(self, delay=duration(delay, "delay"), jitter=jitter)

    def after(self, attempt: int, uniform: Uniform) -> timedelta:
        return _jittered(self.delay.total_seconds(), self.jitter, LONGEST, uniform)


@dataclass(frozen=True, slots=True, init=False)
class Linear:
    """`base`, then `step` more each time (`base` again, unless told), never above `cap`."""

    base: timedelta
    step: timedelta
    cap: timedelta
    jitter: Jitter

    def __init__(
        self, base: Duration, step: Duration | None = None, *, cap: Duration = FIVE_MINUTES, jitter: Jitter = STEADY
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
        jitter: Jitter = UP_TO_A_TENTH_MORE,
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
class NoSooner:
    """The longer delay of two."""

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
    # Bounded first, for infinity times 0 is no number; capped last, so that jitter never passes the cap.
    bounded = min(seconds, LONGEST.total_seconds())
    return timedelta(seconds=min(bounded * uniform(jitter.low, jitter.high), cap.total_seconds()))
