"""Handlers that turn against their worker: they fail alone."""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from dutiful import Dutiful, Fixed, OnConflict, Retry, Scope, Unique
from dutiful.core.job import Claim
from dutiful.core.states import State
from dutiful.maintenance.runner import MaintenanceRunner
from dutiful.worker import Worker
from dutiful.worker.executor.attempt import Executor
from dutiful.worker.settler import Settler


class Rude(BaseException):
    """Not an Exception, so that it is not caught by accident."""


class BadBackoff(Fixed):
    def after(self, attempt: int, uniform: Any) -> timedelta:
        raise ZeroDivisionError("no delay can be computed")


def unruly_app(url: str) -> Dutiful:
    app = Dutiful(url)
    once = Retry(max_attempts=1)

    @app.job(retry=once)
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    @app.job
    async def leaves_a_cancel_behind() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    @app.job
    async def cancels_later() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.05, task.cancel)

    @app.job(retry=once)
    async def interrupts() -> None:
        raise KeyboardInterrupt

    @app.job(retry=once)
    async def is_rude() -> None:
        raise Rude

    @app.job(retry=once)
    def is_rude_in_a_thread() -> None:
        raise Rude

    @app.job(retry=Retry(max_attempts=3, backoff=BadBackoff("1s")))
    async def has_a_bad_policy() -> None:
        raise ValueError

    @app.job(retry=once)
    async def fails_in_a_ring() -> None:
        error = ValueError("x")
        raise error from ExceptionGroup("all", [error])

    @app.job(retry=once)
    async def fails_as_others_do() -> None:
        class Answered(Exception):
            status, headers = 429, {"Retry-After": "Wed, 21 Oct 99999999999 07:28:00 GMT"}

        raise Answered

    @app.job(retry=once)
    async def fails_beyond_description() -> None:
        class Text(str):
            def __getitem__(self, index: Any) -> Any:
                raise SystemExit

        class Odd(ExceptionGroup[Exception]):
            exceptions = property(lambda self: sys.exit(1))

            def __str__(self) -> str:
                return Text("x")

        raise Odd("x", [ValueError()])

    @app.job(retry=Retry(max_attempts=1, classify=lambda error: sys.exit(1)))
    async def exits_by_its_policy() -> None:
        raise ValueError

    @app.job
    async def well_behaved(number: int) -> int:
        await asyncio.sleep(0.15)
        return number

    return app


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('sqlite_path')}"
    found: str = request.getfixturevalue("pg18_url")
    return found


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("cancels_itself", State.FAILED),
        ("leaves_a_cancel_behind", State.COMPLETED),
        ("cancels_later", State.COMPLETED),
        ("interrupts", State.FAILED),
        ("is_rude", State.FAILED),
        ("is_rude_in_a_thread", State.FAILED),
        ("has_a_bad_policy", State.FAILED),
        ("fails_in_a_ring", State.FAILED),
        ("fails_as_others_do", State.FAILED),
        ("fails_beyond_description", State.FAILED),
        ("exits_by_its_policy", State.FAILED),
    ],
)
async def test_an_unruly_handler_ends_neither_its_worker_nor_its_neighbours(url: str, kind: str, state: State) -> None:
    app = unruly_app(url)
    async with app:
        client = await app.client()
        worker = app.make_worker(client)
        working = asyncio.create_task(worker.run())
        neighbours = [await app.kind("well_behaved").enqueue(n) for n in range(3)]
        unruly = await app.kind(kind).enqueue()
        neighbours += [await app.kind("well_behaved").enqueue(n) for n in range(3, 12)]

        assert [await job.result("30s") for job in neighbours] == list(range(12))
        async with asyncio.timeout(30):
            while (record := await unruly.record()).state is not state:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        later = await app.kind("well_behaved").enqueue(99)
        assert await later.result("30s") == 99

        assert not working.done()
        assert record.crashes == 0
        if kind != "cancels_later":  # the job in the slot by then is hit, and tried again
            assert [(await job.record()).attempt for job in neighbours] == [1] * 12
        await stopped(worker, working)
        assert await client.store.queries.check_places() == []


async def stopped(worker: Worker, working: "asyncio.Task[None]") -> None:
    worker.stop()
    await working


