"""The outcomes of an attempt as values, and the exceptions by which a handler asks for one of them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.core.retry.backoff import LONGEST_WAIT, RetryTime, read_retry_after
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.policy import Retry


@dataclass(frozen=True, slots=True)
class Done:
    result: str | None = None  # JSON text


@dataclass(frozen=True, slots=True)
class Partial:
    """The job completed, but some of its items failed."""

    result: str | None
    errors: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class PhaseTry:
    """A phase's own retry policy and attempts, which count instead of the job's."""

    retry: Retry
    attempt: int


@dataclass(frozen=True, slots=True)
class Failed:
    error: dict[str, Any]  # made by core.retry.error_info
    exception: type[BaseException] | None = None
    retry_after: timedelta | None = None
    final: bool = False
    phase: PhaseTry | None = None
    more: tuple[dict[str, Any], ...] = ()  # errors besides the first, such as those of items


@dataclass(frozen=True, slots=True)
class Snoozed:
    delay: timedelta
    because: dict[str, Any] | None = None  # why it snoozes, made by core.retry.error_info
    wait: tuple[str, ...] | None = None  # the steps that wait, one for an event at least, instead of the delay


STOPPED = "cancelled while running"  # the reason of a handler that was asked to stop


@dataclass(frozen=True, slots=True)
class Cancelled:
    reason: str
    sealed: dict[str, Any] | None = None  # instead of the reason


@dataclass(frozen=True, slots=True)
class TimedOut:
    after: timedelta
    error: dict[str, Any]
    phase: PhaseTry | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker died or lost its lease."""


@dataclass(frozen=True, slots=True)
class Released:
    """The attempt ended uncounted: not started, interrupted, rejected by a breaker, or released by an operator."""

    began: bool = True  # its handler may have: then it counts as a start for limits


Outcome = Done | Partial | Failed | Snoozed | Cancelled | TimedOut | Lost | Released


class Snooze(Exception):
    """Raised or returned in a handler: the job runs again later, and the attempt is not counted."""

    def __init__(self, delay: Duration) -> None:
        self.delay = duration(delay)
        super().__init__(f"snoozed for {self.delay}")


class Cancel(Exception):
    """Raised or returned in a handler: the job ends as cancelled."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        self.reason = reason
        super().__init__(reason)


class Skip(Exception):
    """Raised while working on an item: that item is skipped, and the others continue."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Fail(Exception):
    """Raised in a handler if the job can never succeed: it becomes a dead letter at once."""

    error_class: ClassVar = ErrorClass.NON_RETRYABLE


class Transient(Exception):
    """Raised in a handler if the attempt failed for a temporary reason."""

    error_class: ClassVar = ErrorClass.TRANSIENT


class Retryable(Exception):
    """Raised in a handler if another attempt may succeed, whatever error it was raised from."""

    error_class: ClassVar = ErrorClass.RETRYABLE


class RateLimited(Exception):
    """Raised in a handler if a service asked for fewer calls; `retry_after` is the wait that it asked for, if any.

    A header's text is accepted as it is, seconds or a date; one that cannot be read is ignored. The longest wait is a
    day.
    """

    error_class: ClassVar = ErrorClass.RATE_LIMITED

    def __init__(self, reason: str = "asked to slow down", *, retry_after: Duration | None = None) -> None:
        self.retry_after = _read_wait(retry_after)
        super().__init__(reason)


class RetryAfter(Exception):
    """Raised in a handler if the attempt failed and the next one should wait this long."""

    error_class: ClassVar = ErrorClass.RETRYABLE

    def __init__(self, delay: Duration, reason: str = "asked to retry later") -> None:
        self.delay = duration(delay)
        super().__init__(reason)

    @property
    def retry_after(self) -> timedelta:
        return duration(self.delay)


class TimeoutExceeded(Exception):
    """The attempt, or a part of it under ctx.timeout(…), ran longer than allowed."""

    error_class: ClassVar = ErrorClass.TRANSIENT
    limit: timedelta | None = None  # of the part that this attempt itself has limited


def _read_wait(retry_after: Duration | None) -> RetryTime | None:
    asked = read_retry_after(retry_after) if isinstance(retry_after, str) else None
    if asked is not None or retry_after is None:
        return asked
    try:
        return min(duration(retry_after, "retry_after"), LONGEST_WAIT) or None
    except UsageError:  # it came from outside, and must not turn a temporary failure into a final one
        return None
