import math
import pickle
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.errors import UsageError
from dutiful.core.retry import Backoff, Exponential, Fixed, Jitter, Linear, Retry, Uniform

FIRST_FOUR = range(1, 5)
FIRST_FIVE = range(1, 6)


def lowest(low: float, high: float) -> float:
    return low


def highest(low: float, high: float) -> float:
    return high


def seconds(backoff: Backoff, attempts: range, uniform: Uniform = lowest) -> list[float]:
    return [backoff.after(attempt, uniform).total_seconds() for attempt in attempts]


class BusyError(Exception): ...


class VeryBusyError(BusyError): ...


class RefusedError(VeryBusyError): ...


@pytest.mark.req("L52", "L54")
def test_by_default_the_delay_doubles_from_one_second_and_jitter_adds_up_to_a_tenth() -> None:
    assert seconds(Exponential(), range(1, 4)) == [1, 2, 4]
    assert seconds(Exponential(), range(1, 4), highest) == pytest.approx([1.1, 2.2, 4.4])


@pytest.mark.req("L54")
@given(st.randoms(use_true_random=False))
def test_the_third_delay_lies_between_4000_and_4400_ms(random: object) -> None:
    uniform: Uniform = random.uniform  # type: ignore[attr-defined]
    delay = Exponential("1000ms", jitter=Jitter(1.0, 1.1)).after(3, uniform)

    assert timedelta(milliseconds=4000) <= delay <= timedelta(milliseconds=4400)


@pytest.mark.req("L53", "W61")
@pytest.mark.parametrize("uniform", [lowest, highest])
def test_jitter_never_passes_the_cap(uniform: Uniform) -> None:
    assert seconds(Exponential(), range(10, 12), uniform) == [300, 300]
    assert seconds(Linear("4m", jitter=Jitter(1.0, 2.0)), range(2, 4), uniform) == [300, 300]
    assert Exponential("280s", jitter=Jitter(0.8, 1.2)).after(1, highest) == timedelta(minutes=5)


def test_the_cap_can_be_set() -> None:
    assert seconds(Exponential("1s", cap="60s"), range(6, 9), highest) == pytest.approx([35.2, 60, 60])


@pytest.mark.req("W57", "W60")
def test_powers_of_two_within_a_fifth_can_be_expressed() -> None:
    backoff = Exponential("2s", jitter=Jitter(0.8, 1.2))

    assert seconds(backoff, FIRST_FIVE) == pytest.approx([0.8 * 2**n for n in FIRST_FIVE])
    assert seconds(backoff, FIRST_FIVE, highest) == pytest.approx([1.2 * 2**n for n in FIRST_FIVE])


@pytest.mark.req("W59", "W62")
def test_a_class_of_errors_may_have_a_base_of_its_own() -> None:
    retry = Retry(max_attempts=6, per_error={BusyError: Exponential("60s", jitter=Jitter(1, 1))})

    assert [retry.delay_after(n, BusyError, lowest) for n in FIRST_FOUR] == [
        timedelta(seconds=s) for s in (60, 120, 240, 300)
    ]
    assert retry.delay_after(1, OSError, lowest) == timedelta(seconds=1)


@pytest.mark.req("J45")
def test_backoff_may_be_fixed_linear_or_exponential() -> None:
    assert seconds(Fixed("5s"), FIRST_FOUR, highest) == [5, 5, 5, 5]
    assert seconds(Linear("5s"), FIRST_FOUR, highest) == [5, 10, 15, 20]
    assert seconds(Linear("5s", "1s"), FIRST_FOUR, highest) == [5, 6, 7, 8]
    assert seconds(Exponential("5s", 3, jitter=Jitter(1, 1)), FIRST_FOUR, highest) == [5, 15, 45, 135]


def test_a_fixed_delay_may_be_longer_than_the_default_cap() -> None:
    assert Fixed("2h", jitter=Jitter(0.5, 1.5)).after(1, highest) == timedelta(hours=3)


@pytest.mark.req("J43")
def test_max_attempts_count_the_first_run() -> None:
    retry = Retry()

    delays = [retry.delay_after(attempt, ValueError, lowest) for attempt in range(1, 7)]

    assert delays == [timedelta(seconds=s) for s in (1, 2, 4, 8)] + [None, None]
    assert Retry(max_attempts=1).delay_after(1, ValueError, lowest) is None


def test_a_job_may_bring_a_number_of_attempts_of_its_own() -> None:
    assert Retry().delay_after(5, None, lowest, max_attempts=6) == timedelta(seconds=16)
    assert Retry().delay_after(1, None, lowest, max_attempts=1) is None


