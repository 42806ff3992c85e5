"""A worker's start, which waits for the store within its limit."""

from datetime import timedelta

import pytest

from dutiful.core.errors import StoreAway, StoreBusy, StoreUnavailable
from dutiful.observe.outage import OutageLog
from dutiful.worker.startup import StartLimit


class Start:
    def __init__(self, *errors: StoreUnavailable) -> None:
        self._errors = list(errors)

    async def __call__(self) -> str:
        if self._errors:
            raise self._errors.pop(0)
        return "started"


@pytest.mark.parametrize("error", [StoreAway("no answer"), StoreBusy("another transaction holds a lock")])
async def test_a_start_waits_for_a_store_that_is_away_or_locked(error: StoreUnavailable) -> None:
    waiting = StartLimit(timedelta(minutes=1))
    assert await waiting.wait_for(Start(error, error), OutageLog("a test")) == "started"


@pytest.mark.parametrize("error", [StoreAway("no answer"), StoreBusy("another transaction holds a lock")])
async def test_a_start_without_time_ends_with_the_first_error(error: StoreUnavailable) -> None:
    with pytest.raises(type(error)):
        await StartLimit(timedelta(0)).wait_for(Start(error), OutageLog("a test"))


async def test_a_start_without_time_for_a_store_that_is_away_may_wait_for_a_lock() -> None:
    limit = StartLimit(timedelta(0), busy=timedelta(minutes=1))
    locked, away = StoreBusy("another transaction holds a lock"), StoreAway("no answer")
    assert await limit.wait_for(Start(locked), OutageLog("a test")) == "started"
    with pytest.raises(StoreAway):
        await limit.wait_for(Start(locked, away), OutageLog("a test"))


async def test_an_error_that_waiting_does_not_mend_ends_a_start_at_once() -> None:
    with pytest.raises(StoreUnavailable, match="password"):
        await StartLimit(None).wait_for(Start(StoreUnavailable("a wrong password")), OutageLog("a test"))
