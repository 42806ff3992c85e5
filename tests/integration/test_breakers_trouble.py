"""What a call says of its service, and breakers whose store does not answer."""

import asyncio
import urllib.error
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.message import Message
from typing import Any

import pytest
from working import eventually, final, working

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
from dutiful.core.breaker import Entry, Sign
from dutiful.core.errors import JobCancelled
from dutiful.core.outcome import Cancelled, Lost, Partial, Released, Snoozed, TimeoutExceeded
from dutiful.worker import breakers
from dutiful.worker.ending import sign_of, sign_of_error, until_it_may_call
from dutiful.worker.slot import Slot, Stop

sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
ERRORS: list[tuple[Callable[[], BaseException], Stop | None, Sign]] = [
    (lambda: ConnectionRefusedError(), None, Sign.BAD),
    (lambda: TimeoutError(), None, Sign.BAD),
    (lambda: RuntimeError("anything"), None, Sign.BAD),
    (lambda: Transient("busy"), None, Sign.BAD),
    (lambda: RateLimited(), None, Sign.BAD),
    (lambda: http_error(503), None, Sign.BAD),
    (lambda: ItemsFailed("all of them"), None, Sign.BAD),
    (lambda: ExceptionGroup("both", [ConnectionError(), TimeoutError()]), None, Sign.BAD),
    (lambda: http_error(404), None, Sign.NEUTRAL),
    (lambda: LookupError("by the policy"), None, Sign.NEUTRAL),
    (lambda: PayloadInvalid("no such field"), None, Sign.NEUTRAL),
    (lambda: Fail("never"), None, Sign.NEUTRAL),
    (lambda: Snooze("1m"), None, Sign.NEUTRAL),
    (lambda: Cancel("not wanted"), None, Sign.NEUTRAL),
    (lambda: Skip("nothing to do"), None, Sign.NEUTRAL),
    (lambda: ExceptionGroup("both", [ConnectionError(), Cancel("not wanted")]), None, Sign.NEUTRAL),
    (lambda: JobCancelled("another one, whose result it waited for"), None, Sign.NEUTRAL),
    (lambda: barred(), None, Sign.UNCLEAR),
    (lambda: StoreUnavailable("our own database"), None, Sign.UNCLEAR),
    (lambda: LockLost("our own lock"), None, Sign.UNCLEAR),
    (lambda: ClaimLost("no longer ours"), None, Sign.UNCLEAR),
    (lambda: asyncio.CancelledError(), None, Sign.UNCLEAR),
    (lambda: SystemExit(1), None, Sign.UNCLEAR),
    (lambda: asyncio.CancelledError(), Stop.TIMEOUT, Sign.BAD),
    (lambda: TimeoutExceeded("in a thread"), Stop.TIMEOUT, Sign.BAD),
    (lambda: asyncio.CancelledError(), Stop.CANCEL, Sign.UNCLEAR),
    (lambda: JobCancelled("in a thread"), Stop.CANCEL, Sign.UNCLEAR),
    (lambda: Cancel("so be it"), Stop.CANCEL, Sign.UNCLEAR),
    (lambda: asyncio.CancelledError(), Stop.SHUTDOWN, Sign.UNCLEAR),
    (lambda: ClaimLost("in a thread"), Stop.SHUTDOWN, Sign.UNCLEAR),
    (lambda: asyncio.CancelledError(), Stop.LOST, Sign.UNCLEAR),
]


def http_error(status: int) -> BaseException:
    return urllib.error.HTTPError("http://example.com", status, "no", Message(), None)


def barred() -> BreakerOpen:
    return BreakerOpen("another", datetime.now(UTC), timedelta(seconds=1))


@pytest.mark.req("L48")
@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_only_what_may_be_the_services_fault_counts_against_it(number: int) -> None:
    make, stop, sign = ERRORS[number]
    slot = Slot("here")
    slot.stop = stop
    error = make()
    assert sign_of_error(error, slot, Retry(per_error={LookupError: None})) is sign, repr(error)


