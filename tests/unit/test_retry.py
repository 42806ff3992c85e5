import math
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.errors import UsageError
from dutiful.core.outcome import RateLimited
from dutiful.core.retry.backoff import Backoff, Exponential, Fixed, Jitter, Linear, Uniform
from dutiful.core.retry.classify import Classification, ErrorClass
from dutiful.core.retry.policy import BRISK, PATIENT, Classifier, Retry

FIRST_FOUR = range(1, 5)
FIRST_FIVE = range(1, 6)


def lowest(low: float, high: float) -> float:
    return low


def middle(low: float, high: float) -> float:
    return (low + high) / 2


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


def delays(retry: Retry, error_class: ErrorClass, uniform: Uniform, attempts: int = 5) -> list[float | None]:
    """The delays after the first attempts, in seconds; with an attempt to spare, so that the last is seen too."""
    found = [
        retry.delay_after(n, None, uniform, error_class=error_class, max_attempts=attempts + 1)
        for n in range(1, attempts + 1)
    ]
    return [None if delay is None else delay.total_seconds() for delay in found]


@pytest.mark.req("W33", "W57", "W60")
@pytest.mark.parametrize("error_class", [ErrorClass.TRANSIENT, ErrorClass.RETRYABLE])
def test_the_patient_profile_waits_powers_of_two_within_a_fifth(error_class: ErrorClass) -> None:
    assert delays(PATIENT, error_class, middle) == [2, 4, 8, 16, 32]
    assert delays(PATIENT, error_class, lowest) == pytest.approx([1.6, 3.2, 6.4, 12.8, 25.6])
    assert delays(PATIENT, error_class, highest) == pytest.approx([2.4, 4.8, 9.6, 19.2, 38.4])


@pytest.mark.req("W33", "W59", "W60", "W61", "W62")
def test_the_patient_profile_leaves_alone_who_asked_us_to_slow_down() -> None:
    limited = ErrorClass.RATE_LIMITED
    assert delays(PATIENT, limited, middle) == [60, 120, 240, 300, 300]
    assert delays(PATIENT, limited, lowest) == pytest.approx([48, 96, 192, 300, 300])
    assert delays(PATIENT, limited, highest) == pytest.approx([72, 144, 288, 300, 300])


@pytest.mark.req("W58")
@pytest.mark.parametrize("retry", [BRISK, PATIENT, Retry(backoff=Fixed("1s"))])
def test_what_is_not_retryable_is_never_retried(retry: Retry) -> None:
    assert delays(retry, ErrorClass.NON_RETRYABLE, lowest) == [None] * 5
    asked = retry.delay_after(1, None, lowest, timedelta(seconds=1), error_class=ErrorClass.NON_RETRYABLE)
    assert asked is None


@pytest.mark.req("L52", "L53", "L54")
def test_the_brisk_profile_is_the_default_and_adds_up_to_a_tenth() -> None:
    assert Retry.named("brisk") == Retry()
    for error_class in (ErrorClass.TRANSIENT, ErrorClass.RETRYABLE):
        assert delays(BRISK, error_class, lowest) == [1, 2, 4, 8, 16]
        assert delays(BRISK, error_class, highest, 3) == pytest.approx([1.1, 2.2, 4.4])
        assert delays(BRISK, error_class, highest, 10)[-1] == 300


@pytest.mark.req("W62")
def test_who_asked_us_to_slow_down_is_not_asked_again_at_once_by_any_policy() -> None:
    limited = ErrorClass.RATE_LIMITED
    assert delays(Retry(), limited, lowest) == [60, 120, 240, 300, 300]
    assert delays(Retry(backoff=Fixed("100ms")), limited, lowest) == [60, 120, 240, 300, 300]
    assert delays(Retry(backoff=Fixed("1h")), limited, lowest) == [3600] * 5
    assert delays(Retry(by_class={limited: Fixed("1s")}), limited, lowest) == [1] * 5
    assert delays(Retry(by_class={limited: None}), limited, lowest) == [None] * 5


@pytest.mark.req("W62")
@given(
    st.sampled_from([BRISK, PATIENT]),
    st.sampled_from([c for c in ErrorClass if c is not ErrorClass.NON_RETRYABLE]),
    st.integers(1, 10**6),
    st.randoms(use_true_random=False),
    st.none() | st.timedeltas(timedelta(0), timedelta(days=1)),
)
def test_only_what_the_other_side_asks_for_passes_the_cap(
    retry: Retry, error_class: ErrorClass, attempt: int, random: Random, asked: timedelta | None
) -> None:
    delay = retry.delay_after(attempt, None, random.uniform, asked, error_class=error_class, max_attempts=10**7)
    assert delay is not None
    assert timedelta(0) < delay <= timedelta(minutes=5) if asked is None else delay == asked


def test_a_profile_is_taken_by_name_with_a_number_of_attempts_of_ones_own() -> None:
    assert Retry.named("patient") == PATIENT and PATIENT.max_attempts == 5
    assert Retry.named("patient", max_attempts=3) == replace(PATIENT, max_attempts=3)
    with pytest.raises(UsageError, match="no retry profile 'hasty'; there are: brisk, patient"):
        Retry.named("hasty")


