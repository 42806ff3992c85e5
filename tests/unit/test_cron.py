from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.cron import CatchUp, Cron, Every, Firing, Schedule, due
from dutiful.core.errors import UsageError

HELSINKI = ZoneInfo("Europe/Helsinki")
# Clocks go from 03:00 to 04:00 on 30 March 2025, and from 04:00 back to 03:00 on 26 October 2025; both at 01:00 UTC.
SPRING = datetime(2025, 3, 30, 1, tzinfo=UTC)
AUTUMN = datetime(2025, 10, 26, 1, tzinfo=UTC)
NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
HOURLY = Cron("0 * * * *")

moments = st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
schedules = st.sampled_from(
    [
        Cron("30 3 * * *", "Europe/Helsinki"),
        Cron("30 * * * *", "Europe/Helsinki"),
        Cron("*/7 3 * * 1-5", "America/New_York"),
        Cron("0 0 29 2 *"),
        Cron("15 10 * * * *", "Australia/Lord_Howe"),
        Every("90s"),
        Every("7d"),
    ]
)


def firings(schedule: Schedule, start: datetime, end: datetime) -> list[datetime]:
    times = []
    while (start := schedule.next_after(start)) < end:
        times.append(start)
    return times


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 3 * * *", datetime(2025, 6, 2, 3, tzinfo=UTC)),
        ("0 4 * * *", datetime(2025, 6, 2, 4, tzinfo=UTC)),
        ("0 5 * * *", datetime(2025, 6, 2, 5, tzinfo=UTC)),
        ("0 2 * * SUN", datetime(2025, 6, 8, 2, tzinfo=UTC)),
    ],
)
def test_an_expression_fires_at_its_next_time_in_utc(expression: str, expected: datetime) -> None:
    assert Cron(expression).next_after(NOON) == expected


def test_a_time_zone_moves_the_firing_and_the_answer_is_utc() -> None:
    fires = Cron("30 3 * * *", "Europe/Helsinki").next_after(NOON.astimezone(ZoneInfo("Asia/Tokyo")))

    assert fires == datetime(2025, 6, 2, 0, 30, tzinfo=UTC)
    assert fires.tzinfo is UTC


def test_a_firing_is_strictly_after_the_moment_asked_about() -> None:
    assert HOURLY.next_after(NOON) == NOON + HOUR
    assert HOURLY.next_after(NOON - timedelta(microseconds=1)) == NOON
    assert HOURLY.next_after(NOON + timedelta(microseconds=1)) == NOON + HOUR


def test_a_daily_job_whose_time_is_skipped_in_spring_fires_once_when_the_clocks_resume() -> None:
    times = firings(Cron("30 3 * * *", "Europe/Helsinki"), SPRING - DAY, SPRING + DAY)

    assert times == [SPRING - DAY + timedelta(minutes=30), SPRING, SPRING + DAY - timedelta(minutes=30)]
    assert times[1].astimezone(HELSINKI).strftime("%H:%M") == "04:00"


def test_a_daily_job_whose_time_is_repeated_in_autumn_fires_once() -> None:
    half_past = timedelta(minutes=30)

    times = firings(Cron("30 3 * * *", "Europe/Helsinki"), AUTUMN - DAY, AUTUMN + DAY)

    assert times == [AUTUMN - HOUR + half_past]
    assert firings(Cron("30 3 * * *", "Europe/Helsinki"), AUTUMN + DAY, AUTUMN + 2 * DAY) == [AUTUMN + DAY + half_past]


def test_a_moment_in_the_repeated_hour_does_not_bring_its_first_pass_back() -> None:
    in_second_pass = AUTUMN + timedelta(minutes=10)

    fires = Cron("30 3 * * *", "Europe/Helsinki").next_after(in_second_pass)

    assert fires == AUTUMN + DAY + timedelta(minutes=30)


@pytest.mark.parametrize("change", [SPRING, AUTUMN])
def test_an_hourly_job_fires_each_real_hour_when_the_clocks_change(change: datetime) -> None:
    start = change - timedelta(hours=5)

    times = firings(Cron("15 * * * *", "Europe/Helsinki"), start, start + 10 * HOUR)

    assert times == [start + n * HOUR + timedelta(minutes=15) for n in range(10)]


