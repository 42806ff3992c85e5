"""What came of one attempt, as values; and the exceptions by which a handler asks for one of them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from dutiful.core.duration import Duration, duration
from dutiful.core.error_class import ErrorClass
from dutiful.core.errors import UsageError
from dutiful.core.retry import Retry
from dutiful.core.retry_after import LONGEST_WAIT, RetryTime, read_retry_after


@dataclass(frozen=True, slots=True)
class Done:
    result: str | None = None  # JSON text


@dataclass(frozen=True, slots=True)
class Partial:
    """It ran to its end, but some of its items failed."""

    result: str | None
    errors: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class PhaseTry:
    """A phase's own retry policy, and how often the phase was tried: they count instead of the job's."""

    retry: Retry
    attempt: int


@dataclass(frozen=True, slots=True)
class Failed:
    error: dict[str, Any]  # as made by core.error_info.describe
    exception: type[BaseException] | None = None
    retry_after: timedelta | None = None
    final: bool = False
    phase: PhaseTry | None = None
    more: tuple[dict[str, Any], ...] = ()  # errors besides the first, such as those of items


@dataclass(frozen=True, slots=True)
class Snoozed:
    delay: timedelta
    because: dict[str, Any] | None = None  # what kept it from its work, for people; as made by core.error_info


@dataclass(frozen=True, slots=True)
class Cancelled:
    reason: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    after: timedelta
    error: dict[str, Any]
    phase: PhaseTry | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """Its worker died or lost its lease."""


@dataclass(frozen=True, slots=True)
class Released:
    """Claimed ahead of time and given back before it was started."""


Outcome = Done | Partial | Failed | Snoozed | Cancelled | TimedOut | Lost | Released


class Snooze(Exception):
    """Raise or return it in a handler: run this job again later; no attempt is spent."""

    def __init__(self, delay: Duration) -> None:
        self.delay = duration(delay)
        super().__init__(f"snoozed for {self.delay}")


class Cancel(Exception):
    """Raise or return it in a handler: this job is no longer wanted; it ends as cancelled."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        self.reason = reason
        super().__init__(reason)


class Skip(Exception):
    """Raise it while working on an item: the item is skipped, for this reason; its siblings go on."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Fail(Exception):
    """Raise it in a handler: this job can never succeed; it becomes a dead letter at once."""

    error_class: ClassVar = ErrorClass.NON_RETRYABLE


class Transient(Exception):
    """Raise it in a handler: the attempt failed for a reason that passes by itself."""

    error_class: ClassVar = ErrorClass.TRANSIENT


class Retryable(Exception):
    """Raise it in a handler: the attempt failed and is worth another one, whatever it was raised from."""

    error_class: ClassVar = ErrorClass.RETRYABLE


class RateLimited(Exception):
    """Raise it in a handler: the other side asked us to slow down; `retry_after` is how long, if it said so.

    A header is taken as it came, seconds or a date; one that cannot be read counts as none. At most a day is waited.
    """

    error_class: ClassVar = ErrorClass.RATE_LIMITED

    def __init__(self, reason: str = "asked to slow down", *, retry_after: Duration | None = None) -> None:
        self.retry_after = _asked_for(retry_after)
        super().__init__(reason)


class RetryAfter(Exception):
    """Raise it in a handler: the attempt failed, and the next one is to wait this long."""

    error_class: ClassVar = ErrorClass.RETRYABLE

    def __init__(self, delay: Duration, reason: str = "asked to retry later") -> None:
        self.delay = duration(delay)
        super().__init__(reason)

    @property
    def retry_after(self) -> timedelta:
        return duration(self.delay)


class TimeoutExceeded(Exception):
    """The attempt ran longer than its kind allows."""

    error_class: ClassVar = ErrorClass.TRANSIENT


def _asked_for(retry_after: Duration | None) -> RetryTime | None:
    asked = read_retry_after(retry_after) if isinstance(retry_after, str) else None
    if asked is not None or retry_after is None:
        return asked
    try:
        return min(duration(retry_after, "retry_after"), LONGEST_WAIT) or None
    except UsageError:  # it came from outside: that must not turn a failure that passes into one for good
        return None
