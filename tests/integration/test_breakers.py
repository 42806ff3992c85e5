"""Breakers as handlers use them: the whole fleet stops calling a failing service until a probe succeeds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from breaker_jobs import Service, breaker_of, declare_kinds, styles
from running_workers import clocked, eventually, final, working

from dutiful import BreakerOpen, Cancel, Context, Dutiful, JobRecord, PayloadInvalid, Retry, State, UsageError
from dutiful.client.client import Client
from dutiful.core.breaker.state import BreakerState
from dutiful.kind import Handle
from dutiful.operator import Operator
from dutiful.testing import Clock, app_on, inline
from dutiful.worker.breakers import client as breaker_client
from dutiful.worker.slots import StopReason

ONCE = Retry(max_attempts=1)
MAIL = "email-service"


@pytest.fixture
def clock() -> Clock:
    """Ahead of the real time, so that nothing by this clock becomes due during the test."""
    return Clock(datetime.now(UTC) + timedelta(days=1))


@pytest.fixture
async def client(app: Dutiful, clock: Clock) -> AsyncIterator[Client]:
    """Its store uses the clock, so that tests need not wait for a breaker's time."""
    app.configure(lease="1d")  # longer than the clock is moved
    async with clocked(app, clock) as client:
        yield client


async def record(app: Dutiful, job: Handle[Any]) -> JobRecord:
    found = await app.find(job.id)
    assert found is not None
    return found


async def all_in(app: Dutiful, jobs: list[Handle[Any]], *states: State) -> None:
    async def look() -> bool:
        return {(await record(app, job)).state for job in jobs} <= set(states)

    await eventually(look)


@pytest.mark.req("L48", "L49", "L55", "L56", "L57", "L58")
async def test_five_failures_open_a_breaker_for_a_minute_and_then_one_probe_decides(
    app: Dutiful, clock: Clock, client: Client
) -> None:
    app.configure(lanes="one=1")
    service = Service(failing=True)
    app.breaker(MAIL)

    @app.job(retry=ONCE)
    async def email(ctx: Context, n: int) -> None:
        async with ctx.breaker(MAIL):
            service.call(n)

    async with working(app, client):
        failed = await email.enqueue_many({"n": n} for n in range(5))
        await all_in(app, failed, State.FAILED)  # closed: each call was made
        assert service.calls == [0, 1, 2, 3, 4]
        opened = await breaker_of(client, MAIL)
        assert (opened.state, opened.failures, opened.trips) == (BreakerState.OPEN, 5, 1)
        assert opened.open_until == clock.now() + (await breaker_of(client, MAIL)).policy.open_for

        waiting = await email.enqueue_many({"n": n} for n in range(5, 8))
        await all_in(app, waiting, State.BLOCKED)
        assert len(service.calls) == 5, "open: its body is not run"
        assert (await record(app, waiting[0])).attempt == 0, "no attempt is spent"
        why = await (await app.operator()).jobs.explain(waiting[0].id)
        assert why.code == "breaker"
        assert MAIL in why.sentence

        clock.advance("60s")
        await eventually(lambda: reopened(client, trips=2))
        assert len(service.calls) == 6, "half-open: one call finds out, and it failed"
        await all_in(app, waiting, State.BLOCKED, State.FAILED)

        service.failing = False
        clock.advance("60s")
        await all_in(app, waiting, State.COMPLETED, State.FAILED)
        closed = await breaker_of(client, MAIL)
        assert (closed.state, closed.failures, closed.trips) == (BreakerState.CLOSED, 0, 2)
    states = [(await record(app, job)).state for job in waiting]
    assert sorted(states) == [State.COMPLETED, State.COMPLETED, State.FAILED]


async def reopened(client: Client, trips: int) -> bool:
    breaker = await breaker_of(client, MAIL)
    return breaker.trips == trips and breaker.state is BreakerState.OPEN


@pytest.mark.req("L57")
async def test_all_styles_of_calls_share_one_breaker(app: Dutiful) -> None:
    service = Service(failing=True)
    kinds = styles(app, service, app.breaker("shared", failures=1, open_for="1h"))
    async with working(app):
        for number, style in enumerate(kinds.values(), 1):
            await final(app, await style.enqueue())
            assert len(service.calls) == number
            jobs = [await kind.enqueue() for kind in kinds.values()]
            await all_in(app, jobs, State.BLOCKED)
            assert len(service.calls) == number
            operator = await app.operator()
            for job in jobs:
                await operator.jobs.cancel(job.id)
            await operator.breakers.reset("shared")


