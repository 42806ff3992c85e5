"""Kinds that declare a breaker, beside workers with other code, and in processes of their own."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from breaker_jobs import Service, breaker_of, process_app
from running_workers import eventually, final, state, working

from dutiful import Context, Dutiful, Fail, Retry, Snooze, State, StoreUnavailable, UsageError
from dutiful.core.breaker.state import BreakerPolicy, BreakerState
from dutiful.operator import Operator
from dutiful.worker.breakers.client import BreakerClient

ONCE = Retry(max_attempts=1)
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@pytest.mark.req("L48", "L57")
async def test_a_worker_of_an_older_version_does_not_run_jobs_in_a_loop(app: Dutiful) -> None:
    service = Service()

    @app.job(breaker=app.breaker("grid", open_for="1h"), timeout="1m")
    async def analyse() -> None:
        service.call()

    async with app.opened() as client, working(app, client):
        await client.store.breakers.put_kinds({analyse.name: None})  # as it does when it starts
        await Operator(client).breakers.open("grid", new=True)
        jobs = await analyse.enqueue_many({} for _ in range(5))

        async def wait() -> bool:
            return {await state(app, job) for job in jobs} == {State.BLOCKED}

        await eventually(wait)
        (found,) = await client.store.breakers.all()
        assert (found.kinds, found.waiting) == ([analyse.name], 5)
        await Operator(client).breakers.reset("grid")
        for job in jobs:
            assert (await final(app, job)).attempt == 1
    assert len(service.calls) == 5


@sqlite
async def test_blocking_a_kind_reads_only_its_own_breaker(app: Dutiful) -> None:
    @app.job(breaker="grid", timeout="1m")
    async def analyse() -> None: ...

    async def all_of_them(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("only one kind is looked up")

    async with app.opened() as client:
        client.store.breakers.all = all_of_them  # type: ignore[method-assign]
        await client.store.breakers.put_kinds({analyse.name: None})
        breakers = BreakerClient(client.store.breakers, {}, BreakerPolicy())
        assert await breakers.make_kind_wait(analyse.name, "grid")
        assert (await client.store.breakers.kinds()).get(analyse.name) == "grid"


@sqlite
async def test_jobs_that_cannot_be_blocked_are_retried_later_and_not_at_once(app: Dutiful) -> None:
    @app.job(breaker="grid")
    async def analyse() -> None:
        raise AssertionError("it is open")

    async def gone(*args: Any, **kwargs: Any) -> Any:
        raise StoreUnavailable("it is away")

    async with app.opened() as client, working(app, client):
        await client.store.breakers.put_kinds({analyse.name: None})
        await Operator(client).breakers.open("grid", new=True)
        client.store.breakers.put_kinds = gone  # type: ignore[method-assign]
        job = await analyse.enqueue()

        async def waits() -> bool:
            return await state(app, job) is State.BLOCKED

        await eventually(waits)
        (attempt,) = await client.store.queries.attempts(job.id)
        assert (attempt.outcome, (attempt.error or {})["breaker"]) == ("snoozed", "grid")


@sqlite
async def test_in_a_jobs_process_a_decorated_function_is_refused_unless_its_kind_declares_the_breaker(
    app: Dutiful,
) -> None:
    app.configure(cpu_processes=1)
    for name in ("feed_declared", "feed_undeclared"):
        app.kinds[name] = process_app.kinds[name]
    async with working(app):
        declared, undeclared = [await app.enqueue(name) for name in ("feed_declared", "feed_undeclared")]
        assert (await final(app, declared)).result == "fed"
        (error,) = (await final(app, undeclared)).errors or []
    assert error["type"] == "UsageError"
    assert "@app.job(process=True, breaker='printer')" in error["message"]


@pytest.mark.req("L58")
@pytest.mark.parametrize("end", ["not found", "not yet", "in part"])
async def test_a_half_open_breaker_closes_after_neutral_jobs_of_its_kind(app: Dutiful, end: str) -> None:
    @app.job(breaker=app.breaker("grid", failures=3, open_for="1h"), retry=ONCE)
    async def analyse(ctx: Context) -> None:
        async def measure(site: int) -> None:
            if site == 0:
                raise Fail("there is no such site")

        match end:
            case "not found":
                await measure(0)
            case "not yet":
                raise Snooze("1h")
            case _:
                await ctx.each(range(2), measure)

    async with app.opened() as client, working(app, client):
        await client.store.breakers.open("grid", timedelta(milliseconds=10))
        jobs = await analyse.enqueue_many({} for _ in range(9))

        async def all_have_run() -> bool:
            return not {await state(app, job) for job in jobs} & {State.BLOCKED, State.READY, State.RUNNING}

        await eventually(all_have_run)
        assert (await breaker_of(client, "grid")).state is BreakerState.CLOSED


@pytest.mark.req("L91")
async def test_a_person_opens_a_breaker_for_a_time_as_people_write_it(app: Dutiful) -> None:
    async with app:
        breakers = (await app.operator("ada")).breakers
        opened = await breakers.open("grid", "90s", "the grid is being moved", new=True)
        assert opened.opened_at is not None and opened.open_until is not None
        assert (opened.state, opened.open_until - opened.opened_at) == ("open", timedelta(seconds=90))
        with pytest.raises(UsageError, match="open_for 'the grid is being moved' is not a length of time"):
            await breakers.open("grid", "the grid is being moved")


@pytest.mark.req("L58")
@sqlite
async def test_a_half_open_breaker_closes_after_neutral_blocks_too(app: Dutiful) -> None:
    app.breaker("grid", failures=3, open_for="1h")
    states = []

    @app.job(retry=ONCE)
    async def analyse(ctx: Context) -> None:
        async with ctx.breaker("grid"), ctx.breaker("grid"):  # that is one call
            raise Fail("there is no such site")

    async with app.opened() as client, working(app, client):
        await client.store.breakers.open("grid", timedelta(milliseconds=10))
        for _ in range(3):
            await final(app, await analyse.enqueue())
            states.append((await breaker_of(client, "grid")).state)
    assert states == [BreakerState.HALF_OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED]


@pytest.mark.req("L48", "L57")
async def test_a_job_that_waited_for_a_process_does_not_begin_once_its_breaker_is_open(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    diary, held = tmp_path / "diary", tmp_path / "held"
    monkeypatch.setenv("BREAKER_DIARY", str(diary))
    monkeypatch.setenv("BREAKER_FAILING", str(tmp_path / "not"))
    monkeypatch.setenv("BREAKER_HELD", str(held))
    held.touch()
    app.configure(cpu_processes=1, lanes="one=4")
    app.kinds["process"] = process_app.kinds["process"]

    async with working(app):
        jobs = [await app.enqueue("process") for _ in range(4)]

        async def states() -> list[State]:
            return sorted([await state(app, job) for job in jobs])

        async def one_runs_and_others_wait_for_its_process() -> bool:
            return diary.exists() and await states() == [State.RUNNING] * 4

        async def others_wait_for_the_breaker() -> bool:
            return await states() == [*[State.BLOCKED] * 3, State.COMPLETED]

        await eventually(one_runs_and_others_wait_for_its_process)
        await (await app.operator()).breakers.open("printer")
        held.unlink()
        await eventually(others_wait_for_the_breaker)
        assert diary.read_text() == "page\n"

        await (await app.operator()).breakers.reset("printer")
        assert [(await final(app, job)).attempt for job in jobs] == [1] * 4
    assert diary.read_text() == "page\n" * 4


@pytest.mark.req("L48", "L57")
async def test_a_breaker_that_opens_while_a_process_imports_the_handler_holds_it_back(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    diary, imported = tmp_path / "diary", tmp_path / "imported"
    monkeypatch.setenv("BREAKER_DIARY", str(diary))
    monkeypatch.setenv("BREAKER_FAILING", str(tmp_path / "not"))
    monkeypatch.setenv("BREAKER_IMPORTED", str(imported))
    app.configure(cpu_processes=1)
    app.kinds["process"] = process_app.kinds["process"]

    async with working(app):
        job = await app.enqueue("process")

        async def imports() -> bool:
            return diary.exists()

        await eventually(imports)
        await (await app.operator()).breakers.open("printer")
        imported.touch()

        async def waits() -> bool:
            return await state(app, job) is State.BLOCKED

        await eventually(waits)
        assert diary.read_text() == "importing\n"
        await (await app.operator()).breakers.reset("printer")
        assert (await final(app, job)).attempt == 1
    assert diary.read_text() == "importing\npage\n"


@sqlite
async def test_a_decorated_blocking_function_on_the_event_loop_is_refused_with_the_remedy(app: Dutiful) -> None:
    @app.breaker("mail")
    def deliver() -> None:
        raise AssertionError("not even begun")

    @app.job(retry=ONCE)
    async def email(ctx: Context) -> None:
        deliver()

    async with working(app):
        (error,) = (await final(app, await email.enqueue())).errors or []
        assert "a blocking function that it decorates by `await asyncio.to_thread" in error["message"]
        assert (await breaker_of(await app.client(), "mail")).state is BreakerState.CLOSED


@sqlite
async def test_a_worker_warns_of_kinds_whose_probes_may_take_for_ever(
    app: Dutiful, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(breaker="grid")
    async def endless() -> None: ...

    @app.job(breaker="grid", timeout="1m")
    async def bounded() -> None: ...

    @app.job
    async def free() -> None: ...

    survey, search = app.pipeline("survey", breaker="grid"), app.pipeline("search", breaker="grid")

    @survey.phase(timeout="1m")
    async def measure() -> None: ...

    @search.phase
    async def look() -> None: ...

    async with working(app):
        pass
    warned = [record.args for record in caplog.records if "declares a breaker and no timeout" in record.message]
    assert warned == [("endless",), ("search",)]
