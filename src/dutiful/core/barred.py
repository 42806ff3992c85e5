"""Which of the jobs that a breaker has refused inside their handlers may go on."""

from collections.abc import Sequence
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from dutiful.core import breaker as rules
from dutiful.core.breaker import Breaker, BreakerState
from dutiful.core.serving import Serving

LOOKED_AT = 100  # so many of those that wait may be those who try
Id = TypeVar("Id")


class Waiter(NamedTuple, Generic[Id]):
    job_id: Id
    kind: str
    queue: str
    tenant: str | None
    priority: int


def room(breaker: Breaker | None, probing: int, now: datetime) -> int | None:
    """How many may ask again; None: all, for it is closed. `breaker` is None if it is forgotten."""
    if breaker is None or breaker.state is BreakerState.CLOSED:
        return None
    if rules.due(breaker, now):  # the first who asks half-opens it
        breaker, probing = rules.half_opened(breaker, now), 0
    return rules.room(breaker, probing, 0) if breaker.state is BreakerState.HALF_OPEN else 0


def chosen(waiting: Sequence[Waiter[Id]], many: int, served: Serving) -> list[Id]:
    """So many that workers would take, by priority; all if nobody takes any, for they hide those behind them.

    Where every lane is paused, nobody is hidden: all stay.
    """
    if served.lanes == ():
        return []
    taken = [one for one in waiting if served.takes(one.kind, one.queue, one.tenant)]
    first = sorted(taken, key=lambda one: one.priority)[:many] if taken else waiting
    return [one.job_id for one in first]
