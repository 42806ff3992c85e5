"""How the end of a call counts for its service, and breakers whose store does not answer."""

import asyncio
import urllib.error
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.message import Message
from typing import Any

import pytest
from running_workers import eventually, final, working

from dutiful import (
    BreakerOpen,
    Cancel,
    ClaimLost,
    Context,
    Dutiful,
    Fail,
    Fixed,
    ItemsFailed,
    LockLost,
    PayloadInvalid,
    RateLimited,
    Retry,
    Skip,
    Snooze,
    State,
    StoreUnavailable,
    Transient,
)
from dutiful.core.breaker.state import CallResult, Entry
from dutiful.core.errors import JobCancelled
from dutiful.core.outcome import Cancelled, Lost, Partial, Released, Snoozed, TimeoutExceeded
from dutiful.worker.breakers import client as breaker_client
from dutiful.worker.executor.outcomes import breaker_result, breaker_result_of_error, snooze_for_breaker
from dutiful.worker.slots import Slot, StopReason

sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
ERRORS: list[tuple[Callable[[], BaseException], StopReason | None, CallResult]] = [
    (lambda: ConnectionRefusedError(), None, CallResult.BAD),
    (lambda: TimeoutError(), None, CallResult.BAD),
    (lambda: RuntimeError("anything"), None, CallResult.BAD),
    (lambda: Transient("busy"), None, CallResult.BAD),
    (lambda: RateLimited(), None, CallResult.BAD),
    (lambda: http_error(503), None, CallResult.BAD),
    (lambda: ItemsFailed("all of them"), None, CallResult.BAD),
    (lambda: ExceptionGroup("both", [ConnectionError(), TimeoutError()]), None, CallResult.BAD),
    (lambda: http_error(404), None, CallResult.NEUTRAL),
    (lambda: LookupError("by the policy"), None, CallResult.NEUTRAL),
    (lambda: PayloadInvalid("no such field"), None, CallResult.NEUTRAL),
    (lambda: Fail("never"), None, CallResult.NEUTRAL),
    (lambda: Snooze("1m"), None, CallResult.NEUTRAL),
    (lambda: Cancel("not wanted"), None, CallResult.NEUTRAL),
    (lambda: Skip("nothing to do"), None, CallResult.NEUTRAL),
    (lambda: ExceptionGroup("both", [ConnectionError(), Cancel("not wanted")]), None, CallResult.NEUTRAL),
    (lambda: JobCancelled("another one, whose result it waited for"), None, CallResult.NEUTRAL),
    (lambda: rejected(), None, CallResult.UNCLEAR),
    (lambda: StoreUnavailable("our own database"), None, CallResult.UNCLEAR),
    (lambda: LockLost("our own lock"), None, CallResult.UNCLEAR),
    (lambda: ClaimLost("no longer ours"), None, CallResult.UNCLEAR),
    (lambda: asyncio.CancelledError(), None, CallResult.UNCLEAR),
    (lambda: SystemExit(1), None, CallResult.UNCLEAR),
    (lambda: asyncio.CancelledError(), StopReason.TIMEOUT, CallResult.BAD),
    (lambda: TimeoutExceeded("in a thread"), StopReason.TIMEOUT, CallResult.BAD),
    (lambda: asyncio.CancelledError(), StopReason.CANCEL, CallResult.UNCLEAR),
    (lambda: JobCancelled("in a thread"), StopReason.CANCEL, CallResult.UNCLEAR),
    (lambda: Cancel("no use"), StopReason.CANCEL, CallResult.UNCLEAR),
    (lambda: asyncio.CancelledError(), StopReason.SHUTDOWN, CallResult.UNCLEAR),
    (lambda: ClaimLost("in a thread"), StopReason.SHUTDOWN, CallResult.UNCLEAR),
    (lambda: asyncio.CancelledError(), StopReason.LOST, CallResult.UNCLEAR),
]


def http_error(status: int) -> BaseException:
    return urllib.error.HTTPError("http://example.com", status, "no", Message(), None)


def rejected() -> BreakerOpen:
    return BreakerOpen("another", datetime.now(UTC), timedelta(seconds=1))


@pytest.mark.req("L48")
@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_only_errors_that_may_be_of_the_service_count_against_it(number: int) -> None:
    make, stop, result = ERRORS[number]
    slot = Slot("here")
    slot.stop = stop
    error = make()
    assert breaker_result_of_error(error, slot, Retry(per_error={LookupError: None})) is result, repr(error)


