from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.duration import LONGEST, brief, duration
from dutiful.core.errors import UsageError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("30s", timedelta(seconds=30)),
        ("2m", timedelta(minutes=2)),
        ("1h30m", timedelta(minutes=90)),
        ("1h 30m", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        (" 1d2h3m4s5ms ", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
        ("0s", timedelta(0)),
        (90, timedelta(seconds=90)),
        (0.25, timedelta(milliseconds=250)),
        (timedelta(hours=1), timedelta(hours=1)),
    ],
)
def test_a_length_of_time_is_read_as_people_write_it(written: timedelta | float | str, meant: timedelta) -> None:
    assert duration(written) == meant


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        " ",
        "90",
        "2 m",
        "m",
        "30m1h",
        "1m1m",
        "-5s",
        "+5s",
        "1e3s",
        "5 minutes",
        "1,5h",
        "٣s",
        "5S",
        ".5s",
        "9" * 5000 + "s",
        -1,
        float("nan"),
        float("inf"),
        1e300,
        True,
        None,
        b"5s",
        timedelta(seconds=-1),
        LONGEST + timedelta(seconds=1),
    ],
)
def test_what_is_no_length_of_time_is_refused_with_examples(wrong: object) -> None:
    with pytest.raises(UsageError) as refusal:
        duration(wrong, "timeout")  # type: ignore[arg-type]

    assert str(refusal.value).startswith(f"timeout {repr(wrong)[:60]}")
    assert '"1h30m"' in str(refusal.value)
    assert len(str(refusal.value)) < 300


@given(st.integers(0, 36_000), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_units_add_up(days: int, hours: int, minutes: int, seconds: int, milliseconds: int) -> None:
    assert duration(f"{days}d{hours}h{minutes}m{seconds}s{milliseconds}ms") == timedelta(
        days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
    )


@given(st.timedeltas(timedelta(0), LONGEST))
def test_reading_twice_changes_nothing(length: timedelta) -> None:
    assert duration(duration(length)) == length


def test_the_error_for_a_text_shows_texts_and_that_for_others_all_forms() -> None:
    with pytest.raises(UsageError) as text:
        duration("soon", name="")
    with pytest.raises(UsageError) as number:
        duration(-1.0, "delay")
    assert str(text.value).startswith("'soon' is not a length of time") and str(text.value).endswith('or "7d".')
    assert str(number.value).endswith("as a number of seconds, or as a timedelta.")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.35, "350ms"),
        (0.999, "999ms"),
        (1, "1s"),
        (2.5, "2.5s"),
        (9.94, "9.9s"),
        (9.95, "10s"),
        (59.4, "59s"),
        (59.6, "1m"),
        (61, "1m1s"),
        (3_599, "59m59s"),
        (3_600, "1h"),
        (5_400, "1h30m"),
        (86_399, "23h59m"),
        (86_400, "1d"),
        (90_000, "1d1h"),
        (86_400 + 3_599, "1d"),
        (7 * 86_400 + 59, "7d"),
        (-90, "1m30s"),
    ],
)
def test_a_length_of_time_is_shown_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert brief(timedelta(seconds=seconds)) == text


def test_a_century_is_the_longest_and_still_a_length_of_time() -> None:
    assert duration("36525d") == LONGEST == timedelta(days=36_525)


def test_what_is_shown_of_a_wrong_value_has_a_limit() -> None:
    for length, shown in ((58, repr("x" * 58)), (59, repr("x" * 59)[:60] + "…")):
        with pytest.raises(UsageError) as refusal:
            duration("x" * length)
        assert str(refusal.value).startswith(f"duration {shown} is not")