def test_a_job_of_some_hours_does_not_fire_twice_in_a_repeated_or_skipped_hour() -> None:
    local = [
        [
            time.astimezone(HELSINKI).strftime("%H:%M%z")
            for time in firings(Cron("0 2-5 * * *", "Europe/Helsinki"), start, end)
        ]
        for start, end in [(SPRING - 4 * HOUR, SPRING + 4 * HOUR), (AUTUMN - 4 * HOUR, AUTUMN + 4 * HOUR)]
    ]

    assert local == [
        ["02:00+0200", "04:00+0300", "05:00+0300"],
        ["02:00+0300", "03:00+0300", "04:00+0200", "05:00+0200"],
    ]


@given(schedules, moments)
def test_the_next_firing_is_always_later_and_nothing_lies_in_between(schedule: Schedule, moment: datetime) -> None:
    fires = schedule.next_after(moment)

    assert fires > moment
    assert schedule.next_after(fires - timedelta(microseconds=1)) == fires
    assert schedule.next_after(moment + (fires - moment) / 2) == fires


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "daily",
        "@daily",
        "* * * *",
        "60 * * * *",
        "* 24 * * *",
        "0 0 31 2 *",
        "*/0 * * * *",
        "5-1 * * * *",
        "* * * * 5L/2",
        "* * * * * * *",
        "９ * * * *",
        "9" * 5000 + " * * * *",
    ],
)
def test_a_bad_expression_is_refused_with_an_example(expression: str) -> None:
    with pytest.raises(UsageError, match=r'expression .*"0 3 \* \* \*"'):
        Cron(expression)


def test_an_expression_that_never_fires_is_refused() -> None:
    with pytest.raises(UsageError, match="never fires"):
        Cron("0 0 */31 * SUN#5")


@given(st.lists(st.text("0123456789*/-,#LWMONJAN", min_size=1, max_size=6), min_size=4, max_size=7).map(" ".join))
def test_any_text_is_a_schedule_that_fires_or_a_usage_error(expression: str) -> None:
    try:
        cron = Cron(expression, "Europe/Helsinki")
    except UsageError:
        return
    assert cron.next_after(NOON) > NOON


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "", "Europe", "../etc/passwd", "/etc/passwd", "UTC+2", "a\0b"])
def test_an_unknown_time_zone_is_refused_with_an_example(zone: str) -> None:
    with pytest.raises(UsageError, match=r'timezone .*"Europe/Helsinki"'):
        Cron("0 3 * * *", zone)


def test_a_moment_without_a_time_zone_is_refused() -> None:
    for schedule in (HOURLY, Every("1h")):
        with pytest.raises(UsageError, match="no time zone"):
            schedule.next_after(datetime(2025, 6, 1))  # noqa: DTZ001


def test_an_interval_is_aligned_to_the_epoch_whenever_it_is_asked() -> None:
    assert Every("15m").next_after(NOON + timedelta(minutes=7)) == NOON + timedelta(minutes=15)
    assert Every("15m").next_after(NOON) == NOON + timedelta(minutes=15)
    assert Every("7s").next_after(datetime(1970, 1, 1, tzinfo=UTC)) == datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC)
    assert Every("1h") == Every(3600)


@pytest.mark.parametrize("interval", [0, "999ms", -5, "often"])
def test_an_interval_below_a_second_is_refused(interval: float | str) -> None:
    with pytest.raises(UsageError, match="interval"):
        Every(interval)


@pytest.mark.parametrize("catch_up", CatchUp)
def test_nothing_fires_before_its_time(catch_up: CatchUp) -> None:
    assert due(HOURLY, NOON, NOON - timedelta(microseconds=1), catch_up) == Firing((), NOON)


@pytest.mark.parametrize("catch_up", CatchUp)
@pytest.mark.parametrize("late", [timedelta(0), timedelta(seconds=1), timedelta(minutes=1)])
def test_a_firing_on_time_is_made_under_every_policy(catch_up: CatchUp, late: timedelta) -> None:
    assert due(HOURLY, NOON, NOON + late, catch_up) == Firing((NOON,), NOON + HOUR)