@pytest.mark.req("L48", "L57", "L58")
async def test_jobs_of_a_kind_wait_for_its_breaker_and_spend_no_attempt(
    app: Dutiful, clock: Clock, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing, diary = tmp_path / "failing", tmp_path / "diary"
    monkeypatch.setenv("BREAKER_DIARY", str(diary))
    monkeypatch.setenv("BREAKER_FAILING", str(failing))
    failing.touch()
    app.configure(lanes="one=1")
    app.breaker("printer", failures=4, open_for="10m")
    declare_kinds(app)

    def calls() -> int:
        return len(diary.read_text().splitlines())

    async with working(app, client):
        failed = [await app.enqueue(kind) for kind in app.kinds]
        await all_in(app, [*failed], State.FAILED)
        assert calls() == 4
        jobs = [await app.enqueue(kind) for kind in app.kinds]
        await all_in(app, [*jobs], State.BLOCKED)
        found = [await record(app, job) for job in jobs]
        assert {(job.attempt, job.gate) for job in found} == {(0, "paused")}
        assert calls() == 4
        why = await (await app.operator()).jobs.explain(jobs[0].id)
        assert (why.code, "'printer', which is open until" in why.sentence) == ("breaker", True)

        failing.unlink()
        clock.advance("11m")
        await all_in(app, [*jobs], State.COMPLETED)
        assert {(await record(app, job)).attempt for job in jobs} == {1}
    assert calls() == 8


@pytest.mark.req("L58")
async def test_while_a_breaker_is_half_open_only_probes_of_its_kind_run(
    app: Dutiful, clock: Clock, client: Client
) -> None:
    service, gate = Service(failing=True), asyncio.Event()

    @app.job(breaker=app.breaker("grid", failures=1, open_for="10m", probes=2), retry=ONCE)
    async def analyse(ctx: Context, n: int) -> None:
        service.call(n)
        await gate.wait()

    async with working(app, client):
        await all_in(app, [await analyse.enqueue(n=0)], State.FAILED)
        jobs = await analyse.enqueue_many({"n": n} for n in range(1, 9))
        await all_in(app, list(jobs), State.BLOCKED)
        service.failing = False
        clock.advance("11m")

        async def both_run() -> bool:
            return len(service.calls) == 3

        await eventually(both_run)
        later = await analyse.enqueue_many({"n": n} for n in range(9, 12))
        await all_in(app, list(later), State.BLOCKED)
        assert len(service.calls) == 3, "two probes, and no other call"
        gate.set()
        await all_in(app, [*jobs, *later], State.COMPLETED)


async def test_a_breaker_inside_itself_counts_once_and_never_rejects_itself(
    app: Dutiful, clock: Clock, client: Client
) -> None:
    inner = Service(failing=True)
    grid = app.breaker("grid", failures=2, open_for="10m")

    @grid
    async def look(n: int) -> None:
        inner.call(n)

    @app.job(breaker="grid", retry=ONCE)
    async def analyse(ctx: Context) -> str:
        async with ctx.breaker("grid"), ctx.breaker("grid"):
            await look(1)
        return "done"

    async with working(app, client):
        await final(app, await analyse.enqueue())
        assert (await breaker_of(client, "grid")).failures == 1
        await final(app, await analyse.enqueue())
        assert (await breaker_of(client, "grid")).state is BreakerState.OPEN
        inner.failing = False
        job = await analyse.enqueue()
        clock.advance("11m")
        assert (await final(app, job)).result == "done"
    assert (await breaker_of(client, "grid")).state is BreakerState.CLOSED


async def test_while_one_call_of_a_job_probes_its_other_calls_wait_for_the_result(
    app: Dutiful, clock: Clock, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker_client, "PROBE_WAIT", 3600.0)
    app.breaker("grid", open_for="1h")
    service, gate = Service(), asyncio.Event()
    ended_before: list[int] = []
    ended: list[int] = []

    async def call(ctx: Context, n: int) -> None:
        async with ctx.breaker("grid"):
            service.call(n)
            ended_before.append(len(ended))
            await gate.wait()
            ended.append(n)

    @app.job
    async def analyse(ctx: Context) -> None:
        await ctx.each(range(8), lambda n: call(ctx, n))

    async with working(app, client):
        await Operator(client).breakers.open("grid", new=True)
        clock.advance("61m")
        job = await analyse.enqueue()

        async def probing() -> bool:
            (found,) = await client.store.breakers.all()
            return found.probing == 1 and len(service.calls) == 1

        await eventually(probing)
        gate.set()
        assert (await final(app, job)).state is State.COMPLETED
    assert len(service.calls) == 8
    assert ended_before[0] == 0
    assert min(ended_before[1:]) >= 1, "the first one had ended when they began"
    assert (await breaker_of(client, "grid")).state is BreakerState.CLOSED


async def test_a_rejected_item_makes_its_job_wait_and_has_not_failed(app: Dutiful) -> None:
    await (await app.operator()).breakers.open("grid", new=True)

    async def call(ctx: Context, n: int) -> None:
        async with ctx.breaker("grid"):
            raise AssertionError("it is open")

    @app.job
    async def analyse(ctx: Context) -> None:
        await ctx.each(range(3), lambda n: call(ctx, n))

    survey = app.pipeline("survey")

    @survey.phase(optional=True)
    async def measure(ctx: Context) -> None:
        await call(ctx, 1)

    async with working(app):
        jobs = [await analyse.enqueue(), await survey.enqueue()]
        await all_in(app, jobs, State.BLOCKED)
    assert [(await record(app, job)).attempt for job in jobs] == [0, 0]


async def test_a_handler_may_handle_the_rejection_itself(app: Dutiful) -> None:
    await (await app.operator()).breakers.open(MAIL, new=True)

    @app.job
    async def email(ctx: Context) -> str:
        try:
            async with ctx.breaker(MAIL):
                return "sent"
        except BreakerOpen as error:
            assert error.until.tzinfo is not None
            return f"by pigeon, for {error.name} is open"

    async with working(app):
        assert (await final(app, await email.enqueue())).result == f"by pigeon, for {MAIL} is open"


@pytest.mark.req("L48")
async def test_a_cancelled_probe_frees_its_place_and_a_late_one_counts_as_failed(
    app: Dutiful, clock: Clock, client: Client
) -> None:
    app.configure(lanes="one=1")
    began: list[str] = []

    @app.job(retry=ONCE)
    async def hang(ctx: Context, who: str) -> None:
        async with ctx.breaker("grid"):
            began.append(who)
            await asyncio.sleep(3600)

    async def it_began(who: str) -> bool:
        return began[-1:] == [who]

    async with working(app, client) as worker:
        await Operator(client).breakers.open("grid", new=True)
        clock.advance("61s")
        cancelled = await hang.enqueue(who="cancelled")
        await eventually(lambda: it_began("cancelled"))
        await cancelled.cancel()
        assert (await final(app, cancelled)).state is State.CANCELLED
        after = await breaker_of(client, "grid")
        assert (after.state, after.trips) == (BreakerState.HALF_OPEN, 0), "it does not count for the service"

        late = await hang.enqueue(who="late")
        await eventually(lambda: it_began("late"))
        worker.lanes[0].slots[0].request_stop(StopReason.TIMEOUT)  # as the timer does at the timeout
        assert (await final(app, late)).state is State.FAILED
        assert (await breaker_of(client, "grid")).trips == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda app: app.breaker("mail\nserver"),
        lambda app: app.breaker(""),
        lambda app: app.breaker("x" * 201),
        lambda app: app.breaker("mail", failures=0),
        lambda app: app.breaker("mail", probes="many"),
        lambda app: app.breaker("mail", open_for="soon"),
        lambda app: app.breaker("mail", open_for="0s"),
        lambda app: (app.breaker("mail"), app.breaker("mail")),
        lambda app: app.job(breaker="mail\nserver"),
        lambda app: app.pipeline("publish", breaker=""),
        lambda app: app.breaker("mail")(app.job(lambda: None)),
        lambda app: app.breaker("mail")(7),
        lambda app: Dutiful(breaker_failures=0).settings,
        lambda app: Dutiful(breaker_failures=2_000_000).settings,
        lambda app: Dutiful(breaker_open_for="0s").settings,
    ],
)
def test_a_breaker_that_makes_no_sense_is_refused_at_its_declaration(wrong: Callable[[Dutiful], Any]) -> None:
    with pytest.raises(UsageError):
        wrong(Dutiful("sqlite:///nowhere.db"))