def test_a_block_that_came_to_its_end_was_good_however_late() -> None:
    slot = Slot("here")
    slot.stop = Stop.TIMEOUT
    assert sign_of_error(None, slot, Retry()) is Sign.GOOD


def test_an_attempt_that_completes_with_errors_speaks_neither_for_the_service_nor_against_it() -> None:
    assert sign_of(Partial(None, ({"type": "ConnectionError", "message": "down"},)), None) is Sign.NEUTRAL


def test_an_attempt_that_was_cut_short_says_nothing() -> None:
    assert sign_of(Cancelled("by its handler"), None) is Sign.NEUTRAL
    assert sign_of(Cancelled("while running"), Stop.CANCEL) is Sign.UNCLEAR
    assert sign_of(Snoozed(timedelta(hours=1)), None) is Sign.NEUTRAL
    assert sign_of(until_it_may_call(barred()), None) is Sign.UNCLEAR
    assert {sign_of(Released(), None), sign_of(Lost(), Stop.LOST)} == {Sign.UNCLEAR}


@sqlite
@pytest.mark.parametrize("way", ["block", "declared", "thread"])
async def test_a_store_that_does_not_answer_makes_no_good_call_a_failure(
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
        client.store.leave_breaker = gone  # type: ignore[method-assign]
        async with working(app, client):
            job = await final(app, await app.enqueue(way))
    assert (job.state, job.result, job.attempt) == (State.COMPLETED, "well", 1)
    assert "could not be stored: it is away" in caplog.text


@sqlite
async def test_a_store_that_hangs_holds_up_a_block_for_a_while_only(
    app: Dutiful, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakers, "PATIENCE", 0.05)

    @app.job
    async def call(ctx: Context) -> str:
        async with ctx.breaker("grid"):
            return "well"

    async def hang(*args: Any, **kwargs: Any) -> Any:
        await asyncio.Event().wait()

    async with app.opened() as client:
        client.store.leave_breaker = hang  # type: ignore[method-assign]
        async with working(app, client):
            assert (await final(app, await call.enqueue())).result == "well"
    assert "takes long to hear" in caplog.text


@sqlite
async def test_a_store_that_is_away_when_it_is_asked_costs_an_attempt_by_the_policy(app: Dutiful) -> None:
    asked: list[str] = []

    @app.job(retry=Retry(max_attempts=2, backoff=Fixed("0s")))
    async def call(ctx: Context) -> int:
        async with ctx.breaker("grid"):
            return ctx.attempt

    async with app.opened() as client:
        enter = client.store.enter_breaker

        async def away_once(name: str, *args: Any, **kwargs: Any) -> Any:
            asked.append(name)
            if len(asked) == 1:
                raise StoreUnavailable("it is away")
            return await enter(name, *args, **kwargs)

        client.store.enter_breaker = away_once  # type: ignore[method-assign]
        async with working(app, client):
            assert (await final(app, await call.enqueue())).result == 2


@sqlite
async def test_who_is_let_in_when_nobody_waits_for_it_any_more_gives_the_probes_place_back(app: Dutiful) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    left: list[tuple[Entry, Sign]] = []

    @app.job
    async def call(ctx: Context) -> None:
        async with ctx.breaker("grid"):
            raise AssertionError("cancelled before it began")

    async def slow(*args: Any, **kwargs: Any) -> Any:
        asked.set()
        await answer.wait()
        return Entry(2, probe=True)

    async def leave(name: str, policy: Any, token: Any, entry: Entry, sign: Sign, **kwargs: Any) -> Any:
        left.append((entry, sign))
        raise StoreUnavailable("never mind")

    async def has_left() -> bool:
        return bool(left)

    async with app.opened() as client:
        client.store.enter_breaker = slow  # type: ignore[method-assign]
        client.store.leave_breaker = leave  # type: ignore[method-assign]
        async with working(app, client):
            job = await call.enqueue()
            await asked.wait()
            await job.cancel()
            assert (await final(app, job)).state is State.CANCELLED
            answer.set()
            await eventually(has_left)
    assert left == [(Entry(2, probe=True), Sign.UNCLEAR)]