@pytest.mark.parametrize("scope", [Scope.QUEUED, Scope.ACTIVE])
@pytest.mark.parametrize("action", [OnConflict.RETURN, OnConflict.REPLACE])
async def test_an_open_transaction_with_a_key_conflict_holds_up_no_other(
    pg18_url: str, scope: Scope, action: OnConflict
) -> None:
    app = unruly_app(pg18_url)
    kind = app.kind("well_behaved")
    async with app:
        client = await app.client()
        # It runs for long, so that the conflict below meets a waiting, a running and a finished holder in turn.
        holder = await kind.options(unique=Unique("one", scope), delay="300ms").enqueue(0)
        connection = await asyncpg.connect(pg18_url)
        try:
            transaction = connection.transaction()
            await transaction.start()
            await kind.options(unique=Unique("one", scope, action), within=connection).enqueue(1)
            worker = app.make_worker(client)
            working = asyncio.create_task(worker.run())

            neighbours = [await kind.enqueue(n) for n in range(20)]
            assert [await job.result("30s") for job in neighbours] == list(range(20))
            if action is OnConflict.RETURN:
                assert await holder.result("30s") == 0

            await transaction.commit()
        finally:
            await connection.close()
        again = await kind.options(unique=Unique("one", scope)).enqueue(2)
        if action is OnConflict.RETURN:
            assert again.created
        assert await again.result("30s") in (1, 2)
        await stopped(worker, working)
        assert await client.store.queries.check_places() == []


async def test_replacing_and_claiming_at_once_never_deadlock(pg18_url: str) -> None:
    app = unruly_app(pg18_url)

    @app.job
    async def quick(number: int) -> None: ...

    async def produce(key: str) -> None:
        for number in range(40):
            await quick.options(unique=Unique(key, Scope.QUEUED, OnConflict.REPLACE)).enqueue(number)

    async with app:
        client = await app.client()
        worker = app.make_worker(client)
        working = asyncio.create_task(worker.run())
        await asyncio.gather(*(produce(f"key {n % 3}") for n in range(6)))
        async with asyncio.timeout(30):
            while any((await client.store.queries.stats(timedelta(hours=1))).live.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await stopped(worker, working)
        assert await client.store.queries.check_places() == []


async def test_a_worker_that_ends_by_a_fault_of_ours_closes_its_services(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, closed = unruly_app(f"sqlite:///{sqlite_path}"), []

    async def stumble(self: Settler) -> None:
        raise LookupError("this was not foreseen")

    async def close(self: MaintenanceRunner, timeout: float) -> None:
        closed.append(timeout)

    monkeypatch.setattr(Settler, "run", stumble)
    monkeypatch.setattr(MaintenanceRunner, "close", close)
    async with app.opened() as client:
        with pytest.raises(LookupError):
            await asyncio.wait_for(app.make_worker(client).run(), 20)
    assert len(closed) == 1


async def test_a_job_that_ends_its_worker_by_a_fault_of_ours_spends_its_attempt(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = unruly_app(url)
    running = asyncio.Event()

    @app.job(retry=Retry(max_attempts=1))
    async def poison() -> None: ...

    @app.job(retry=Retry(max_attempts=1))
    async def innocent() -> None:
        running.set()
        await asyncio.Event().wait()

    run = Executor.run

    async def stumble(self: Executor, claim: Claim, *args: Any) -> Any:
        if claim.kind == "poison":
            raise LookupError("this was not foreseen")
        return await run(self, claim, *args)

    claiming, release_rest = list[str](), Settler.release_rest

    def release(self: Settler) -> None:
        names = [task.get_name() for task in asyncio.all_tasks()]
        claiming.extend(name for name in names if name.startswith("dutiful lane "))
        release_rest(self)

    monkeypatch.setattr(Executor, "run", stumble)
    monkeypatch.setattr(Settler, "release_rest", release)
    async with app, app.opened() as client:
        worker = asyncio.create_task(app.make_worker(client).run())
        other = await innocent.enqueue()
        await running.wait()
        job = await poison.enqueue()
        with pytest.raises(LookupError):
            await asyncio.wait_for(worker, 20)
        record, unharmed = await job.record(), await other.record()
    assert (record.state, record.attempt) == (State.FAILED, 1)
    assert record.errors is not None and record.errors[0]["type"] == "LookupError"
    assert (unharmed.state, unharmed.attempt, unharmed.crashes) == (State.READY, 0, 0)
    assert claiming == [], "they could claim what is released, and end without a word of it"
