"""What a handler can raise to say how its attempt ended."""

from datetime import timedelta
from typing import Any

import pytest

from dutiful import UsageError
from dutiful.core.outcome import Cancel, RateLimited, RetryAfter, Skip, Snooze

HOUR = timedelta(hours=1)


def test_a_control_keeps_what_it_was_given_and_says_so() -> None:
    assert (Snooze("1h").delay, str(Snooze("1h"))) == (HOUR, "snoozed for 1:00:00")
    assert (Cancel("no use").reason, str(Cancel("no use"))) == ("no use", "no use")
    assert str(Cancel()) == "cancelled by its handler"
    assert (Skip("empty").reason, str(Skip("empty"))) == ("empty", "empty")
    later = RetryAfter("1h", "busy")
    assert (later.delay, later.retry_after, str(later)) == (HOUR, HOUR, "busy")
    assert str(RateLimited()) == "asked to slow down" and str(RetryAfter(1)) == "asked to retry later"
    with pytest.raises(UsageError):
        Snooze("soon")


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        (None, None),
        (HOUR, HOUR),
        (90, timedelta(seconds=90)),
        ("120", timedelta(seconds=120)),  # a header's text
        ("1h", HOUR),
        ("7d", timedelta(days=1)),
        (timedelta(days=7), timedelta(days=1)),
        (0, None),
        (-5, None),
        ("whenever", None),
    ],
)
def test_a_service_that_asks_for_fewer_calls_is_given_the_wait_that_can_be_read(asked: Any, wait: Any) -> None:
    limited = RateLimited("slow down", retry_after=asked)
    assert (limited.retry_after, str(limited)) == (wait, "slow down")
