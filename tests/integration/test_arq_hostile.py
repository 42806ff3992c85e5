"""Redis may hold anything: what is no message is dropped with a few lines of log, and keeps no other from a worker."""

import json
import pickle
from datetime import timedelta
from typing import Any

import pytest
import redis.asyncio
from arq_workers import arq_app, arq_working
from redis.asyncio.connection import AbstractConnection
from running_workers import eventually

from dutiful import Dutiful
from dutiful.delivery.arq import ArqBackend
from dutiful.maintenance import deliveries
from dutiful.store.deliveries import Delivered

__all__ = ["arq_app"]

HOSTILE: list[dict[str, Any]] = [
    {"t": None, "f": "dutiful", "a": ["not an id"], "k": {}, "et": 1},
    {"t": None, "f": "dutiful", "a": ["01937b6a-33e5-7d04-8b6f-4b1f0c6b3f12"], "k": {}, "et": 1},
    {"t": None, "f": "os.system", "a": ["true"], "k": {}, "et": 1},
    {"t": None, "f": "dutiful", "a": [], "k": {}, "et": 1},
    {"t": None, "f": "dutiful", "a": ["x"], "k": {"y": 1}, "et": 1},
    {"t": None, "f": "dutiful", "a": ["x"], "k": {}, "et": "yesterday"},
    {"t": 10**30, "f": "dutiful", "a": ["x"], "k": {}, "et": 10**30},
]


