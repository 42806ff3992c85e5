"""Redis and Arq workers fail in every way; no job is lost, and none runs twice because a message came twice."""

import asyncio
import logging
import os
import signal
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import redis.asyncio
from arq_jobs import DIARY
from arq_workers import arq_app, arq_working, messages
from redis.asyncio.connection import AbstractConnection
from running_workers import eventually, final

from dutiful import BackendAway, Dutiful, State, arq_worker
from dutiful.delivery import arq
from dutiful.delivery.arq import ArqBackend
from dutiful.maintenance import deliveries
from dutiful.observe import outage
from faults import Fleet, Process
from servers import RedisServer

__all__ = ["arq_app"]
HERE = Path(__file__).parent


def counting(app: Dutiful) -> tuple[Any, list[int]]:
    ran: list[int] = []

    @app.job
    async def count(number: int) -> None:
        ran.append(number)

    return count, ran


@pytest.fixture
def fragile(app: Dutiful, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Dutiful:
    """An app whose Redis may be stopped; what is missing there is noticed soon."""
    monkeypatch.setattr(deliveries, "PAGE", 100)
    monkeypatch.setattr(deliveries, "LOST_AFTER", timedelta(milliseconds=300))
    app.configure(redis_url=own_redis.url)
    return app


async def all_ended(app: Dutiful, jobs: Any) -> None:
    for job in jobs:
        assert (await final(app, job)).state is State.COMPLETED


@pytest.mark.req("D34")
async def test_redis_dies_between_commit_and_delivery(fragile: Dutiful, own_redis: RedisServer) -> None:
    count, ran = counting(fragile)
    async with arq_working(fragile):
        own_redis.stop("immediate")
        job = await count.enqueue(number=1)
        client = await fragile.client()
        assert client.dispatcher is not None
        await client.dispatcher.flush()
        assert (await job.record()).backend_job_id is None
        assert await _undelivered(fragile) == 1
        own_redis.start()
        await all_ended(fragile, [job])
        assert await _undelivered(fragile) == 0

    assert ran == [1]
    assert (await job.record()).backend_job_id == f"{job.id}:1"


async def _undelivered(app: Dutiful) -> float:
    """As the metrics say."""
    (found,) = [one for one in await (await app.operator()).metrics.samples() if one.metric == "undelivered"]
    return found.value


async def test_the_process_that_enqueued_dies_before_it_delivers(fragile: Dutiful) -> None:
    """It has committed, and its delivery is never sent."""
    count, ran = counting(fragile)
    with patch.object(ArqBackend, "enqueue_many", side_effect=asyncio.CancelledError):
        job = await count.enqueue(number=1)
        await fragile.close()
    async with arq_working(fragile):
        await all_ended(fragile, [job])

    assert ran == [1]


async def test_redis_is_killed_and_started_again_during_a_burst(fragile: Dutiful, own_redis: RedisServer) -> None:
    count, ran = counting(fragile)
    jobs: list[Any] = []
    async with arq_working(fragile):
        for turn in range(3):
            for number in range(30):
                jobs.append(await count.enqueue(number=30 * turn + number))
            own_redis.restart("immediate")
        await all_ended(fragile, jobs)

    assert Counter(ran) == Counter(range(90))


@pytest.mark.soak
async def test_an_outage_of_redis_is_few_lines_in_the_log(
    fragile: Dutiful, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    count, ran = counting(fragile)
    began = asyncio.Event()

    @fragile.job
    async def lengthy() -> str:
        began.set()
        await asyncio.sleep(0.5)
        return "finished"

    async with arq_working(fragile):
        running = await lengthy.enqueue()
        await asyncio.wait_for(began.wait(), 60)
        own_redis.stop("immediate")
        assert (await final(fragile, running)).result == "finished"
        jobs = [await count.enqueue(number=n) for n in range(20)]
        await eventually(lambda: _lines(caplog, "Redis is away"))
        own_redis.start()
        await all_ended(fragile, jobs)
        await eventually(lambda: _lines(caplog, "Redis is back"))

    assert sorted(ran) == list(range(20))
    ours = [record for record in caplog.records if record.name.startswith("dutiful") and "Redis" in record.getMessage()]
    # The client, the deliveries of the worker and its messages notice by themselves, each once.
    assert 2 <= len(ours) <= 8
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not [record for record in errors if record.name.startswith("dutiful")]


async def _lines(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


@pytest.mark.soak
async def test_redis_is_away_for_a_minute(fragile: Dutiful, own_redis: RedisServer) -> None:
    count, ran = counting(fragile)
    async with arq_working(fragile):
        own_redis.stop("immediate")
        jobs = []
        for number in range(600):
            jobs.append(await count.enqueue(number=number))
            await asyncio.sleep(0.1)
        own_redis.start()
        await all_ended(fragile, jobs)

    assert sorted(ran) == list(range(600))


async def test_a_redis_that_hangs_delays_no_enqueue_and_is_not_waited_for(
    fragile: Dutiful, own_redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arq, "ANSWER_TIMEOUT", 0.3)
    monkeypatch.setattr(outage, "REPEAT", 0)
    count, ran = counting(fragile)
    async with arq_working(fragile):
        own_redis.freeze()
        jobs = [await asyncio.wait_for(count.enqueue(number=n), 30) for n in range(5)]
        # Also by those who ask it for messages, so that they get another connection.
        await eventually(lambda: _lines(caplog, "no new ones are received"))
        own_redis.thaw()
        await all_ended(fragile, jobs)

    assert sorted(ran) == list(range(5))


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_many_queues_share_few_connections_also_when_all_of_them_wait(
    fragile: Dutiful, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arq_worker, "CONNECTIONS", 3)
    count, ran = counting(fragile)
    queues = [f"queue {n}" for n in range(30)]
    async with redis.asyncio.Redis.from_url(own_redis.url) as client:
        await client.sadd("dutiful:queues", *queues)
        async with arq_working(fragile):
            first = [await count.options(queue=queue).enqueue(number=0) for queue in queues]
            await all_ended(fragile, first)
            own_redis.freeze()
            await asyncio.sleep(0.2)  # every queue is asked for, many times over
            own_redis.thaw()
            await all_ended(fragile, [await count.options(queue=queue).enqueue(number=1) for queue in queues])
            connections = len(await client.client_list())

    assert Counter(ran) == {0: 30, 1: 30}
    assert connections < 10, "three of the worker, and those of the test and of the client that enqueues"


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("command", [b"ZRANGEBYSCORE", b"INCR"], ids=["looking for messages", "reading a message"])
async def test_a_worker_stops_although_redis_swallows_the_cancellation(
    arq_app: Dutiful, monkeypatch: pytest.MonkeyPatch, command: bytes
) -> None:
    """As wait_for of Python 3.11 does, which redis uses for its timeouts, when it ends in the same moment."""
    count, ran = counting(arq_app)
    send = AbstractConnection.send_packed_command
    asking, swallowed = asyncio.Event(), asyncio.Event()

    async def swallowing(self: Any, packed: Any, check_health: bool = True) -> None:
        if not asking.is_set() and command in b"".join(packed):
            asking.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.set()
        await send(self, packed, check_health)

    with monkeypatch.context() as patched:
        patched.setattr(arq_worker, "IN_HAND", 600)
        async with asyncio.timeout(30), arq_working(arq_app):
            patched.setattr(AbstractConnection, "send_packed_command", swallowing)
            job = await count.enqueue(number=1)
            await asyncio.wait_for(asking.wait(), 30)

    assert swallowed.is_set()
    async with arq_working(arq_app):
        assert (await final(arq_app, job)).state is State.COMPLETED
    assert ran == [1]


@pytest.mark.req("D34")
@pytest.mark.parametrize("loss", ["flushall", "restart"])
async def test_jobs_that_redis_has_lost_are_delivered_again(
    fragile: Dutiful, own_redis: RedisServer, loss: str
) -> None:
    count, ran = counting(fragile)
    jobs = await count.enqueue_many([{"number": n} for n in range(250)])
    await fragile.close()
    assert len(await messages(own_redis.url)) == 250
    if loss == "restart":
        own_redis.restart("immediate")
    else:
        async with redis.asyncio.Redis.from_url(own_redis.url) as client:
            await client.flushall()
    assert await messages(own_redis.url) == []

    async with arq_working(fragile):
        await all_ended(fragile, [jobs[0], jobs[-1]])
        await eventually(lambda: _has(ran, 250))

    assert Counter(ran) == Counter(range(250))
    record = await fragile.find(jobs[0].id)
    assert record is not None
    assert record.backend_job_id == f"{jobs[0].id}:1"


async def _has(ran: list[int], count: int) -> bool:
    return len(ran) >= count


@pytest.mark.req("D34")
async def test_redeliver_brings_every_waiting_job_back_at_once(arq_app: Dutiful, empty_redis: str) -> None:
    count, _ = counting(arq_app)
    jobs = await count.enqueue_many([{"number": n} for n in range(20)])
    other = await count.options(queue="other").enqueue(number=99)
    later = await count.options(delay="1h").enqueue(number=100)
    await arq_app.close()
    before = await messages(empty_redis)
    async with redis.asyncio.Redis.from_url(empty_redis) as client:
        await client.flushall()
    operator = await arq_app.operator("ada")

    assert await operator.deliveries.redeliver("other") == 1
    assert await messages(empty_redis) == []
    assert await operator.deliveries.redeliver() == 21
    assert await operator.deliveries.redeliver() == 21

    assert sorted(await messages(empty_redis)) == sorted(before) == sorted(f"{job.id}:1" for job in jobs)
    assert await messages(empty_redis, "other") == [f"{other.id}:1"]
    record = await arq_app.find(later.id)
    assert record is not None
    assert record.backend_job_id is None
    counts = await operator.deliveries.counts()
    assert (counts.outstanding, counts.undelivered, counts.more) == (21, 0, False)


async def test_a_delivery_that_reaches_redis_after_its_job_has_ended_does_nothing(
    arq_app: Dutiful, empty_redis: str
) -> None:
    count, ran = counting(arq_app)
    async with arq_working(arq_app):
        job = await count.enqueue(number=1)
        await all_ended(arq_app, [job])
        backend = (await arq_app.client()).backend
        for number in (1, 2, 3):
            payload = {"job_id": str(job.id), "priority": 100, "number": number}
            assert await backend.enqueue("count", payload) == f"{job.id}:{number}"

        async def dropped() -> bool:
            return await messages(empty_redis) == []

        await eventually(dropped)

    assert ran == [1]


async def test_a_full_redis_refuses_messages_and_loses_no_job(app: Dutiful) -> None:
    with RedisServer(settings={"maxmemory": "1", "maxmemory-policy": "noeviction"}) as full:
        app.configure(redis_url=full.url)
        count, ran = counting(app)
        job = await count.enqueue(number=1)
        client = await app.client()
        assert client.dispatcher is not None
        await client.dispatcher.flush()
        with pytest.raises(BackendAway, match="maxmemory"):
            await client.backend.enqueue("count", {"job_id": str(job.id), "priority": 1, "number": 1})
        async with redis.asyncio.Redis.from_url(full.url) as admin:
            await admin.config_set("maxmemory", "0")
        async with arq_working(app):
            await all_ended(app, [job])
    assert ran == [1]


async def test_the_password_of_redis_is_in_no_log_and_no_error(app: Dutiful, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with RedisServer(password="s3cr3t/word") as server:
        app.configure(redis_url=server.url)
        count, _ = counting(app)
        async with arq_working(app):
            job = await count.enqueue(number=1)
            await all_ended(app, [job])
            server.stop("immediate")
            await count.enqueue(number=2)
            await eventually(lambda: _lines(caplog, "Redis is away"))
        backend = (await app.client()).backend
        with pytest.raises(BackendAway) as refused:
            await backend.enqueue("count", {"job_id": str(job.id), "priority": 1, "number": 1})
        await app.close()
        server.start()
        app.configure(redis_url=server.url.replace("s3cr3t", "wr0ng"))
        backend = (await app.client()).backend
        with pytest.raises(BackendAway) as wrong:
            await backend.enqueue("count", {"job_id": str(job.id), "priority": 1, "number": 1})
    texts = [caplog.text, str(refused.value), str(wrong.value), repr(app.settings), repr(backend)]
    assert not [text for text in texts if "s3cr3t" in text or "wr0ng" in text]


# --- processes


def diary(folder: Path) -> Counter[str]:
    path = folder / "diary"
    return Counter(path.read_text().splitlines() if path.exists() else [])


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {DIARY: str(tmp_path / "diary"), "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.req("D35")
async def test_the_job_of_an_arq_worker_that_was_killed_comes_back_by_its_lease(
    app: Dutiful, empty_redis: str, environment: dict[str, str], tmp_path: Path
) -> None:
    app.configure(redis_url=empty_redis)
    url = app.settings.database_url
    add_note(app)
    async with app, Fleet("arq_jobs:app", url, folder=tmp_path, path=HERE, environment=environment) as fleet:
        given = {**environment, "DUTIFUL_REDIS_URL": empty_redis}
        store = (await app.client()).store
        victim = fleet.start("--arq", "--lease", "2s", environment=given)
        await victim.ready(store)
        job = await app.enqueue("note", {"number": 1, "seconds": 600})
        done = await app.enqueue("note", {"number": 2})

        async def runs() -> bool:
            return (await job.record()).state is State.RUNNING

        await eventually(runs)
        await all_ended(app, [done])
        victim.kill()
        heir = fleet.start("--arq", "--lease", "2s", environment=given)
        await heir.ready(store)
        await eventually(lambda: _written(tmp_path, "1 1", 2))
        assert (await job.record()).crashes == 1
        await job.cancel()
        assert (await final(app, job)).state is State.CANCELLED
        heir.signal(signal.SIGTERM)
        assert await heir.ended() == 0
        assert "jobs come from Redis" in heir.output

    assert diary(tmp_path)["2 1"] == 1


async def _written(folder: Path, line: str, times: int) -> bool:
    return diary(folder)[line] >= times


def add_note(app: Dutiful) -> None:
    @app.job
    async def note(number: int, seconds: float = 0.0) -> int:
        return number


async def test_the_command_arq_runs_jobs_and_finishes_them_when_it_is_stopped(
    app: Dutiful, empty_redis: str, environment: dict[str, str], tmp_path: Path
) -> None:
    app.configure(redis_url=empty_redis)
    add_note(app)
    given = {
        **os.environ,
        **environment,
        "ARQ_COMMAND": "1",
        "DUTIFUL_REDIS_URL": empty_redis,
        "DUTIFUL_DATABASE_URL": app.settings.database_url,
    }
    async with app:
        jobs = [await app.enqueue("note", {"number": n}) for n in range(10)]
        command = [sys.executable, "-m", "arq", "arq_jobs.WorkerSettings"]
        process = Process(command, given, tmp_path / "arq.log")
        try:
            await all_ended(app, jobs)
            last = await app.enqueue("note", {"number": 10, "seconds": 1})
            await eventually(lambda: _written(tmp_path, "10 1", 1))
            process.signal(signal.SIGTERM)
            await process.ended()
            record = await last.record()
        finally:
            process.close()

    assert record.state is State.COMPLETED, process.output
    assert diary(tmp_path) == Counter(f"{n} 1" for n in range(11))