def test_a_block_that_ended_without_error_is_a_success_however_late() -> None:
    slot = Slot("here")
    slot.stop = StopReason.TIMEOUT
    assert breaker_result_of_error(None, slot, Retry()) is CallResult.GOOD


def test_an_attempt_that_completes_with_errors_is_neutral() -> None:
    assert breaker_result(Partial(None, ({"type": "ConnectionError", "message": "down"},)), None) is CallResult.NEUTRAL


def test_an_interrupted_attempt_is_unclear() -> None:
    assert breaker_result(Cancelled("by its handler"), None) is CallResult.NEUTRAL
    assert breaker_result(Cancelled("while running"), StopReason.CANCEL) is CallResult.UNCLEAR
    assert breaker_result(Snoozed(timedelta(hours=1)), None) is CallResult.NEUTRAL
    assert breaker_result(snooze_for_breaker(rejected()), None) is CallResult.UNCLEAR
    assert {breaker_result(Released(), None), breaker_result(Lost(), StopReason.LOST)} == {CallResult.UNCLEAR}


@sqlite
@pytest.mark.parametrize("way", ["block", "declared", "thread"])
async def test_a_successful_call_does_not_fail_because_the_store_does_not_answer(
    app: Dutiful, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    @app.job
    async def block(ctx: Context) -> str:
        async with ctx.breaker("grid"):
            return "well"

    @app.job
    def thread(ctx: Context) -> str:
        with ctx.breaker("grid"):
            return "well"

    @app.job(breaker="grid")
    async def declared() -> str:
        return "well"

    async def gone(*args: Any, **kwargs: Any) -> Any:
        raise StoreUnavailable("it is away")

    async with app.opened() as client:
        client.store.breakers.exit = gone  # type: ignore[method-assign]
        async with working(app, client):
            job = await final(app, await app.enqueue(way))
    assert (job.state, job.result, job.attempt) == (State.COMPLETED, "well", 1)
    assert "could not be stored: it is away" in caplog.text


@sqlite
async def test_a_store_that_hangs_delays_a_block_for_a_limited_time(
    app: Dutiful, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker_client, "REPORT_TIMEOUT", 0.05)

    @app.job
    async def call(ctx: Context) -> str:
        async with ctx.breaker("grid"):
            return "well"

    async def hang(*args: Any, **kwargs: Any) -> Any:
        await asyncio.Event().wait()

    async with app.opened() as client:
        client.store.breakers.exit = hang  # type: ignore[method-assign]
        async with working(app, client):
            assert (await final(app, await call.enqueue())).result == "well"
    assert "takes long to store" in caplog.text


@sqlite
async def test_a_store_that_is_unavailable_on_entry_costs_an_attempt(app: Dutiful) -> None:
    entered: list[str] = []

    @app.job(retry=Retry(max_attempts=2, backoff=Fixed("0s")))
    async def call(ctx: Context) -> int:
        async with ctx.breaker("grid"):
            return ctx.attempt

    async with app.opened() as client:
        enter = client.store.breakers.enter

        async def away_once(name: str, *args: Any, **kwargs: Any) -> Any:
            entered.append(name)
            if len(entered) == 1:
                raise StoreUnavailable("it is away")
            return await enter(name, *args, **kwargs)

        client.store.breakers.enter = away_once  # type: ignore[method-assign]
        async with working(app, client):
            assert (await final(app, await call.enqueue())).result == 2


@sqlite
async def test_an_entry_whose_caller_was_cancelled_frees_its_place(app: Dutiful) -> None:
    entered, answer = asyncio.Event(), asyncio.Event()
    left: list[tuple[Entry, CallResult]] = []

    @app.job
    async def call(ctx: Context) -> None:
        async with ctx.breaker("grid"):
            raise AssertionError("cancelled before it began")

    async def slow(*args: Any, **kwargs: Any) -> Any:
        entered.set()
        await answer.wait()
        return Entry(2, probe=True)

    async def leave(name: str, policy: Any, token: Any, entry: Entry, result: CallResult, **kwargs: Any) -> Any:
        left.append((entry, result))
        raise StoreUnavailable("never mind")

    async def has_left() -> bool:
        return bool(left)

    async with app.opened() as client:
        client.store.breakers.enter = slow  # type: ignore[method-assign]
        client.store.breakers.exit = leave  # type: ignore[method-assign]
        async with working(app, client):
            job = await call.enqueue()
            await entered.wait()
            await job.cancel()
            assert (await final(app, job)).state is State.CANCELLED
            answer.set()
            await eventually(has_left)
    assert left == [(Entry(2, probe=True), CallResult.UNCLEAR)]
