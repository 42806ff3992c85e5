from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.errors import UsageError
from dutiful.core.maintenance_window import MaintenanceWindow, first_outside

SUNDAY = datetime(2026, 11, 15, tzinfo=UTC)
NIGHT = MaintenanceWindow.parse("0 1 * * SUN for 4h")
HOUR = timedelta(hours=1)


@pytest.mark.req("D113")
@pytest.mark.parametrize(
    ("hour", "outside"),
    [(0.99, 0.99), (1, 5), (2, 5), (4.99, 5), (5, 5)],
    ids=["before", "at its start", "within", "just before its end", "at its end"],
)
def test_a_window_moves_only_what_falls_in_it_to_its_end(hour: float, outside: float) -> None:
    assert first_outside([NIGHT], SUNDAY + hour * HOUR) == SUNDAY + outside * HOUR


def test_windows_that_overlap_or_follow_one_another_count_as_one() -> None:
    windows = [NIGHT, MaintenanceWindow.parse("30 4 * * * for 1h"), MaintenanceWindow.parse("30 5 * * SUN for 30m")]

    assert first_outside(windows, SUNDAY + 2 * HOUR) == SUNDAY + 6 * HOUR
    assert first_outside([], SUNDAY) == SUNDAY


def test_a_window_longer_than_the_time_between_its_starts_is_one_window() -> None:
    assert first_outside([MaintenanceWindow.parse("0 1-3 * * SUN for 2h")], SUNDAY + HOUR) == SUNDAY + 5 * HOUR


def test_a_window_may_be_in_a_time_zone() -> None:
    window = MaintenanceWindow.parse("0 1 * * SUN for 1h in Europe/Helsinki")  # two hours ahead in November

    assert first_outside([window], SUNDAY - HOUR) == SUNDAY
    assert first_outside([window], SUNDAY + HOUR) == SUNDAY + HOUR


@given(st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_the_time_found_is_in_no_window_and_never_earlier(moment: datetime) -> None:
    windows = [NIGHT, MaintenanceWindow.parse("*/20 * * * * for 7m")]
    found = first_outside(windows, moment)

    assert found >= moment and all(window.end_at(found) is None for window in windows)
    assert found == moment or any(window.end_at(moment) is not None for window in windows)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "must be a cron expression and a length"),
        ("0 1 * * SUN", "must be a cron expression and a length"),
        ("0 1 * * SUN for", "must be a cron expression and a length"),
        ("0 1 * * SUN for a while", "is not a length of time"),
        ("0 1 * * SUN for 0s", "has no length"),
        ("nightly for 4h", "is not a cron expression"),
        ("0 1 * * SUN for 4h in Atlantis", "timezone 'Atlantis' is unknown"),
    ],
)
def test_a_text_that_is_no_window_is_refused_with_an_example(text: str, reported: str) -> None:
    with pytest.raises(UsageError, match=reported):
        MaintenanceWindow.parse(text)


def test_windows_without_a_gap_are_refused() -> None:
    with pytest.raises(UsageError, match="leave no time"):
        first_outside([MaintenanceWindow.parse("* * * * * for 2m")], SUNDAY)


def test_a_thousand_windows_in_a_row_are_tried() -> None:
    with pytest.raises(UsageError, match="leave no time before 2026-11-15 16:40:00"):
        first_outside([MaintenanceWindow.parse("* * * * * for 1m")], SUNDAY)