@pytest.mark.req("W58")
def test_an_error_may_never_be_retried() -> None:
    retry = Retry(per_error={ValueError: None})

    assert retry.delay_after(1, ValueError, lowest) is None
    assert retry.delay_after(1, UnicodeError, lowest, timedelta(seconds=1)) is None
    assert retry.delay_after(1, KeyError, lowest) == timedelta(seconds=1)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_nearest_class_of_an_error_decides_whatever_the_order(reverse: bool) -> None:
    rules: list[tuple[type[BaseException], Backoff | None]] = [
        (Exception, None),
        (BusyError, Fixed(7)),
        (VeryBusyError, Fixed(9)),
    ]
    retry = Retry(per_error=dict(reversed(rules) if reverse else rules))

    assert retry.delay_after(1, RefusedError, lowest) == timedelta(seconds=9)
    assert retry.delay_after(1, VeryBusyError, lowest) == timedelta(seconds=9)
    assert retry.delay_after(1, BusyError, lowest) == timedelta(seconds=7)
    assert retry.delay_after(1, OSError, lowest) is None


def test_a_failure_without_an_exception_follows_the_general_backoff() -> None:
    assert Retry(per_error={BaseException: None}).delay_after(1, None, lowest) == timedelta(seconds=1)


@pytest.mark.req("W62")
def test_retry_after_replaces_the_delay_and_may_pass_the_cap_but_not_the_attempts() -> None:
    retry = Retry(max_attempts=2)

    assert retry.delay_after(1, None, highest, timedelta(hours=2)) == timedelta(hours=2)
    assert retry.delay_after(1, None, highest, timedelta(0)) == timedelta(0)
    assert retry.delay_after(2, None, highest, timedelta(hours=2)) is None


def test_a_mad_retry_after_stays_within_dates() -> None:
    assert Retry().delay_after(1, None, highest, timedelta(seconds=-5)) == timedelta(0)
    assert Retry().delay_after(1, None, highest, timedelta.max) == timedelta(days=36_525)


@pytest.mark.parametrize("uniform", [lowest, highest])
@pytest.mark.parametrize(
    "backoff", [Exponential, lambda: Exponential(jitter=Jitter(0, 1)), lambda: Linear("100d", cap="36525d")]
)
def test_ten_thousand_attempts_do_not_overflow(backoff: Callable[[], Backoff], uniform: Uniform) -> None:
    delay = backoff().after(10_000, uniform)

    assert delay in (timedelta(0), timedelta(minutes=5), timedelta(days=36_525))


@given(
    st.floats(0.001, 1e9), st.floats(1, 1e300), st.integers(1, 10**6), st.floats(0, 2), st.floats(2, 1e6), st.booleans()
)
def test_a_delay_always_lies_between_nothing_and_the_cap(
    base: float, factor: float, attempt: int, low: float, high: float, long: bool
) -> None:
    cap = timedelta(seconds=base * 2)
    backoff = Exponential(base, factor, cap=cap, jitter=Jitter(low, high))

    assert timedelta(0) <= backoff.after(attempt, highest if long else lowest) <= cap


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Retry(max_attempts=0), "max_attempts 0 "),
        (lambda: Retry(max_attempts=2.5), "max_attempts 2.5 "),  # type: ignore[arg-type]
        (lambda: Retry(backoff="5s"), "backoff '5s' .*Fixed"),  # type: ignore[arg-type]
        (lambda: Retry(backoff=Fixed), "backoff .*Fixed"),  # type: ignore[arg-type]
        (lambda: Retry(per_error={"ValueError": None}), "per_error has 'ValueError'"),  # type: ignore[dict-item]
        (lambda: Retry(per_error={ValueError: 5}), r"per_error\[ValueError\] 5 "),  # type: ignore[dict-item]
        (lambda: Fixed(-1), "delay -1 "),
        (lambda: Fixed("soon"), "delay 'soon' "),
        (lambda: Linear("1s", -1), "step -1 "),
        (lambda: Linear("10m"), "cap 0:05:00 is below base 0:10:00"),
        (lambda: Exponential(0), "base 0 never grows"),
        (lambda: Exponential(factor=0.5), "factor 0.5 "),
        (lambda: Exponential(factor=math.nan), "factor nan "),
        (lambda: Exponential("10m"), "cap 0:05:00 is below base 0:10:00"),
        (lambda: Exponential(cap="forever"), "cap 'forever' "),
        (lambda: Jitter(1.2, 0.8), "jitter 1.2–0.8 "),
        (lambda: Jitter(-0.1, 1), "jitter -0.1–1 "),
        (lambda: Jitter(1, math.inf), "jitter 1–inf "),
        (lambda: Jitter(math.nan, 1), "jitter nan–1 "),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_the_name_of_its_field(
    make: Callable[[], object], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        make()


def test_policies_are_values() -> None:
    assert Fixed("5s") == Fixed(5) == Fixed(timedelta(seconds=5))
    assert Retry(per_error={BusyError: Fixed(1)}) == Retry(per_error={BusyError: Fixed("1s")})
    assert Retry(per_error={BusyError: None}) != Retry()
    assert len({Retry(), Retry(max_attempts=5), Retry(max_attempts=4)}) == 2
    assert pickle.loads(pickle.dumps(Retry(per_error={OSError: Linear(3)}))) == Retry(per_error={OSError: Linear("3s")})


def test_a_policy_does_not_change_with_the_dict_it_was_made_of() -> None:
    rules: dict[type[BaseException], Backoff | None] = {ValueError: None}
    retry = Retry(per_error=rules)

    rules.clear()

    assert retry.delay_after(1, ValueError, lowest) is None
