"""Which jobs may probe: those that live workers take, and rejected ones by priority."""

from datetime import UTC, datetime, timedelta

import pytest

from dutiful.core.breaker.probes import RejectedJob, ServedLane, Serving, choose_rejected, room_for_rejected, serving
from dutiful.core.breaker.state import Breaker, BreakerPolicy, closed, half_opened, opened
from dutiful.store.workers import LaneRecord

NOW = datetime(2024, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MAIL = Breaker(name="mail", policy=BreakerPolicy(probes=3))
OPEN = opened(MAIL, NOW, MINUTE)
ANY_WORKER = Serving(None)
ONLY_MAIL = Serving((ServedLane(frozenset({"mail"}), frozenset({"*"})),))


def rejected(name: str, kind: str = "mail", priority: int = 100) -> RejectedJob[str]:
    return RejectedJob(name, kind, "default", None, priority)


@pytest.mark.parametrize("breaker", [None, MAIL, closed(OPEN)])
def test_all_try_again_when_it_is_closed_or_deleted(breaker: Breaker | None) -> None:
    assert room_for_rejected(breaker, 0, NOW) is None


def test_no_rejected_job_tries_again_while_it_is_open() -> None:
    assert room_for_rejected(OPEN, 0, NOW + MINUTE - timedelta(microseconds=1)) == 0


def test_as_many_try_again_as_may_probe() -> None:
    assert room_for_rejected(OPEN, 0, NOW + MINUTE) == 3
    assert room_for_rejected(half_opened(OPEN, NOW + MINUTE), 2, NOW + MINUTE) == 1
    assert room_for_rejected(half_opened(OPEN, NOW + MINUTE), 3, NOW + MINUTE) == 0


def test_the_best_priority_tries_again_first_and_then_the_oldest() -> None:
    waiting = [rejected("a", priority=200), rejected("b"), rejected("c"), rejected("d", priority=50)]
    assert choose_rejected(waiting, 2, ANY_WORKER) == ["d", "b"]


def test_only_what_is_served_asks_unless_nothing_is() -> None:
    gone = [rejected("a", "gone"), rejected("b", "gone")]
    assert choose_rejected([*gone, rejected("c"), rejected("d")], 1, ONLY_MAIL) == ["c"]
    assert choose_rejected(gone, 1, ONLY_MAIL) == ["a", "b"]


def test_no_rejected_job_tries_again_while_no_lane_takes_jobs() -> None:
    assert choose_rejected([rejected("a"), rejected("b")], 1, Serving(())) == []


LANES = {"fast": LaneRecord(slots=1, queues=("fast",)), "general": LaneRecord(slots=1, queues=("*",))}


@pytest.mark.parametrize(
    ("paused", "fast", "other"), [((), True, True), (("general",), True, False), (("*",), False, False)]
)
def test_a_paused_lane_takes_nothing_and_a_pause_of_every_lane_stops_them_all(
    paused: tuple[str, ...], fast: bool, other: bool
) -> None:
    served = serving([(LANES, ["email"])], {("lane", name) for name in paused})

    assert (served.takes("email", "fast", None), served.takes("email", "other", None)) == (fast, other)
