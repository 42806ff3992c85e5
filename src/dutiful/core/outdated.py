"""Detects late writes that newer ones have overtaken."""

from datetime import datetime
from typing import Any, Protocol, TypeVar

from dutiful.core.errors import UsageError


class Ordered(Protocol):
    def __gt__(self, other: Any, /) -> bool: ...


V = TypeVar("V", bound=Ordered)


def is_outdated(candidate: V | None, current: V | None) -> bool:
    """Whether `current` is later than `candidate`, which is about to be written; False if equal or unknown.

    Call it with the lock held, and after reading `current` again.
    """
    if candidate is None or current is None:
        return False
    if isinstance(candidate, datetime) and isinstance(current, datetime) and _aware(candidate) != _aware(current):
        naive = "current" if _aware(candidate) else "candidate"
        raise UsageError(f"is_outdated: {naive} has no time zone and the other one has; give both one, as in UTC")
    try:
        return bool(current > candidate)
    except TypeError as error:
        kinds = f"{type(candidate).__name__} and {type(current).__name__}"
        raise UsageError(
            f"is_outdated: candidate and current are {kinds}, which have no order; give two alike"
        ) from error


def _aware(moment: datetime) -> bool:
    return moment.utcoffset() is not None
