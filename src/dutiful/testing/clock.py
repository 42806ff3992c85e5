"""A clock that stands still until it is moved, and a store that goes by it."""

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.store import Store
from dutiful.working import Keeper


class Clock:
    """Stands at `start` (the time at which it was made, unless given) until it is moved; it never goes back."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = datetime.now(UTC).replace(microsecond=0) if start is None else _aware(start)

    def now(self) -> datetime:
        return self._now

    def advance(self, by: Duration) -> datetime:
        """Move on by a length of time, as in `clock.advance("5m")`; returns the new time."""
        return self.move_to(self._now + duration(by, "by"))

    def move_to(self, moment: datetime) -> datetime:
        if _aware(moment) < self._now:
            raise UsageError(f"the clock stands at {self._now} and does not go back to {moment}; make a new one")
        self._now = _aware(moment)
        return self._now

    def __repr__(self) -> str:
        return f"<clock {self._now.isoformat()}>"


class ClockedStore:
    """`store`, every call that takes a `now` made at the clock's time instead of the database's.

    What happens in a transaction of the user's own (`within=`, `ctx.transaction()`) goes by the database's clock.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return timed(found, self._clock) if name in _TIMED else found

    def for_tenant(self, tenant: str) -> "ClockedStore":
        return ClockedStore(self._store.for_tenant(tenant), self._clock)

    def keeper(self) -> Any:
        return _ClockedKeeper(self._store.keeper(), self._clock)


class _ClockedKeeper:
    def __init__(self, keeper: Keeper, clock: Clock) -> None:
        self._keeper = keeper
        self.renew = timed(keeper.renew, clock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keeper, name)


def timed(function: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
    """`function` with the clock's time for a `now` that the caller does not give."""

    @wraps(function)
    def at_now(*args: Any, now: datetime | None = None, **kwargs: Any) -> Any:
        return function(*args, now=clock.now() if now is None else now, **kwargs)

    return at_now


def _takes_now(name: str) -> bool:
    member = getattr(Store, name)
    return inspect.isfunction(member) and "now" in inspect.signature(member).parameters


_TIMED = frozenset(name for name in dir(Store) if not name.startswith("_") and _takes_now(name))


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise UsageError(f"{moment} has no time zone; give one, as in datetime(2030, 1, 1, tzinfo=UTC)")
    return moment.astimezone(UTC)
