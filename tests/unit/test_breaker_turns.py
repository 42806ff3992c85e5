"""Whose turn it is to probe, and what a breaker forgets."""

from datetime import UTC, datetime, timedelta
from unittest.mock import patch

from dutiful.core.breaker import probes
from dutiful.core.breaker.probes import KindInQueue, ServedLane, Serving, Turns, round_robin, serving
from dutiful.core.breaker.state import (
    PROBE_WAIT,
    Breaker,
    BreakerPolicy,
    BreakerState,
    CallResult,
    Entry,
    Rejected,
    enter,
    exited,
    half_opened,
    opened,
    probe_turn,
)

NOW = datetime(2024, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
POLICY = BreakerPolicy(failures=3, open_for=MINUTE, probes=1)
MAIL, BULK, FAX = KindInQueue("mail", "default"), KindInQueue("bulk", "default"), KindInQueue("fax", "slow")


def test_who_had_no_turn_comes_first_then_who_had_it_longest_ago() -> None:
    turns = Turns()
    waiting = [(MAIL, (100, 7)), (BULK, (100, 5)), (FAX, (50, 9))]
    assert turns.order(waiting) == [FAX, BULK, MAIL], "among equals, the position of the first job decides"
    turns.record([BULK])
    turns.record([FAX])
    assert turns.order(waiting) == [MAIL, BULK, FAX]
    turns.record([BULK])
    assert turns.order(waiting) == [MAIL, FAX, BULK]
    assert turns.order([(MAIL, (1, 1)), (BULK, (1, 1))])[0] == MAIL
    assert Turns().order([(MAIL, (1, 1)), (BULK, (1, 1))]) == [BULK, MAIL], "at last the name"


def test_turns_are_forgotten_beyond_a_number() -> None:
    turns = Turns()
    with patch.object(probes, "_REMEMBERED", 1):
        for each in (MAIL, BULK):
            turns.record([each])
        assert turns.order([(MAIL, (1, 2)), (FAX, (1, 3))]) == [FAX, MAIL]
        turns.record([BULK])
        assert turns.order([(MAIL, (1, 2)), (FAX, (1, 3))]) == [MAIL, FAX]


def test_groups_are_taken_from_in_turn() -> None:
    assert round_robin([["a", "b", "c"], ["d"], [], ["e", "f"]], 5) == ["a", "d", "e", "b", "f"]
    assert round_robin([], 5) == []


def test_as_many_kinds_are_looked_at_as_are_certain_to_have_enough_jobs() -> None:
    every, acme = frozenset({"*"}), frozenset({"acme"})
    served = Serving((ServedLane(frozenset({"mail", "fax"}), every), ServedLane(frozenset({"bulk"}), every, acme)))
    gone = KindInQueue("gone", "default")
    waiting = [gone, BULK, MAIL, FAX]
    assert list(served.first_taken(waiting, 1)) == [(BULK, acme), (MAIL, None)], "one tenant's jobs are not certain"
    assert list(served.first_taken(waiting, 2)) == [(BULK, acme), (MAIL, None), (FAX, None)]
    assert list(served.first_taken([MAIL, FAX, BULK], 1)) == [(MAIL, None)]


def test_a_pause_counts_for_what_it_names() -> None:
    served = serving([], [("kind", "mail"), ("queue", "slow")])
    assert (served.kinds, served.queues, served.lanes) == (frozenset({"mail"}), frozenset({"slow"}), None)
    assert not served.takes("mail", "default", None) and not served.takes("fax", "slow", None)
    assert served.takes("fax", "default", None)


def test_a_good_call_forgets_the_failures_before_it() -> None:
    breaker = Breaker(name="mail", policy=POLICY)
    assert (breaker.failures, breaker.successes, breaker.neutral, breaker.round, breaker.trips) == (0, 0, 0, 0, 0)
    for _ in range(2):
        breaker = exited(breaker, POLICY, Entry(0), CallResult.BAD, NOW)
    assert breaker.failures == 2
    assert exited(breaker, POLICY, Entry(0), CallResult.GOOD, NOW).failures == 0


def test_calls_of_an_earlier_round_do_not_count_as_probes_of_the_next() -> None:
    open_one = opened(Breaker(name="mail", policy=POLICY), NOW, MINUTE)
    half_open, admitted = enter(open_one, POLICY, 1, NOW + MINUTE)
    assert admitted == Entry(half_open.round, probe=True)
    _, second = enter(half_open, POLICY, 1, NOW + MINUTE)
    assert second == Rejected(NOW + MINUTE + PROBE_WAIT, PROBE_WAIT)
    assert not Entry(0).probe and Rejected(NOW).wait == timedelta(0)


def test_a_job_that_is_chosen_to_probe_has_its_turn_for_as_long_as_the_breaker_is_open() -> None:
    assert timedelta(seconds=5) == PROBE_WAIT
    assert probe_turn(POLICY) == MINUTE
    assert probe_turn(BreakerPolicy(open_for=timedelta(seconds=1))) == PROBE_WAIT
    assert half_opened(Breaker(name="mail"), NOW).half_opened_at == NOW


def test_a_half_open_breaker_closes_with_the_last_good_probe_it_wants_and_not_before() -> None:
    policy = BreakerPolicy(probes=3, open_for=MINUTE)
    breaker = half_opened(opened(Breaker(name="mail", policy=policy), NOW, MINUTE), NOW + MINUTE)
    states = []
    for _ in range(3):
        breaker = exited(breaker, policy, Entry(breaker.round, probe=True), CallResult.GOOD, NOW + MINUTE)
        states.append(breaker.state)
    assert states == [BreakerState.HALF_OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED]


def test_only_a_good_or_bad_call_is_clear() -> None:
    assert [result for result in CallResult if result.clear] == [CallResult.GOOD, CallResult.BAD]
