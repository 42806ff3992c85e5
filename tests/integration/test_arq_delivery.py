"""Jobs delivered through a real Redis to Arq workers; the claim alone decides what runs."""

import asyncio
import logging
import sqlite3
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx2
import psycopg
import pytest
import redis.asyncio
from arq_workers import arq_app, arq_working, messages
from running_workers import eventually, final, state, working

from dutiful import BatchJob, Context, Dutiful, Fixed, Retry, Role, State
from dutiful.delivery.arq import ArqBackend
from dutiful.maintenance import deliveries
from dutiful.maintenance.deliveries import Redelivery
from dutiful.store.leadership import Survey
from dutiful.web import create_app

__all__ = ["arq_app"]


@dataclass
class Page:
    number: int


@pytest.mark.req("D2", "D12", "D30", "D31")
async def test_a_job_is_delivered_through_redis_and_run_by_an_arq_worker(arq_app: Dutiful) -> None:
    @arq_app.job
    async def double(number: int) -> int:
        return 2 * number

    async with arq_working(arq_app):
        job = await double.enqueue(number=21)
        assert await job.result("60s") == 42

    assert (await job.record()).backend_job_id == f"{job.id}:1"


@pytest.mark.req("D3")
async def test_only_ids_go_through_redis(arq_app: Dutiful, empty_redis: str) -> None:
    @arq_app.job
    async def pay(card: str) -> None: ...

    await pay.enqueue(card="4711-0815")
    await arq_app.close()

    async with redis.asyncio.Redis.from_url(empty_redis) as client:
        keys = [key async for key in client.scan_iter()]
        texts = [await client.get(key) for key in keys if await client.type(key) == b"string"]
    assert texts
    assert all(b"4711" not in text and text.startswith(b'{"t":null,"f":"dutiful","a":["') for text in texts)