@pytest.mark.req("W56", "W59", "W62")
def test_a_type_of_errors_may_have_a_base_of_its_own() -> None:
    retry = Retry(max_attempts=6, per_error={BusyError: Exponential("60s", jitter=Jitter(1, 1))})

    assert [retry.delay_after(n, BusyError, lowest) for n in FIRST_FOUR] == [
        timedelta(seconds=s) for s in (60, 120, 240, 300)
    ]
    assert retry.delay_after(1, OSError, lowest) == timedelta(seconds=1)


# --- what class an error is, by a policy


def test_a_policy_may_know_better_by_type_the_nearest_one_first() -> None:
    retry = Retry(classify={LookupError: ErrorClass.NON_RETRYABLE, KeyError: "transient"})  # type: ignore[dict-item]
    assert retry.classified(IndexError()).error_class is ErrorClass.NON_RETRYABLE
    assert retry.classified(KeyError()).error_class is ErrorClass.TRANSIENT
    assert retry.classified(TimeoutError()).error_class is ErrorClass.TRANSIENT


def test_a_policy_may_know_better_by_a_function_that_need_not_know_all() -> None:
    retry = Retry(classify=lambda error: ErrorClass.NON_RETRYABLE if "gone" in str(error) else None)
    assert retry.classified(TimeoutError("gone")).error_class is ErrorClass.NON_RETRYABLE
    assert retry.classified(TimeoutError("slow")).error_class is ErrorClass.TRANSIENT
    limited = RateLimited(retry_after="90")
    assert retry.classified(limited) == Classification(ErrorClass.RATE_LIMITED, timedelta(seconds=90))
    assert Retry(classify=lambda error: "transient").classified(limited).retry_after == timedelta(seconds=90)


def test_what_a_policy_says_of_errors_holds_for_causes_and_in_groups() -> None:
    retry = Retry(classify={LookupError: ErrorClass.NON_RETRYABLE}, per_error={ValueError: Fixed("7m"), OSError: None})
    wrapped, slow = RuntimeError("wrapped"), RuntimeError("wrapped")
    wrapped.__cause__, slow.__cause__ = KeyError(), ValueError()
    for never in (wrapped, ExceptionGroup("all", [KeyError(), IndexError()]), ExceptionGroup("all", [OSError()])):
        assert retry.classified(never).error_class is ErrorClass.NON_RETRYABLE
    for error in (slow, ExceptionGroup("all", [ValueError(), slow])):
        known = retry.classified(error)
        assert retry.delay_after(1, known.decided_by, lowest, error_class=known.error_class) == timedelta(minutes=7)
    assert retry.classified(ExceptionGroup("some", [KeyError(), ValueError()])).error_class is ErrorClass.RETRYABLE


@pytest.mark.parametrize("classify", [lambda error: 1 / 0, lambda error: "bad luck", lambda error: sys.exit(1)])
def test_a_classifier_that_fails_leaves_the_class_to_others(
    classify: Classifier, caplog: pytest.LogCaptureFixture
) -> None:
    assert Retry(classify=classify).classified(TimeoutError()).error_class is ErrorClass.TRANSIENT
    assert "classify of a retry policy failed" in caplog.text


def test_non_retryable_is_what_the_policy_never_retries() -> None:
    retry = Retry(per_error={TimeoutError: None, UsageError: Fixed("1s")})
    assert retry.classified(TimeoutError()).error_class is ErrorClass.NON_RETRYABLE
    assert retry.classified(UsageError("no")).error_class is ErrorClass.RETRYABLE
    assert retry.delay_after(1, UsageError, lowest, error_class=ErrorClass.NON_RETRYABLE) == timedelta(seconds=1)


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
        (lambda: Retry(by_class={"bad": None}), "by_class has 'bad', which is no error class: transient, "),  # type: ignore[dict-item]
        (lambda: Retry(by_class={ErrorClass.TRANSIENT: 5}), r"by_class\[transient\] 5 "),  # type: ignore[dict-item]
        (lambda: Retry(by_class={ErrorClass.NON_RETRYABLE: Fixed(1)}), "non_retryable .*never retried"),
        (lambda: Retry(classify={"ValueError": ErrorClass.TRANSIENT}), "classify has 'ValueError'"),  # type: ignore[dict-item]
        (lambda: Retry(classify={ValueError: "bad"}), "classify has 'bad'"),  # type: ignore[dict-item]
        (lambda: Retry(classify="transient"), "classify 'transient' "),  # type: ignore[arg-type]
        (lambda: Retry(classify=dict), "classify <class 'dict'> "),  # type: ignore[arg-type]
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
    assert Retry(by_class={ErrorClass.TRANSIENT: None}) != Retry()
    assert Retry(classify={OSError: ErrorClass.TRANSIENT}) != Retry()
    assert len({Retry(), Retry(max_attempts=5), Retry(max_attempts=4)}) == 2
    assert pickle.loads(pickle.dumps(PATIENT)) == PATIENT
    assert pickle.loads(pickle.dumps(Retry(per_error={OSError: Linear(3)}))) == Retry(per_error={OSError: Linear("3s")})


def test_a_policy_does_not_change_with_the_dict_it_was_made_of() -> None:
    rules: dict[type[BaseException], Backoff | None] = {ValueError: None}
    retry = Retry(per_error=rules)

    rules.clear()

    assert retry.delay_after(1, ValueError, lowest) is None
