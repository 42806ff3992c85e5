"""One suite for the three backends of jobs: the store itself, Arq on Redis, and the one for tests."""

import typing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from arq_workers import arq_working
from running_workers import final, working

from dutiful import Context, Dutiful, Fixed, Retry, State, UsageError
from dutiful.delivery.arq import ArqBackend
from dutiful.delivery.backend import QueueBackend, StoreBackend
from dutiful.testing import Clock, InProcessBackend, app_on

BACKENDS = {"store": StoreBackend, "arq": ArqBackend, "in_process": InProcessBackend}


@asynccontextmanager
async def delivering(app: Dutiful, name: str, redis_url: str) -> AsyncIterator[QueueBackend]:
    """The app's backend, as the factory made and injected it, and what runs the jobs that it delivers."""
    match name:
        case "store":
            async with app, working(app):
                yield (await app.client()).backend
        case "arq":
            app.configure(redis_url=redis_url)
            async with app, arq_working(app):
                yield (await app.client()).backend
        case _:
            async with app_on(app, deliver=True) as kit:
                yield kit.client.backend


@pytest.mark.req("D1", "D25", "D29")
def test_the_protocol_is_typed_and_names_no_broker() -> None:
    assert getattr(QueueBackend, "_is_protocol", False)
    hints = typing.get_type_hints(QueueBackend.enqueue)
    assert hints == {"job_type": str, "payload": dict[str, Any], "queue_name": str, "return": str | None}


@pytest.mark.req("D26", "D27", "D28", "D33")
@pytest.mark.parametrize("name", [*BACKENDS])
async def test_every_backend_is_injected_and_answers_for_ids_that_it_does_not_know(
    name: str, migrated_path: Any, empty_redis: str
) -> None:
    app = Dutiful(f"sqlite:///{migrated_path}")

    @app.job
    async def double(number: int) -> int:
        return 2 * number

    async with delivering(app, name, empty_redis) as backend:
        assert isinstance(backend, BACKENDS[name])
        for unknown in ("", "nonsense", "7:1", f"{app.new_id()}:1", str(app.new_id())):
            assert await backend.get_job_metadata(unknown) is None
            assert await backend.get_job_result(unknown) is None

        job = await double.enqueue(number=4)
        message = {"job_id": str(job.id), "priority": 100, "number": 7}
        given = await backend.enqueue("double", message, queue_name="default")

        assert given == (None if name == "store" else f"{job.id}:7")
        if name != "in_process":
            await final(app, job)
            assert await backend.get_job_result(f"{job.id}:1") == 8


@pytest.mark.req("D32")
async def test_the_backend_for_tests_runs_jobs_in_the_order_of_their_delivery_without_redis() -> None:
    app = Dutiful("postgresql://ada@127.0.0.1:1/nowhere", redis_url="redis://127.0.0.1:1/0")
    ran: list[str] = []

    @app.job(retry=Retry(max_attempts=2, backoff=Fixed("1m")))
    async def step(ctx: Context, name: str) -> str:
        ran.append(name)
        if name == "first":
            await step.enqueue(name="third")
        if name == "second" and ctx.attempt == 1:
            raise ValueError("once")
        return name

    clock = Clock()
    async with app_on(app, clock=clock, deliver=True) as kit:
        first, second = [await step.enqueue(name=name) for name in ("first", "second")]
        attempts = await kit.run_delivered()

        assert ran == ["first", "second", "third"]
        assert [one.state for one in attempts] == [State.COMPLETED, State.SCHEDULED, State.COMPLETED]
        backend = kit.client.backend
        assert isinstance(backend, InProcessBackend)
        assert await backend.get_job_result(f"{first.id}:1") == "first"
        assert (await first.record()).backend_job_id == f"{first.id}:1"

        clock.advance("2m")
        assert [one.state for one in await kit.run_delivered()] == [State.COMPLETED]
        assert (await second.record()).backend_job_id == f"{second.id}:2"
        assert await kit.run_delivered() == []


@pytest.mark.req("D34")
async def test_what_a_lost_broker_held_is_delivered_again_from_rows_that_wait() -> None:
    app = Dutiful("postgresql://ada@127.0.0.1:1/nowhere")

    @app.job
    async def step(number: int) -> int:
        return number

    async with app_on(app, deliver=True) as kit:
        jobs = [await step.enqueue(number=n) for n in range(3)]
        assert kit.client.dispatcher is not None
        await kit.client.dispatcher.flush()
        backend = kit.client.backend
        assert isinstance(backend, InProcessBackend)
        assert await backend.get_job_metadata(f"{jobs[0].id}:1") == {
            "status": "queued",
            "job_type": "step",
            "payload": {"job_id": str(jobs[0].id), "priority": 100, "number": 1},
            "queue_name": "default",
        }
        backend.lose()

        assert [one.job.result for one in await kit.run_delivered()] == [0, 1, 2]


async def test_without_deliver_there_is_nothing_to_run_by_delivery() -> None:
    app = Dutiful("postgresql://ada@127.0.0.1:1/nowhere", redis_url="redis://127.0.0.1:1/0")
    async with app_on(app) as kit:
        assert isinstance(kit.client.backend, StoreBackend)
        with pytest.raises(UsageError, match="deliver=True"):
            await kit.run_delivered()


async def test_an_app_takes_a_backend_of_your_own(migrated_path: Any) -> None:
    class Shouting:
        """The three methods of the protocol, and no more."""

        def __init__(self) -> None:
            self.heard: list[tuple[str, str]] = []

        async def enqueue(self, job_type: str, payload: dict[str, Any], *, queue_name: str = "default") -> str | None:
            self.heard.append((job_type, queue_name))
            return None

        async def get_job_metadata(self, backend_job_id: str) -> dict[str, Any] | None:
            return None

        async def get_job_result(self, backend_job_id: str) -> object | None:
            return None

    shouting = Shouting()
    app = Dutiful(f"sqlite:///{migrated_path}", backend=lambda _: shouting)

    @app.job(queue="fast")
    async def step() -> None: ...

    async with app:
        job = await step.enqueue()
        client = await app.client()
        assert client.dispatcher is not None
        await client.dispatcher.flush()
        waiting = await client.store.deliveries.find(job.id)

        assert shouting.heard == [("step", "fast")]
        assert waiting is not None
        assert (waiting.backend_job_id, waiting.outstanding) == (None, True)