async def test_hostile_messages_in_redis_do_nothing_but_a_log(
    arq_app: Dutiful, empty_redis: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return pytest.fail, ("a message was unpickled",)

    @arq_app.job
    async def harmless() -> str:
        return "ran"

    key = "dutiful:queue:default"
    bodies = [*(json.dumps(one).encode() for one in HOSTILE), pickle.dumps(Bomb()), b"\xff\x00", b""]
    async with redis.asyncio.Redis.from_url(empty_redis) as client:
        for number, body in enumerate(bodies):
            await client.set(f"arq:job:bad{number}", body)
            await client.zadd(key, {f"bad{number}": number + 1})
        await client.zadd(key, {b"\xff\xfe": 1, b"": 2, "without a body": 3})
        async with arq_working(arq_app):
            job = await harmless.enqueue()
            assert await job.result("60s") == "ran"

            async def emptied() -> bool:
                return not await client.zcard(key)

            await eventually(emptied)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "names no job, and is dropped: 'not an id'" in text
    assert "which does not exist; it is dropped" in text
    assert "are no messages, and are dropped" in text


async def test_keys_of_redis_that_hold_something_else_are_dropped_and_stop_no_delivery(
    arq_app: Dutiful, empty_redis: str, caplog: pytest.LogCaptureFixture
) -> None:
    @arq_app.job
    async def harmless(n: int) -> int:
        return n

    key, body = "dutiful:queue:default", json.dumps(HOSTILE[0])
    async with redis.asyncio.Redis.from_url(empty_redis) as client:
        for n in range(30):  # more than there are slots
            await client.set(f"arq:job:tries{n}", body)
            await client.set(f"arq:retry:tries{n}", "many" if n % 2 else str(2**63 - 1))
            await client.rpush(f"arq:job:list{n}", body)
            await client.zadd(key, {f"tries{n}": n + 1, f"list{n}": n + 1})
        await client.zadd(key, {"endless": "-inf", "n" * 1_000_000: 1})
        for queue in ("odd", "fast"):
            await client.set(f"dutiful:queue:{queue}", "no sorted set")
        await client.sadd("dutiful:queues", "odd")
        async with arq_working(arq_app):
            job = await harmless.options(queue="found").enqueue(n=1)
            assert await job.result("60s") == 1
            assert await (await harmless.enqueue(n=2)).result("60s") == 2

            async def emptied() -> bool:
                return not await client.zcard(key)

            await eventually(emptied)
        assert not await client.keys("arq:*tries*") and not await client.keys("arq:*list*")
    lines = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert len(lines) < 10 and max(map(len, lines)) < 1_000
    assert not any("away" in line for line in lines), "Redis answers"


async def test_answers_of_other_types_end_neither_the_worker_nor_a_delivery(
    arq_app: Dutiful, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of something else than Redis, or of a proxy that mixes answers up."""
    ask, send = AbstractConnection.read_response, AbstractConnection.send_packed_command
    odd: dict[bytes, list[Any]] = {b"SRANDMEMBER": [7, b"found", None], b"ZADD": 3 * [b"many"]}
    asked: dict[Any, list[bytes]] = {}

    async def note(self: Any, command: Any, *args: Any, **options: Any) -> None:
        asked[self] = [name for name in odd if name in b"".join(command)]
        await send(self, command, *args, **options)

    async def mistake(self: Any, *args: Any, **options: Any) -> Any:
        answer = await ask(self, *args, **options)
        return next((odd[name].pop(0) for name in asked[self] if odd[name]), answer)

    @arq_app.job
    async def harmless(n: int) -> int:
        return n

    monkeypatch.setattr(AbstractConnection, "send_packed_command", note)
    monkeypatch.setattr(AbstractConnection, "read_response", mistake)
    async with arq_working(arq_app):

        async def all_given() -> bool:
            return not odd[b"SRANDMEMBER"]

        await eventually(all_given)
        assert await (await harmless.options(queue="found").enqueue(n=1)).result("60s") == 1
    assert not odd[b"ZADD"]
    assert "jobs were not delivered yet" not in caplog.text


async def test_a_queue_that_redis_cannot_hold_keeps_no_other_from_delivery(
    arq_app: Dutiful, empty_redis: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deliveries, "PAGE", 2)
    monkeypatch.setattr(deliveries, "LOST_AFTER", timedelta(milliseconds=300))

    @arq_app.job
    async def harmless(n: int) -> int:
        return n

    async with redis.asyncio.Redis.from_url(empty_redis) as server:
        await server.set("dutiful:queue:bad", "no sorted set")
        bad = [await harmless.options(queue="bad").enqueue(n=n) for n in range(3)]  # the first pages of the walk
        good = [await harmless.options(queue="good").enqueue(n=n) for n in range(3)]
        client = await arq_app.client()
        assert client.dispatcher is not None
        await client.dispatcher.flush()
        await server.delete("dutiful:queue:good")
        async with arq_working(arq_app):
            assert [await job.result("30s") for job in good] == [0, 1, 2]
            assert await (await arq_app.operator()).deliveries.redeliver() == 0
            await server.delete("dutiful:queue:bad")
            assert [await job.result("30s") for job in bad] == [0, 1, 2]
    lines = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert any("dutiful:queue:bad; delete or rename it there" in line for line in lines)
    assert len(lines) < 5
    assert not any("away" in line for line in lines), "Redis answers"


@pytest.mark.parametrize("queue", ["bad", "good"])
async def test_a_delivery_that_redis_has_in_no_queue_is_missing(arq_app: Dutiful, empty_redis: str, queue: str) -> None:
    client = await arq_app.client()
    assert client.dispatcher is not None and isinstance(client.dispatcher.backend, ArqBackend)
    async with redis.asyncio.Redis.from_url(empty_redis) as server:
        await server.set("dutiful:queue:bad", "no sorted set")
        await server.zadd("dutiful:queue:good", {"there": 1})
    assert await client.dispatcher.backend.missing([("good", "there"), (queue, "lost")]) == {"lost"}


async def test_however_many_messages_are_no_messages_there_are_a_few_lines_of_log(
    arq_app: Dutiful, empty_redis: str, caplog: pytest.LogCaptureFixture
) -> None:
    @arq_app.job
    async def harmless() -> str:
        return "ran"

    key = "dutiful:queue:default"
    bodies = [*(json.dumps(one) for one in HOSTILE), "{", None]
    async with redis.asyncio.Redis.from_url(empty_redis) as client, client.pipeline(transaction=False) as pipe:
        for n in range(50):
            for number, body in enumerate(bodies):
                if body is not None:
                    pipe.set(f"arq:job:bad{number}-{n}", body)
                pipe.zadd(key, {f"bad{number}-{n}": 1})
        await pipe.execute()
        async with arq_working(arq_app):
            assert await (await harmless.enqueue()).result("60s") == "ran"

            async def emptied() -> bool:
                return not await client.zcard(key)

            await eventually(emptied)
    lines = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert 2 <= len(lines) < 10
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("hides", ["never expires", "expires in years", "score 0", "score in years", "infinite score"])
async def test_a_message_that_is_hidden_for_good_is_delivered_again(
    arq_app: Dutiful, empty_redis: str, monkeypatch: pytest.MonkeyPatch, hides: str
) -> None:
    monkeypatch.setattr(deliveries, "LOST_AFTER", timedelta(milliseconds=300))

    @arq_app.job
    async def harmless() -> str:
        return "ran"

    job = await harmless.enqueue()
    client = await arq_app.client()
    assert client.dispatcher is not None
    await client.dispatcher.flush()
    name, key = f"{job.id}:1", "dutiful:queue:default"
    async with redis.asyncio.Redis.from_url(empty_redis) as server:
        assert await server.zscore(key, name) is not None
        if "expires" in hides:
            await server.set(f"arq:in-progress:{name}", "1", ex=None if hides == "never expires" else 10**9)
        else:
            await server.zadd(key, {name: {"score 0": 0, "score in years": 10**15, "infinite score": "inf"}[hides]})
        async with arq_working(arq_app):
            assert await job.result("30s") == "ran"


async def test_hidden_messages_keep_no_others_from_the_workers(arq_app: Dutiful, empty_redis: str) -> None:
    """Arq reads the first hundred or so of a queue, and would find no others behind them."""

    @arq_app.job
    async def harmless() -> str:
        return "ran"

    async with redis.asyncio.Redis.from_url(empty_redis) as server, server.pipeline(transaction=False) as pipe:
        for n in range(1_000):
            pipe.set(f"arq:in-progress:hidden{n}", "1")
            pipe.zadd("dutiful:queue:default", {f"hidden{n}": -1e300})
        await pipe.execute()
        async with arq_working(arq_app):
            assert await (await harmless.enqueue()).result("30s") == "ran"


@pytest.mark.parametrize("name", [None, "that of another message"])
async def test_a_forged_record_of_a_delivery_hides_no_job(
    arq_app: Dutiful, empty_redis: str, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """Any login that may enqueue may record deliveries: of any job, under any name."""
    monkeypatch.setattr(deliveries, "LOST_AFTER", timedelta(milliseconds=300))

    @arq_app.job
    async def harmless() -> str:
        return "ran"

    job = await harmless.enqueue()
    client = await arq_app.client()
    assert client.dispatcher is not None
    await client.dispatcher.flush()
    key = "dutiful:queue:default"
    async with redis.asyncio.Redis.from_url(empty_redis) as server:
        await server.delete(key)
        if name:
            await server.zadd(key, {name: 10**15})
        await client.store.deliveries.record([Delivered(job.id, name, 2, 0)])
        async with arq_working(arq_app):
            assert await job.result("30s") == "ran"
