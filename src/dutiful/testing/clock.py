"""A clock that stands still until it is moved, and a store that uses it."""

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.store import Store


class Clock:
    """Stands at `start` (default: now) until it is moved; it never goes back."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = datetime.now(UTC).replace(microsecond=0) if start is None else _aware(start)

    def now(self) -> datetime:
        return self._now

    def advance(self, by: Duration) -> datetime:
        """Moves by a length of time, as in `clock.advance("5m")`; returns the new time."""
        return self.move_to(self._now + duration(by, "by"))

    def move_to(self, moment: datetime) -> datetime:
        if _aware(moment) < self._now:
            raise UsageError(f"the clock stands at {self._now} and does not go back to {moment}; make a new one")
        self._now = _aware(moment)
        return self._now

    def __repr__(self) -> str:
        return f"<clock {self._now.isoformat()}>"


class ClockedStore:
    """A store whose calls that take a `now` use the clock instead of the database's time.

    Transactions of the user (`within=`, `ctx.transaction()`) use the database's time.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.claims = _ClockedClaims(store.claims, clock)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in _SUBJECTS and found is not None:
            found = _Clocked(found, self._clock)
            setattr(self, name, found)  # so that a test can replace a method of a subject
        return found

    def for_tenant(self, tenant: str) -> "ClockedStore":
        return ClockedStore(self._store.for_tenant(tenant), self._clock)


class _Clocked:
    """One subject of a store, or a lease renewer."""

    def __init__(self, subject: Any, clock: Clock) -> None:
        self._subject = subject
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._subject, name)
        takes_now = callable(found) and "now" in inspect.signature(found).parameters
        return with_clock(found, self._clock) if takes_now else found


class _ClockedClaims(_Clocked):
    def renewer(self) -> Any:
        return _Clocked(self._subject.renewer(), self._clock)


_SUBJECTS = frozenset(name for name, member in vars(Store).items() if isinstance(member, property))


def with_clock(function: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
    """Wraps `function` to use the clock's time if the caller gives no `now`."""

    @wraps(function)
    def at_now(*args: Any, now: datetime | None = None, **kwargs: Any) -> Any:
        return function(*args, now=clock.now() if now is None else now, **kwargs)

    return at_now


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise UsageError(f"{moment} has no time zone; give one, as in datetime(2030, 1, 1, tzinfo=UTC)")
    return moment.astimezone(UTC)
