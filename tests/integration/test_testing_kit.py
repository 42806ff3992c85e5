"""The kit for tests of applications: it must itself be trusted."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dutiful import (
    Cancel,
    Context,
    Dutiful,
    Fail,
    Fixed,
    Inject,
    OnConflict,
    PayloadInvalid,
    Retry,
    Snooze,
    State,
    Unique,
    UniqueConflict,
    UsageError,
)
from dutiful.core.outcome import Cancelled, Done, Failed, Snoozed, TimedOut
from dutiful.testing import Clock, app_on, inline

START = datetime(2030, 1, 1, 8, 0, tzinfo=UTC)


@pytest.fixture
def own() -> Iterator[Dutiful]:
    """An app whose own database is never to be opened."""
    yield Dutiful("postgresql://ada@127.0.0.1:1/nowhere")


# --- drain


async def test_drain_runs_what_is_due_and_what_that_enqueues(own: Dutiful) -> None:
    @own.job
    async def parent() -> str:
        await child.enqueue(n=7)
        return "done"

    @own.job
    def child(n: int) -> int:
        return n * n

    async with app_on(own) as kit:
        job = await parent.enqueue()
        ran = await kit.drain()
        assert [(r.kind, r.state, r.job.result) for r in ran] == [
            ("parent", State.COMPLETED, "done"),
            ("child", State.COMPLETED, 49),
        ]
        assert ran[1].job.parent_id == job.id
        assert await job.result() == "done"
        assert await kit.drain() == []


async def test_drain_goes_by_priority_and_then_by_arrival_whatever_the_queue(own: Dutiful) -> None:
    @own.job
    async def step(name: str) -> None: ...

    async with app_on(own) as kit:
        await step.options(queue="z").enqueue("first of z")
        await step.options(queue="a").enqueue("then a")
        await step.options(queue="z").enqueue("z again")
        await step.options(priority=5).enqueue("urgent")
        assert [ran.job.payload["name"] for ran in await kit.drain()] == ["urgent", "first of z", "then a", "z again"]


async def test_an_error_is_an_outcome_of_the_drain(own: Dutiful) -> None:
    @own.job(retry=Retry(max_attempts=2, backoff=Fixed("1h")))
    async def shaky() -> None:
        raise ValueError("no luck")

    async with app_on(own) as kit:
        await shaky.enqueue()
        (ran,) = await kit.drain()
        assert ran.state is State.SCHEDULED and isinstance(ran.outcome, Failed)
        assert ran.outcome.error["message"] == "no luck"


async def test_the_clock_is_moved_through_retries_and_delays_until_nothing_is_left(own: Dutiful) -> None:
    clock, seen = Clock(START), list[tuple[str, timedelta]]()

    @own.job(retry=Retry(max_attempts=3, backoff=Fixed("10m")))
    async def shaky() -> None:
        seen.append(("shaky", clock.now() - START))
        raise ValueError("again")

    @own.job
    async def later() -> None:
        seen.append(("later", clock.now() - START))

    async with app_on(own, clock=clock) as kit:
        await later.options(delay="15m").enqueue()
        await later.options(run_at=START + timedelta(days=2)).enqueue()
        await shaky.enqueue()
        ran = await kit.drain(advance=True)
        minutes = timedelta(minutes=1)
        assert seen == [
            ("shaky", 0 * minutes),
            ("shaky", 10 * minutes),
            ("later", 15 * minutes),
            ("shaky", 20 * minutes),
            ("later", timedelta(days=2)),
        ]
        assert [r.state for r in ran if r.kind == "shaky"] == [State.SCHEDULED, State.SCHEDULED, State.FAILED]
        assert clock.now() == START + timedelta(days=2)
        assert await kit.store.queries.check_places() == []


async def test_the_clock_is_moved_to_the_time_at_which_a_breaker_lets_a_probe_out(own: Dutiful) -> None:
    own.breaker("mail", failures=1, open_for="10m")
    down = [True]

    @own.job(retry=Retry(max_attempts=1))
    async def send(ctx: Context) -> None:
        async with ctx.breaker("mail"):
            if down and down.pop():
                raise ConnectionError("it is down")

    clock = Clock()
    began = clock.now()
    async with app_on(own, clock=clock) as kit:
        for _ in range(3):
            await send.enqueue()
        ran = await kit.drain(advance=True)

    states = [one.state for one in ran]
    assert states == [State.FAILED, State.BLOCKED, State.BLOCKED, State.COMPLETED, State.COMPLETED]
    assert clock.now() == began + timedelta(minutes=10)


async def test_drain_until_a_moment_makes_every_firing_on_the_way_and_stops_there(own: Dutiful) -> None:
    clock, fired = Clock(START), list[datetime]()

    @own.job
    async def report() -> None:
        fired.append(clock.now())

    own.schedule(report, "0 9 * * *")
    async with app_on(own, clock=clock) as kit:
        late = await report.options(delay="4d").enqueue()
        await kit.drain(until="3d")
        assert fired == [START + timedelta(days=n, hours=1) for n in range(3)]
        assert clock.now() == START + timedelta(days=3)
        record = await own.find(late.id)
        assert record is not None and record.state is State.SCHEDULED


async def test_outcomes_of_all_sorts_are_distinguished(own: Dutiful) -> None:
    @own.job
    async def ask(what: str) -> Any:
        match what:
            case "snooze":
                return Snooze("1h")
            case "cancel":
                raise Cancel("not wanted")
            case "fail":
                raise Fail("never")
        return what

    async with app_on(own) as kit:
        for what in ("snooze", "cancel", "fail", "done"):
            await ask.enqueue(what)
        ran = await kit.drain()
        assert [type(r.outcome) for r in ran] == [Snoozed, Cancelled, Failed, Done]
        assert [r.state for r in ran] == [State.SCHEDULED, State.CANCELLED, State.FAILED, State.COMPLETED]


async def test_drain_heeds_timeouts_and_gives_resources(own: Dutiful) -> None:
    @own.resource
    def mailer() -> None:
        raise AssertionError("the stand-in is to be used")

    @own.job(timeout="20ms", retry=Retry(max_attempts=1))
    async def stuck(box: list[str] = Inject("mailer")) -> None:
        box.append("began")
        await asyncio.Event().wait()

    outbox: list[str] = []
    async with app_on(own, resources={"mailer": outbox}) as kit:
        await stuck.enqueue()
        (ran,) = await kit.drain()
        assert isinstance(ran.outcome, TimedOut) and ran.state is State.FAILED and outbox == ["began"]


async def test_a_dependent_job_is_drained_after_the_one_it_needs(own: Dutiful) -> None:
    order: list[str] = []

    @own.job
    async def step(name: str) -> None:
        order.append(name)

    async with app_on(own) as kit:
        first = await step.options(priority=200).enqueue("first")
        await step.options(depends_on=first).enqueue("second")
        await kit.drain()
        assert order == ["first", "second"]


async def test_a_drain_that_would_never_end_is_stopped_with_advice(own: Dutiful) -> None:
    @own.job
    async def endless() -> None:
        await endless.enqueue()

    async with app_on(own) as kit:
        await endless.enqueue()
        with pytest.raises(UsageError, match="more than 10 attempts"):
            await kit.drain(limit=10)


async def test_time_cannot_be_moved_without_a_clock(own: Dutiful) -> None:
    async with app_on(own) as kit:
        with pytest.raises(UsageError, match="give the test a clock"):
            await kit.drain(advance=True)


async def test_blocking_code_under_test_uses_the_same_database_and_clock(own: Dutiful) -> None:
    clock = Clock(START)

    @own.job
    async def ping() -> str:
        return "pong"

    async with app_on(own, clock=clock) as kit:
        job = await asyncio.to_thread(ping.sync.options(delay="1h").enqueue)
        assert await kit.drain() == []
        clock.advance("1h")
        (ran,) = await kit.drain()
        assert ran.job.id == job.id and ran.job.finished_at == clock.now()


async def test_the_app_is_itself_again_afterwards(app_url: str) -> None:
    app = Dutiful(app_url)

    @app.job
    async def ping() -> None: ...

    async with app_on(app) as kit:
        inside = await ping.enqueue()
        await kit.assert_enqueued(ping)
    async with app:
        assert await app.find(inside.id) is None
        with pytest.raises(UsageError, match="open on its own database"):
            async with app_on(app):
                pass


async def test_a_path_keeps_the_file(own: Dutiful, tmp_path: Any) -> None:
    @own.job
    async def ping() -> None: ...

    async with app_on(own, path=tmp_path / "kept.db") as kit:
        job = await ping.enqueue()
        await kit.drain()
    async with app_on(own, path=tmp_path / "kept.db"):
        record = await own.find(job.id)
        assert record is not None and record.state is State.COMPLETED


def test_a_clock_stands_still_and_never_goes_back() -> None:
    clock = Clock(START)
    assert clock.now() == clock.now() == START
    assert clock.advance("1h30m") == START + timedelta(minutes=90)
    with pytest.raises(UsageError, match="does not go back"):
        clock.move_to(START)
    with pytest.raises(UsageError, match="no time zone"):
        Clock(datetime(2030, 1, 1))  # noqa: DTZ001


# --- assertions


async def test_assertions_match_a_kind_and_part_of_its_payload(own: Dutiful) -> None:
    @own.job
    async def send(to: str, template: str, tags: list[str]) -> None: ...

    async with app_on(own) as kit:
        await kit.refute_enqueued(send)
        with pytest.raises(AssertionError, match="nor with anything else"):
            await kit.assert_enqueued(send)
        first = await send.enqueue(to="ada", template="welcome", tags=["a"])
        await send.enqueue(to="bob", template="welcome", tags=[])
        assert (await kit.assert_enqueued(send, to="ada", tags=["a"])).id == first.id
        assert [job.payload["to"] for job in await kit.enqueued("send", template="welcome")] == ["ada", "bob"]
        await kit.refute_enqueued(send, to="eve")
        with pytest.raises(AssertionError, match="'to': 'bob'"):
            await kit.assert_enqueued(send, to="eve")
        with pytest.raises(AssertionError, match="1 jobs of send"):
            await kit.refute_enqueued(send, to="bob")
        await kit.drain()
        await kit.assert_enqueued(send, to="bob")


async def test_assertions_see_more_jobs_than_fit_a_page(own: Dutiful) -> None:
    @own.job
    async def count(n: int) -> None: ...

    async with app_on(own) as kit:
        await count.enqueue_many([{"n": n} for n in range(1_200)])
        assert [job.payload["n"] for job in await kit.enqueued(count)] == list(range(1_200))


async def test_unique_keys_hold_in_the_kit(own: Dutiful) -> None:
    @own.job(unique=Unique("one", on_conflict=OnConflict.REJECT))
    async def once() -> None: ...

    async with app_on(own) as kit:
        await once.enqueue()
        with pytest.raises(UniqueConflict):
            await once.enqueue()
        await kit.drain()
        await once.enqueue()


# --- inline


async def test_inline_a_job_has_run_when_enqueue_returns(own: Dutiful) -> None:
    seen: list[Any] = []

    @own.job
    async def parent(ctx: Context, n: int) -> int:
        seen.append((ctx.job_id, ctx.attempt, ctx.correlation_id, ctx.cancelled))
        inner = await child.enqueue(n)
        return await inner.result() + 1

    @own.job
    def child(ctx: Context, n: int) -> int:
        seen.append((ctx.parent_id, ctx.correlation_id))
        return n * 2

    with inline(own):
        job = await parent.enqueue(4)
        assert await job.result() == 9
        assert seen == [(job.id, 1, str(job.id), False), (job.id, str(job.id))]
        assert [await h.result() for h in await child.enqueue_many([{"n": 1}, {"n": 2}])] == [2, 4]
        assert await (await own.enqueue("child", {"n": 3})).result() == 6


def test_inline_blocking_code_runs_async_and_plain_handlers(own: Dutiful) -> None:
    @own.job
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return n * 2

    @own.job
    def both(n: int) -> int:
        return double.sync.enqueue(n).result() + 1

    with inline(own):
        assert both.sync.enqueue(5).result() == 11
        assert [h.result() for h in double.sync.enqueue_many([{"n": 1}])] == [2]


async def test_inline_a_plain_handler_on_a_running_loop_may_enqueue_an_async_one(own: Dutiful) -> None:
    @own.job
    async def inner(ctx: Context) -> str:
        return str(ctx.parent_id)

    @own.job
    def outer() -> str:
        return inner.sync.enqueue().result()

    with inline(own):
        job = await outer.enqueue()
        assert await job.result() == str(job.id)


async def test_inline_the_callers_get_what_handlers_raise(own: Dutiful) -> None:
    @own.job
    async def fails() -> None:
        raise LookupError("gone")

    @own.job
    def snoozes() -> Any:
        return Snooze("1m")

    @own.job
    async def strange() -> Any:
        return object()

    with inline(own):
        with pytest.raises(LookupError, match="gone"):
            await fails.enqueue()
        with pytest.raises(Snooze):
            await snoozes.enqueue()
        with pytest.raises(PayloadInvalid, match="result"):
            await strange.enqueue()


async def test_inline_payloads_are_checked_and_resources_must_be_given(own: Dutiful) -> None:
    @own.job
    async def send(to: str, box: list[str] = Inject("mailer")) -> None:
        box.append(to)

    outbox: list[str] = []
    with inline(own, {"mailer": outbox}):
        await send.enqueue("ada")
        with pytest.raises(PayloadInvalid, match="'to'"):
            await send.options().enqueue(to=1)  # type: ignore[arg-type]
    assert outbox == ["ada"]
    with inline(own), pytest.raises(UsageError, match="'mailer'"):
        await send.enqueue("ada")


async def test_inline_a_job_transaction_is_refused_with_advice(own: Dutiful) -> None:
    @own.job
    async def writes(ctx: Context) -> None:
        async with ctx.transaction():
            pass

    with inline(own), pytest.raises(UsageError, match="app_on"):
        await writes.enqueue()