async def test_a_retry_is_delivered_again_when_it_is_due(arq_app: Dutiful) -> None:
    attempts = []

    @arq_app.job(retry=Retry(max_attempts=3, backoff=Fixed("100ms")))
    async def flaky(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return "done"

    async with arq_working(arq_app):
        job = await flaky.enqueue()
        assert await job.result("60s") == "done"

    assert attempts == [1, 2, 3]
    assert (await job.record()).backend_job_id == f"{job.id}:3"


async def test_a_scheduled_job_is_delivered_when_it_is_due(arq_app: Dutiful) -> None:
    @arq_app.job
    async def later() -> str:
        return "now"

    async with arq_working(arq_app):
        job = await later.options(delay="300ms").enqueue()
        assert await job.result("60s") == "now"


@pytest.mark.req("D34")
async def test_what_nobody_announces_is_found_and_delivered(arq_app: Dutiful) -> None:
    @arq_app.job
    async def note() -> None: ...

    kind = arq_app.kind("note")
    job = kind.prepare(kind._defaults, {})
    await (await arq_app.client()).store.jobs.insert([job])  # without a hint, as by a process that dies then

    async with arq_working(arq_app):
        await _completed(arq_app, job.id)


async def test_what_a_leader_without_redis_makes_ready_is_delivered_by_another_worker(
    arq_app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "FOLLOWING", timedelta(milliseconds=100))
    leader = Dutiful(arq_app.settings.database_url)

    @leader.job
    async def other() -> None: ...

    @arq_app.job
    async def later() -> str:
        return "now"

    async with working(leader) as first:
        maintenance = first._maintenance

        async def leads() -> bool:
            return maintenance is not None and maintenance.leading

        await eventually(leads)
        async with arq_working(arq_app):
            job = await later.options(delay="300ms").enqueue()
            assert await job.result("60s") == "now"
            assert await leads()


async def test_what_a_users_transaction_stores_is_delivered_when_it_is_committed(
    arq_app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the worker that leads, which the commit notifies; a tick would come up to a second later."""
    arq_app.configure(sqlite_driver="sqlite3")

    @arq_app.job
    async def note() -> None: ...

    def within_a_transaction() -> UUID:
        with _connection(arq_app.settings.database_url) as connection:
            job = note.sync.options(within=connection).enqueue()
            connection.commit()
            return job.id

    monkeypatch.setattr(Redelivery, "tick", _nothing)
    async with arq_working(arq_app):
        job_id = await asyncio.to_thread(within_a_transaction)
        await _completed(arq_app, job_id)


async def _nothing(self: Redelivery, survey: Survey) -> None: ...


async def _completed(app: Dutiful, job_id: UUID) -> None:
    async def done() -> bool:
        record = await app.find(job_id)
        return record is not None and record.state is State.COMPLETED

    await eventually(done)


def _connection(url: str) -> AbstractContextManager[Any]:
    if url.startswith("sqlite"):
        return closing(sqlite3.connect(url.removeprefix("sqlite:///")))
    return psycopg.connect(url)


async def test_two_workers_and_messages_sent_twice_run_each_job_once(arq_app: Dutiful, empty_redis: str) -> None:
    ran: list[int] = []

    @arq_app.job
    async def count(number: int) -> None:
        ran.append(number)

    jobs = await count.enqueue_many([{"number": n} for n in range(50)])
    operator = await arq_app.operator("ada")
    async with arq_working(arq_app), arq_working(arq_app):
        for _ in range(3):
            await operator.deliveries.redeliver()
        for job in jobs:
            await final(arq_app, job)

    assert sorted(ran) == list(range(50))
    assert await messages(empty_redis) == []


async def test_a_worker_of_the_store_and_one_of_arq_share_the_jobs(arq_app: Dutiful) -> None:
    ran: list[int] = []

    @arq_app.job
    async def count(number: int) -> None:
        ran.append(number)

    async with arq_working(arq_app), working(arq_app):
        jobs = await count.enqueue_many([{"number": n} for n in range(100)])
        for job in jobs:
            await final(arq_app, job)

    assert sorted(ran) == list(range(100))


@pytest.mark.req("L101")
async def test_jobs_of_a_batch_are_delivered_one_by_one_and_handled_together(
    arq_app: Dutiful, empty_redis: str
) -> None:
    calls: list[list[int]] = []

    @arq_app.job(batch=20, linger="50ms", retry=Retry(max_attempts=2, backoff=Fixed("1ms")))
    async def index(jobs: list[BatchJob[Page]]) -> list[Any]:
        calls.append([job.payload.number for job in jobs])
        bad = [job.payload.number == 7 and job.attempt == 1 for job in jobs]
        return [ValueError("bad") if is_bad else job.payload.number for is_bad, job in zip(bad, jobs, strict=True)]

    async def none_left() -> bool:
        """Messages of jobs that came into a batch by way of the store are dropped, too."""
        return not await messages(empty_redis)

    jobs = await index.enqueue_many([{"number": number} for number in range(40)])
    async with arq_working(arq_app):
        assert [await job.result("60s") for job in jobs] == list(range(40))
        await eventually(none_left)

    assert sorted(number for call in calls for number in call) == sorted([*range(40), 7])
    assert max(map(len, calls)) > 1 and [7] in calls, "the one that failed runs alone"


async def test_a_better_priority_is_taken_first(arq_app: Dutiful) -> None:
    ran: list[int] = []
    arq_app.configure(lanes="one=1:*")

    @arq_app.job
    async def count(number: int) -> None:
        ran.append(number)

    for number in (30, 10, 20):
        await count.options(priority=number).enqueue(number=number)
    await arq_app.close()
    async with arq_working(arq_app):
        await eventually(lambda: _has(ran, 3))

    assert ran == [10, 20, 30]


async def _has(ran: list[int], count: int) -> bool:
    return len(ran) == count


async def test_a_paused_queue_waits_and_a_cancelled_job_never_runs(arq_app: Dutiful) -> None:
    ran: list[int] = []

    @arq_app.job
    async def count(number: int) -> None:
        ran.append(number)

    operator = await arq_app.operator("ada")
    await operator.fleet.pause("queue", "default")
    async with arq_working(arq_app):
        kept, cancelled = [await count.enqueue(number=n) for n in range(2)]
        assert await cancelled.cancel()
        assert await state(arq_app, kept) is State.READY
        await operator.fleet.resume("queue", "default")
        await final(arq_app, kept)

    assert ran == [0]
    assert await state(arq_app, cancelled) is State.CANCELLED


async def test_a_running_job_can_be_cancelled_and_has_its_timeout(arq_app: Dutiful) -> None:
    began = asyncio.Event()

    @arq_app.job
    async def wait() -> None:
        began.set()
        await asyncio.sleep(60)

    @arq_app.job(timeout="200ms", retry=Retry(max_attempts=1))
    async def slow() -> None:
        await asyncio.sleep(60)

    async with arq_working(arq_app):
        job, late = await wait.enqueue(), await slow.enqueue()
        await asyncio.wait_for(began.wait(), 60)
        await job.cancel("enough")
        assert (await final(arq_app, job)).state is State.CANCELLED
        assert (await final(arq_app, late)).state is State.FAILED


async def test_every_queue_is_served_also_one_that_no_kind_declares(arq_app: Dutiful) -> None:
    @arq_app.job(queue="fast")
    async def quick() -> str:
        return "done"

    job, other = await quick.enqueue(), await quick.options(queue="odd ones").enqueue()
    await arq_app.close()
    async with arq_working(arq_app):
        for one in (job, other):
            assert (await final(arq_app, one)).result == "done"


async def test_a_job_of_a_kind_that_this_worker_lacks_is_left_to_another(
    arq_app: Dutiful, empty_redis: str, caplog: pytest.LogCaptureFixture
) -> None:
    @arq_app.job
    async def known() -> None: ...

    other = Dutiful(arq_app.settings.database_url, redis_url=empty_redis)

    @other.job
    async def unknown() -> None: ...

    async with other:
        job = await unknown.enqueue()
    caplog.set_level(logging.INFO, "dutiful.delivery")
    async with arq_working(arq_app):
        await eventually(lambda: _logged(caplog, "is left to another worker"))
        assert await state(arq_app, job) is State.READY
        async with arq_working(other):
            await final(arq_app, job)


async def _logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.getMessage() for record in caplog.records)


@pytest.mark.req("D3", "D34")
async def test_a_message_in_another_queue_than_its_jobs_claims_nothing_and_is_sent_again(
    arq_app: Dutiful, empty_redis: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    arq_app.configure(lanes="fast=1:fast")

    @arq_app.job
    async def heavy() -> None:
        ran.append("heavy")

    job = await heavy.enqueue()
    await arq_app.close()
    async with redis.asyncio.Redis.from_url(empty_redis) as client:
        await client.rename("dutiful:queue:default", "dutiful:queue:fast")
    async with arq_working(arq_app):
        await eventually(lambda: _logged(caplog, "came through another queue than its own, default"))

        async def sent_again() -> bool:
            return await messages(empty_redis) == [f"{job.id}:2"]

        await eventually(sent_again)
    assert await messages(empty_redis, "fast") == []
    assert (ran, await state(arq_app, job)) == ([], State.READY)

    await arq_app.close()
    arq_app.configure(lanes="general=1:default")
    async with arq_working(arq_app):
        await final(arq_app, job)
    assert ran == ["heavy"]


@pytest.mark.req("D27", "D28")
async def test_the_backend_tells_what_it_knows_of_a_delivery(arq_app: Dutiful) -> None:
    @arq_app.job
    async def double(number: int) -> int:
        return 2 * number

    client = await arq_app.client()
    backend, dispatcher = client.backend, client.dispatcher
    assert isinstance(backend, ArqBackend)
    assert dispatcher is not None
    job = await double.enqueue(number=4)
    await dispatcher.flush()
    name = f"{job.id}:1"

    found = await backend.get_job_metadata(name)
    assert found is not None
    assert (found["status"], found["queue"], found["tries"]) == ("queued", "dutiful:queue:default", 0)
    assert await backend.get_job_result(name) is None
    for unknown in (f"{job.id}:9", "no such id", f"{arq_app.new_id()}:1"):
        assert await backend.get_job_metadata(unknown) is None
        assert unknown.startswith(str(job.id)) or await backend.get_job_result(unknown) is None

    async with arq_working(arq_app):
        await final(arq_app, job)
    assert await backend.get_job_metadata(name) is None
    assert await backend.get_job_result(name) == 8


async def test_a_tenants_worker_does_not_run_the_jobs_of_another(arq_app: Dutiful, empty_redis: str) -> None:
    ran: list[str | None] = []

    @arq_app.job
    async def whose(ctx: Context) -> None:
        ran.append(ctx.tenant)

    acme = await whose.options(tenant="acme").enqueue()
    globex = await whose.options(tenant="globex").enqueue()
    await arq_app.close()
    arq_app.configure(claim_tenants=["acme"])
    async with arq_working(arq_app):
        await final(arq_app, acme)
        assert await state(arq_app, globex) is State.READY

    assert ran == ["acme"]
    assert await messages(empty_redis) == [f"{globex.id}:1"]


async def test_invented_queues_are_served_in_turns_and_keep_no_other_from_being_served(
    arq_app: Dutiful, empty_redis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dutiful.arq_worker.MOST_FOUND", 3)
    monkeypatch.setattr("dutiful.arq_worker.TURNS", 1)

    @arq_app.job
    async def work(n: int) -> int:
        return n

    jobs = [await work.options(queue=f"invented-{n}").enqueue(n=n) for n in range(8)]
    async with arq_working(arq_app):
        assert await (await work.enqueue(n=100)).result("60s") == 100
        assert [await job.result("60s") for job in jobs] == [*range(8)]

        async def few_are_served() -> bool:
            """One that has lost its turn ends what it asks Redis."""
            names = [task.get_name() for task in asyncio.all_tasks()]
            return sum(name.startswith("dutiful arq invented") for name in names) <= 3

        await eventually(few_are_served)


@pytest.mark.req("D9")
async def test_a_job_is_stored_and_its_status_is_read_while_redis_is_down(app: Dutiful) -> None:
    app.configure(redis_url="redis://127.0.0.1:1/0")

    @app.job
    async def note() -> None: ...

    job = await note.enqueue()
    client = await app.client()
    assert client.dispatcher is not None
    await client.dispatcher.flush()
    record = await job.record()
    why = await (await app.operator("ada")).jobs.explain(job.id)
    async with working(app):
        await final(app, job)

    assert (record.state, record.backend_job_id) == (State.READY, None)
    assert why.code == "no_worker"
    async with app:
        _, token = await (await app.operator("root")).tokens.create("reader", Role.MANAGER)
        transport = httpx2.ASGITransport(app=create_app(app))
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
            headers = {"Authorization": f"Bearer {token}"}
            shown = await http.get(f"/api/jobs/{job.public_id}", headers=headers)
            details = await http.get(f"/api/jobs/admin/jobs/{job.public_id}/", headers=headers)
    assert (shown.status_code, shown.json()["state"]) == (200, "completed")
    assert (details.status_code, details.json()["backend_job_id"]) == (200, None)
