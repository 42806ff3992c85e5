"""Who goes on of those that a breaker has refused inside their handlers."""

from datetime import UTC, datetime, timedelta

import pytest

from dutiful.core.barred import Waiter, chosen, room
from dutiful.core.breaker import Breaker, BreakerPolicy, closed, half_opened, opened
from dutiful.core.serving import ServedLane, Serving

NOW = datetime(2024, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MAIL = Breaker(name="mail", policy=BreakerPolicy(probes=3))
OPEN = opened(MAIL, NOW, MINUTE)
ANYBODY = Serving(None)
ONLY_MAIL = Serving((ServedLane(frozenset({"mail"}), frozenset({"*"})),))


def waiter(name: str, kind: str = "mail", priority: int = 100) -> Waiter[str]:
    return Waiter(name, kind, "default", None, priority)


@pytest.mark.parametrize("breaker", [None, MAIL, closed(OPEN)])
def test_all_go_on_when_it_is_closed_or_forgotten(breaker: Breaker | None) -> None:
    assert room(breaker, 0, NOW) is None


def test_nobody_asks_while_it_is_open() -> None:
    assert room(OPEN, 0, NOW + MINUTE - timedelta(microseconds=1)) == 0


def test_as_many_ask_as_may_probe() -> None:
    assert room(OPEN, 0, NOW + MINUTE) == 3
    assert room(half_opened(OPEN, NOW + MINUTE), 2, NOW + MINUTE) == 1
    assert room(half_opened(OPEN, NOW + MINUTE), 3, NOW + MINUTE) == 0


def test_the_best_priority_asks_first_and_then_the_oldest() -> None:
    waiting = [waiter("a", priority=200), waiter("b"), waiter("c"), waiter("d", priority=50)]
    assert chosen(waiting, 2, ANYBODY) == ["d", "b"]


def test_only_what_is_served_asks_unless_nothing_is() -> None:
    gone = [waiter("a", "gone"), waiter("b", "gone")]
    assert chosen([*gone, waiter("c"), waiter("d")], 1, ONLY_MAIL) == ["c"]
    assert chosen(gone, 1, ONLY_MAIL) == ["a", "b"]


def test_nobody_asks_while_nobody_takes_anything() -> None:
    assert chosen([waiter("a"), waiter("b")], 1, Serving(())) == []
