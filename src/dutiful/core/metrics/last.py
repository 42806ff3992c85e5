"""The error rate of a kind's last attempts, however long they took.

A kind that runs once a day never has enough attempts in a window of minutes. So the last ten count, or all of the
window if those are more; attempts that a kind has not had yet count as good.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from dutiful.core.metrics.catalogue import WINDOW_MINUTES

LAST = 10
WINDOW = timedelta(minutes=WINDOW_MINUTES)
PATIENCE = 2  # a kind has stopped running if it was silent for so many times its longest pause


class EndedAttempts(NamedTuple):
    """The attempts of a kind that ended in one minute."""

    minute: datetime  # when it began
    ended: int
    failed: int


class LastAttempts(NamedTuple):
    ended: int
    error_rate: float


def last_attempts(minutes: Sequence[EndedAttempts], now: datetime) -> LastAttempts | None:
    """Rates the last attempts of a kind, the newest first; None: it has stopped running.

    Failures within one window count as one, because they may be the retries of one job, unless there were at least LAST
    attempts in it.
    """
    since = now - WINDOW - timedelta(minutes=1)  # the minute in which the window began is part of it
    if not minutes or minutes[0].minute <= min(since, now - PATIENCE * _longest_pause(minutes)):
        return None
    count, failed, lately, failing = 0, 0, 0, list[datetime]()
    for minute, ended, bad in minutes:
        if minute > since:
            lately += ended
        elif count >= LAST:
            break
        count += ended
        failed += bad
        failing += [minute] if bad else []
    if lately < LAST and failing and failing[0] - failing[-1] < WINDOW:
        failed = 1
    return LastAttempts(count, failed / max(count, LAST))


def _longest_pause(minutes: Sequence[EndedAttempts]) -> timedelta:
    return max((later.minute - earlier.minute for later, earlier in pairwise(minutes)), default=timedelta(0))
