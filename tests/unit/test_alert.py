"""Alerts: when they fire and when they are over."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dutiful.core.metrics.alert import QUIET, Alert, AlertRule, AlertState, evaluate, labels_of, series_of
from dutiful.core.metrics.catalogue import Sample, most_unseen
from dutiful.core.metrics.estimate import Bounds
from dutiful.core.metrics.last import EndedAttempts, last_attempts
from dutiful.declare.alert import BUILT_IN

T0 = datetime(2030, 1, 1, tzinfo=UTC)
HOUR, DAY = 3600, 24 * 3600
OK, PENDING, FIRING = AlertState.OK, AlertState.PENDING, AlertState.FIRING
RULE = AlertRule(
    name="r",
    metric="pending_total",
    above=10,
    clear=5,
    hold=timedelta(seconds=60),
    clear_hold=timedelta(seconds=30),
    summary="many",
)
Steps = Sequence[tuple[int, float | None]]  # seconds since the one before, and the value


def walk(rule: AlertRule, steps: Steps, first: Alert | None = None) -> list[tuple[datetime, float | None, Alert]]:
    alert, now, seen = first or Alert(rule=rule.name, series="", since=T0), T0, []
    for seconds, value in steps:
        now += timedelta(seconds=seconds)
        alert = evaluate(rule, alert, value, now)
        seen.append((now, value, alert))
    return seen


def states(rule: AlertRule, *steps: tuple[int, float | None]) -> list[AlertState]:
    return [alert.state for _, _, alert in walk(rule, steps)]


def mirrored(rule: AlertRule) -> AlertRule:
    """The same rule upside down."""
    assert rule.above is not None
    clear = None if rule.clear is None else -rule.clear
    return AlertRule(name=rule.name, metric=rule.metric, below=-rule.above, clear=clear, hold=rule.hold,
                     clear_hold=rule.clear_hold, summary=rule.summary)  # fmt: skip


values = st.one_of(st.none(), st.floats(0, 20))
walks = st.lists(st.tuples(st.integers(1, 40), values), max_size=40)
rules = st.builds(
    lambda clear, hold, calm: AlertRule(
        name="r", metric="pending_total", above=10, clear=clear, hold=timedelta(seconds=hold),
        clear_hold=timedelta(seconds=calm),
    ),
    st.one_of(st.none(), st.floats(0, 10)), st.integers(0, 90), st.integers(0, 90),
)  # fmt: skip


def lasted(steps: list[tuple[datetime, float | None, Alert]], end: int, holds: Any) -> timedelta:
    """For how long, up to step `end`, every value was such a one."""
    begin = end
    while begin > 0 and holds(steps[begin - 1][1]):
        begin -= 1
    return steps[end][0] - steps[begin][0] if holds(steps[end][1]) else timedelta(-1)


@pytest.mark.req("L81", "L83")
@given(rules, walks)
def test_an_alert_fires_exactly_when_its_value_was_beyond_for_the_whole_hold(rule: AlertRule, steps: Steps) -> None:
    seen, before = walk(rule, steps), OK
    for n, (now, _, alert) in enumerate(seen):
        if before is not FIRING:
            assert (alert.state is FIRING) == (lasted(seen, n, rule.beyond) >= rule.hold)
            assert alert.state is not FIRING or alert.fired_at == now
        before = alert.state


@given(rules, walks)
def test_an_alert_is_over_exactly_when_its_value_was_safe_for_the_whole_clear_hold(
    rule: AlertRule, steps: Steps
) -> None:
    fired = Alert(rule="r", series="", state=FIRING, since=T0, fired_at=T0)
    seen, before = walk(rule, steps, fired), FIRING
    for n, (now, _, alert) in enumerate(seen):
        if before is FIRING:
            assert (alert.state is OK) == (lasted(seen, n, rule.safe) >= rule.clear_hold)
            assert alert.state is not OK or (alert.cleared_at, alert.calm_since) == (now, None)
        before = alert.state


@given(rules, st.lists(st.tuples(st.integers(1, 400), st.floats(0, 1)), max_size=30), st.sampled_from([OK, FIRING]))
def test_between_the_threshold_and_clear_nothing_changes(
    rule: AlertRule, steps: list[tuple[int, float]], state: AlertState
) -> None:
    low = 10.0 if rule.clear is None else rule.clear
    between = [(seconds, low + share * (10.0 - low)) for seconds, share in steps]
    inside = [(seconds, value) for seconds, value in between if low < value <= 10]
    first = Alert(rule="r", series="", state=state, since=T0)

    assert {alert.state for _, _, alert in walk(rule, inside, first)} <= {state}


@given(rules, walks)
def test_below_is_above_upside_down(rule: AlertRule, steps: Steps) -> None:
    upside_down = [(seconds, None if value is None else -value) for seconds, value in steps]

    assert states(rule, *steps) == states(mirrored(rule), *upside_down)


def test_an_alert_goes_through_its_states() -> None:
    steps = [(0, 11), (59, 99), (1, 11), (10, 7), (10, 5), (29, 4), (1, 4), (1, 11)]

    seen = walk(RULE, steps)

    assert [alert.state for _, _, alert in seen] == [PENDING, PENDING, FIRING, FIRING, FIRING, FIRING, OK, PENDING]
    fires, over = seen[2][2], seen[6][2]
    assert (fires.value, fires.since, fires.fired_at, fires.summary) == (
        11,
        T0 + timedelta(seconds=60),
        fires.since,
        "many",
    )
    assert (over.fired_at, over.cleared_at) == (fires.fired_at, over.since)


def test_a_value_that_comes_back_for_a_moment_begins_the_hold_anew() -> None:
    assert states(RULE, (0, 11), (59, 10), (1, 11), (59, 11), (1, 11)) == [PENDING, OK, PENDING, PENDING, FIRING]


def test_a_time_without_evaluation_is_no_part_of_a_hold() -> None:
    waiting = evaluate(RULE, Alert(rule="r", series="", since=T0), 11, T0)
    morning = T0 + timedelta(hours=10)

    anew = evaluate(RULE, waiting, 11, morning, continuous=False)

    assert (anew.state, anew.since, anew.fired_at) == (PENDING, morning, None)
    assert evaluate(RULE, anew, 11, morning + timedelta(seconds=59)).state is PENDING
    assert evaluate(RULE, anew, 11, morning + timedelta(seconds=60)).state is FIRING
    assert evaluate(RULE, waiting, 10, morning, continuous=False).state is OK


def test_a_time_without_evaluation_is_no_part_of_the_clear_hold() -> None:
    fired = Alert(rule="r", series="", state=FIRING, since=T0, fired_at=T0, calm_since=T0)
    morning = T0 + timedelta(hours=10)

    anew = evaluate(RULE, fired, 4, morning, continuous=False)

    assert (anew.state, anew.since, anew.calm_since) == (FIRING, T0, morning)
    assert evaluate(RULE, anew, 4, morning + timedelta(seconds=29)).state is FIRING
    assert evaluate(RULE, anew, 4, morning + timedelta(seconds=30)).state is OK
    few = evaluate(ERRORS, fired, None, morning, reliable=False, continuous=False)
    assert evaluate(ERRORS, few, None, morning + QUIET - timedelta(seconds=1), reliable=False).state is FIRING
    assert evaluate(ERRORS, few, None, morning + QUIET, reliable=False).state is OK


def test_an_uncertain_estimate_does_not_carry_a_hold_over_a_time_without_evaluation() -> None:
    wide, later = Bounds(0, 20), timedelta(hours=10)
    waiting = Alert(rule="r", series="", state=PENDING, since=T0)
    calm = Alert(rule="r", series="", state=FIRING, since=T0, fired_at=T0, calm_since=T0)

    waits = evaluate(RULE, waiting, 11, T0 + later, bounds=wide, continuous=False)
    fires = evaluate(RULE, calm, 4, T0 + later, bounds=wide, continuous=False)

    soon = T0 + later + timedelta(seconds=15)
    assert evaluate(RULE, waits, 11, soon).state is PENDING
    assert evaluate(RULE, fires, 4, soon).state is FIRING


def test_a_rule_without_holds_goes_by_one_look_after_whatever_time() -> None:
    rule, later = AlertRule(name="r", metric="pending_total", above=10), T0 + timedelta(hours=10)

    fires = evaluate(rule, Alert(rule="r", series="", since=T0), 11, T0, continuous=False)

    assert (fires.state, evaluate(rule, fires, 10, later, continuous=False).state) == (FIRING, OK)


bounds_strategy = st.tuples(st.floats(0, 20), st.floats(0, 20)).map(lambda ends: Bounds(min(ends), max(ends)))


@given(rules, st.lists(st.tuples(st.integers(1, 40), bounds_strategy, st.floats(0, 1)), max_size=40), st.booleans())
def test_whatever_an_estimate_says_an_alert_changes_only_if_the_truth_would_change_it(
    rule: AlertRule, looks: list[tuple[int, Bounds, float]], below: bool
) -> None:
    """Wherever in its bounds the truth lies: one that begins is beyond, one that ends is safe."""
    rule, sign = (mirrored(rule), -1) if below else (rule, 1)
    alert, now = Alert(rule="r", series="", since=T0), T0
    for seconds, bounds, share in looks:
        now += timedelta(seconds=seconds)
        truth = sign * (bounds.low + share * (bounds.high - bounds.low))
        given = bounds if sign > 0 else Bounds(-bounds.high, -bounds.low)
        before, alert = alert, evaluate(rule, alert, sign * bounds.high, now, bounds=given)
        if before.state is not FIRING and alert.state is FIRING:
            assert rule.beyond(truth)
        if before.state is FIRING and alert.state is OK:
            assert rule.safe(truth)


def test_while_an_estimate_may_be_on_either_side_everything_stays_as_it_is() -> None:
    rule = AlertRule(name="r", metric="pending", above=200, clear=100, hold=timedelta(seconds=60))
    unsure = Bounds(0, 1_000)
    for state in AlertState:
        alert = Alert(rule="r", series="", state=state, since=T0, fired_at=T0 if state is FIRING else None)
        for seconds in (1, 100, 10_000):
            alert = evaluate(rule, alert, 326, T0 + timedelta(seconds=seconds), bounds=unsure)
            assert alert.state is state
    firing = Alert(rule="r", series="", state=FIRING, since=T0, fired_at=T0)
    assert evaluate(rule, firing, None, T0, bounds=unsure).state is FIRING  # none was seen, and there may be some
    assert evaluate(rule, firing, None, T0, bounds=Bounds(0, 90)).state is OK
    assert evaluate(rule, firing, 90, T0, bounds=Bounds(50, 150)).state is FIRING


def test_an_estimate_that_is_wholly_beyond_fires_as_a_count_does() -> None:
    rule = BUILT_IN["backlog"]
    alert = Alert(rule=rule.name, series="", since=T0)
    for minutes in range(6):
        alert = evaluate(rule, alert, 80_000, T0 + timedelta(minutes=minutes), bounds=Bounds(70_000, 90_000))
    assert alert.state is FIRING


@given(st.dictionaries(st.sampled_from(["queue", "kind", "lane"]), st.text()))
def test_the_labels_of_a_series_can_be_read_back(labels: dict[str, str]) -> None:
    assert labels_of(series_of(labels)) == labels


def test_only_a_queue_that_was_estimated_may_hide_a_kind() -> None:
    samples = [
        Sample("pending", 9_000, {"queue": "bulk", "kind": "a"}, bounds=Bounds(8_000, 10_000, unseen=300)),
        Sample("pending", 3, {"queue": "mail", "kind": "a"}),
    ]
    assert most_unseen(samples, {"queue": "bulk", "kind": "rare"}) == 300
    assert most_unseen(samples, {"queue": "mail", "kind": "rare"}) == 0
    everywhere = Sample("blocked", 9, {"queue": "bulk", "kind": "a"}, bounds=Bounds(1, 10, unseen=5, everywhere=True))
    assert most_unseen([everywhere], {"queue": "mail", "kind": "rare"}) == 5


def test_a_series_that_is_gone_or_no_number_is_safe() -> None:
    rule = AlertRule(name="r", metric="breaker_open", above=0)

    assert states(rule, (0, 1), (1, None), (1, 1), (1, float("nan"))) == [FIRING, OK, FIRING, OK]
    assert states(mirrored(rule), (0, None), (1, -1), (1, None)) == [OK, FIRING, OK]


ERRORS = BUILT_IN["errors"]


def failing(gap: int, share: int, *, looks: int = 720, every: int = 15, until: int | None = None) -> list[AlertState]:
    """What `errors` says in so many looks at a kind that runs every `gap` seconds, one of `share` failing."""
    alert, states, minutes = Alert(rule="errors", series="kind=k", since=T0), [OK], list[EndedAttempts]()
    ran = 0
    for look in range(0, looks * every, every):
        while ran * gap <= look and (until is None or ran * gap <= until):
            minute, failed = T0 + timedelta(minutes=ran * gap // 60), int(ran % share == 0)
            if minutes and minutes[0].minute == minute:
                minutes[0] = EndedAttempts(minute, minutes[0].ended + 1, minutes[0].failed + failed)
            else:
                minutes.insert(0, EndedAttempts(minute, 1, failed))
            ran += 1
        now = T0 + timedelta(seconds=look)
        last = last_attempts(minutes, now)
        sample = last and Sample(ERRORS.metric, last.error_rate, {"kind": "k"}, count=last.ended)
        alert = evaluate(ERRORS, alert, last and last.error_rate, now, reliable=ERRORS.is_reliable(sample))
        states += [alert.state] if alert.state is not states[-1] else []
    return states


@pytest.mark.req("L82")
@settings(max_examples=100, deadline=None)
@given(st.integers(5, 900), st.integers(1, 8))
@example(33, 1)
@example(36, 1)
def test_errors_never_flap_while_a_kind_goes_on_failing_at_whatever_rate(gap: int, share: int) -> None:
    assert failing(gap, share) == [OK, FIRING]


@pytest.mark.req("L82")
@pytest.mark.parametrize("gap", [HOUR, DAY, 30 * DAY])
def test_a_kind_that_fails_1_of_1_now_and_then_is_noticed_once_however_rarely_it_runs(gap: int) -> None:
    assert failing(gap, 1, looks=200, every=gap // 10) == [OK, FIRING]
    assert failing(gap, 5, looks=200, every=gap // 10) == [OK, FIRING]  # never 1 of the last 10 alone
    assert failing(gap, 10, looks=300, every=gap // 10) == [OK]  # 10 % is not more than 10 %


@pytest.mark.req("L82")
def test_a_kind_that_has_stopped_running_is_over() -> None:
    looks = 2 * 48
    assert failing(HOUR, 1, looks=looks, every=1800, until=5 * HOUR) == [OK, FIRING, OK]
    assert failing(15, 1, looks=looks, every=60, until=600) == [OK, FIRING, OK]


def test_a_share_of_few_begins_nothing_and_ends_nothing_until_it_has_been_quiet_for_long() -> None:
    fired = evaluate(ERRORS, Alert(rule="errors", series="", since=T0), 1.0, T0)
    long = T0 + QUIET

    assert evaluate(ERRORS, Alert(rule="errors", series="", since=T0), 1.0, T0, reliable=False).state is OK
    assert evaluate(ERRORS, fired, 0.0, T0).state is OK
    bad = evaluate(ERRORS, fired, 1.0, long, reliable=False)
    assert (bad.state, bad.calm_since) == (FIRING, None)
    for value in (0.0, None):
        calm = evaluate(ERRORS, fired, value, T0, reliable=False)
        assert evaluate(ERRORS, calm, value, long - timedelta(seconds=1), reliable=False).state is FIRING
        assert evaluate(ERRORS, calm, value, long, reliable=False).state is OK


def test_a_clock_that_was_set_back_does_not_stop_an_alert() -> None:
    waiting = Alert(rule="r", series="", state=PENDING, since=T0 + timedelta(days=1), value=11)

    assert [alert.state for _, _, alert in walk(RULE, [(0, 11), (60, 11)], waiting)] == [PENDING, FIRING]


def test_what_is_well_and_stays_so_is_not_changed() -> None:
    alert = Alert(rule="r", series="", since=T0)

    assert evaluate(RULE, alert, 3, T0 + timedelta(hours=1)) is alert


def test_a_value_at_the_threshold_is_not_beyond_it_on_either_side() -> None:
    above, below = RULE, mirrored(RULE)
    assert [above.beyond(value) for value in (10.1, 10, None)] == [True, False, False]
    assert [below.beyond(value) for value in (-10.1, -10, None)] == [True, False, False]
    assert [above.safe(value) for value in (5, 5.1, None)] == [True, False, True]
    assert [below.safe(value) for value in (-5, -5.1, None)] == [True, False, True]
