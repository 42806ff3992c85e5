"""What came of one attempt, as values; and the exceptions by which a handler asks for one of them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dutiful.core.duration import Duration, duration
from dutiful.core.retry import Retry


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


class RetryAfter(Exception):
    """Raise it in a handler: the attempt failed, and the next one is to wait this long."""

    def __init__(self, delay: Duration, reason: str = "asked to retry later") -> None:
        self.delay = duration(delay)
        super().__init__(reason)


class TimeoutExceeded(Exception):
    """The attempt ran longer than its kind allows."""