def test_missed_firings_are_dropped_when_skipping() -> None:
    late = timedelta(minutes=1, microseconds=1)

    assert due(HOURLY, NOON, NOON + late, CatchUp.SKIP) == Firing((), NOON + HOUR)
    assert due(HOURLY, NOON, NOON + 5 * HOUR + late, CatchUp.SKIP) == Firing((), NOON + 6 * HOUR)
    assert due(HOURLY, NOON, NOON + 5 * HOUR, CatchUp.SKIP) == Firing((NOON + 5 * HOUR,), NOON + 6 * HOUR)
    assert due(HOURLY, NOON, NOON + late, CatchUp.SKIP, grace=HOUR) == Firing((NOON,), NOON + HOUR)


def test_by_default_one_firing_stands_for_all_that_were_missed() -> None:
    now = NOON + 5 * HOUR + timedelta(minutes=20)

    assert due(HOURLY, NOON, now) == Firing((NOON + 5 * HOUR,), NOON + 6 * HOUR)


def test_each_missed_firing_is_made_when_all_are_wanted() -> None:
    now = NOON + 2 * HOUR + timedelta(minutes=20)

    assert due(HOURLY, NOON, now, CatchUp.ALL) == Firing((NOON, NOON + HOUR, NOON + 2 * HOUR), NOON + 3 * HOUR)


def test_all_missed_firings_come_in_bounded_portions_and_none_is_lost() -> None:
    now, next_at = NOON + 9 * HOUR, NOON
    made: list[datetime] = []
    while (firing := due(HOURLY, next_at, now, CatchUp.ALL, limit=4)).times:
        assert len(firing.times) <= 4
        made += firing.times
        next_at = firing.next_at

    assert made == [NOON + n * HOUR for n in range(10)]
    assert next_at == NOON + 10 * HOUR


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="limit 0"):
        due(HOURLY, NOON, NOON, CatchUp.ALL, limit=0)


@given(schedules, moments, st.integers(0, 40), st.floats(0, 0.99))
def test_the_one_firing_is_the_latest_that_is_due(
    schedule: Schedule, start: datetime, missed: int, part: float
) -> None:
    latest = first = schedule.next_after(start)
    for _ in range(missed):
        latest = schedule.next_after(latest)
    following = schedule.next_after(latest)

    assert due(schedule, first, latest + (following - latest) * part) == Firing((latest,), following)


@pytest.mark.parametrize(
    ("expression", "latest", "following"),
    [
        ("* * * * * *", datetime(2034, 12, 1, tzinfo=UTC), datetime(2034, 12, 1, 0, 0, 1, tzinfo=UTC)),
        ("* * * 1 *", datetime(2034, 1, 31, 23, 59, tzinfo=UTC), datetime(2035, 1, 1, tzinfo=UTC)),
    ],
)
def test_years_of_missed_firings_are_caught_up_without_counting_them(
    expression: str, latest: datetime, following: datetime
) -> None:
    calls = 0

    class Counted(Cron):
        def next_after(self, moment: datetime) -> datetime:
            nonlocal calls
            calls += 1
            return Cron.next_after(self, moment)

    schedule = Counted(expression)

    firing = due(schedule, datetime(2025, 1, 1, tzinfo=UTC), datetime(2034, 12, 1, tzinfo=UTC))

    assert firing == Firing((latest,), following)
    assert calls < 100


def test_a_firing_that_is_due_at_this_very_moment_is_made() -> None:
    first = datetime(2026, 1, 1, 12, tzinfo=UTC)
    now = first + timedelta(minutes=2)
    firing = due(Every("1m"), first, now, CatchUp.ALL)
    assert firing.times == (first, first + timedelta(minutes=1), now)
    assert firing.next_at == now + timedelta(minutes=1)


def test_a_limit_of_one_makes_one_and_by_default_a_hundred_are_made() -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    now = first + timedelta(days=1)
    assert due(Every("1m"), first, now, CatchUp.ALL, 1) == Firing((first,), first + timedelta(minutes=1))
    assert len(due(Every("1m"), first, now, CatchUp.ALL).times) == 100