async def test_a_breaker_name_that_makes_no_sense_is_refused_at_its_use(app: Dutiful) -> None:
    @app.job(retry=ONCE)
    async def email(ctx: Context) -> None:
        async with ctx.breaker("mail\nserver"):
            raise AssertionError("not even begun")

    async with working(app):
        (error,) = (await final(app, await email.enqueue())).errors or []
    assert error["type"] == PayloadInvalid.__name__
    assert "line break" in error["message"]


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_inline_every_call_passes(app: Dutiful) -> None:
    printer = app.breaker("printer", failures=1)

    @printer
    async def feed() -> str:
        return "fed"

    @app.job(breaker="printer")
    async def print_page(ctx: Context, well: bool) -> str:
        async with ctx.breaker("printer"):
            if not well:
                raise ConnectionError
            return await feed()

    with inline(app):
        for _ in range(3):
            with pytest.raises(ConnectionError):
                await print_page.enqueue(well=False)
        assert await (await print_page.enqueue(well=True)).result() == "fed"
    assert await feed() == "fed", "outside of a job it is the function itself"


async def test_with_a_clock_a_test_can_wait_for_a_breaker() -> None:
    app, service, clock = Dutiful("sqlite:///nowhere.db"), Service(failing=True), Clock()

    @app.job(breaker=app.breaker("grid", failures=1), retry=ONCE)
    async def analyse(n: int) -> None:
        service.call(n)

    @app.job
    async def call(ctx: Context, n: int) -> None:
        async with ctx.breaker("grid"):
            service.call(n)

    async with app_on(app, clock=clock) as kit:
        for n in range(3):
            await analyse.enqueue(n=n)
        await call.enqueue(n=3)
        await kit.drain()
        assert service.calls == [0]
        service.failing = False
        clock.advance("67s")
        await kit.drain()
    assert sorted(service.calls) == [0, 1, 2, 3]


async def test_a_job_that_its_handler_cancels_does_not_count_for_the_service(app: Dutiful) -> None:
    @app.job
    async def email(ctx: Context) -> None:
        async with ctx.breaker(MAIL):
            raise Cancel("the recipient has left")

    async with working(app):
        assert (await final(app, await email.enqueue())).state is State.CANCELLED
    async with app.opened() as client:
        assert await client.store.breakers.all() == []
