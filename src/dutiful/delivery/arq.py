"""Deliveries through Redis to Arq workers: a message has the id of a job and nothing else of it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from arq.connections import ArqRedis, RedisSettings
from arq.constants import in_progress_key_prefix, job_key_prefix, retry_key_prefix
from arq.jobs import serialize_job
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import RedisError, ResponseError

from dutiful.core.errors import BackendAway, QueueRefused
from dutiful.delivery.backend import (
    DEFAULT_QUEUE,
    Message,
    delivery_id,
    job_of,
    stored_result,
)
from dutiful.delivery.redis_url import RedisAddress, read_redis_url
from dutiful.store import Store

log = logging.getLogger("dutiful.delivery")
FUNCTION = "dutiful"  # the one function of Dutiful's Arq workers
PIPELINE = 500  # messages that are sent in one round trip
CONNECT_TIMEOUT, ANSWER_TIMEOUT = 2.0, 5.0  # seconds
# Arq hides a message for less than a minute: while it is in a worker's hand, or deferred. What is hidden for longer, or
# for ever, was not written by Arq. Ten minutes leave room for clocks that differ.
LONGEST_HIDDEN_MS = 10 * 60 * 1000
KEPT_MS = 7 * 24 * 3600 * 1000  # a message that no worker has taken by then is dropped by Redis, and delivered again
# Arq takes messages in the order of their scores, which are times. A better priority is a time further back: all that
# has it goes before all that has a worse one. Messages of one millisecond go by their names, which begin with ids.
NO_JOB = "no message"  # in place of an id
# What reading an answer of another type than that of the question raises, in redis or here.
_MISREAD = (ValueError, TypeError, AttributeError, LookupError)
LOWEST_PRIORITY = 1_000
STEP_MS = 365 * 24 * 3600 * 1000


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    """A message as Arq stores it. Anything else is refused before Arq looks at it, because Redis may hold anything."""

    f: Annotated[str, msgspec.Meta(max_length=100)]
    a: tuple[Annotated[str, msgspec.Meta(max_length=100)]]
    k: dict[str, str]
    et: Annotated[int, msgspec.Meta(ge=0, le=10**13)]
    t: Literal[None] = None


_wire = msgspec.json.Decoder(_Wire)


def encode(value: Any) -> bytes:
    """Arq's own values may be errors, which become texts."""
    return msgspec.json.encode(value, enc_hook=str)


def decode(raw: bytes) -> dict[str, Any]:
    found = _wire.decode(raw)
    return {"f": found.f, "a": found.a, "k": {}, "t": None, "et": found.et}


def decode_any(raw: bytes) -> dict[str, Any]:
    """What is no message becomes one that names no job: Arq would log an error with its traceback for each."""
    try:
        found = _wire.decode(raw)
    except msgspec.DecodeError:
        found = None
    if found is None or found.f != FUNCTION:
        return {"f": FUNCTION, "a": (NO_JOB,), "k": {}, "t": None, "et": 0}
    return {"f": FUNCTION, "a": found.a, "k": {}, "t": None, "et": found.et}


def settings_of(address: RedisAddress) -> RedisSettings:
    """For Arq's own connections."""
    return RedisSettings(
        host=address.host,
        port=address.port,
        database=address.database,
        ssl=address.tls,
        unix_socket_path=address.socket,
        username=address.username,
        password=address.password,
        conn_timeout=int(CONNECT_TIMEOUT),
        conn_retries=0,
    )


class BoundedPool(ConnectionPool):
    """Lets a command wait for a connection when all are in use.

    Unlike redis' own blocking pool, which loses a connection when a task is cancelled while it gives it back.
    """

    def __init__(self, most: int, **given: Any) -> None:
        super().__init__(max_connections=most, **given)
        self._free = asyncio.Semaphore(most)

    async def get_connection(self, *_: Any, **__: Any) -> AbstractConnection:
        await self._free.acquire()
        connection: AbstractConnection = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def release(self, connection: AbstractConnection) -> None:
        try:
            await super().release(connection)
        finally:
            self._free.release()


def connect_bounded(address: RedisAddress, most: int) -> ArqRedis:
    """For many tasks that share it: no more than `most` connections."""
    redis = connect(address)
    plain = redis.connection_pool
    redis.connection_pool = BoundedPool(most, connection_class=plain.connection_class, **plain.connection_kwargs)
    return redis


def connect(address: RedisAddress) -> ArqRedis:
    """Connects when it is first used."""
    place: dict[str, Any] = {"unix_socket_path": address.socket} if address.socket else {}
    return ArqRedis(
        host=address.host,
        port=address.port,
        db=address.database,
        ssl=address.tls,
        username=address.username,
        password=address.password,
        socket_connect_timeout=CONNECT_TIMEOUT,
        socket_timeout=ANSWER_TIMEOUT,
        job_serializer=encode,
        job_deserializer=decode,
        **place,
    )


class QueueNames:
    """The names of things in Redis; each fleet on one Redis has a prefix of its own."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.known = f"{prefix}:queues"  # the set of all queues that have got messages

    def key(self, queue: str) -> str:
        return f"{self._prefix}:queue:{queue}"

    async def read_waiting(self, redis: ArqRedis, most: int) -> list[str]:
        """Queues that have messages; of very many queues, those among so many that are chosen at random."""
        chosen: Any = redis.srandmember(self.known, most)
        names = [name.decode(errors="replace") for name in await chosen]
        async with redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.zcard(self.key(name))
            counts = await pipe.execute(raise_on_error=False)  # a key of another type may have the name of one
            return [name for name, count in zip(names, counts, strict=True) if isinstance(count, int) and count]

    async def read_known(self, redis: ArqRedis) -> list[str]:
        found: Any = redis.smembers(self.known)
        return sorted(name.decode(errors="replace") for name in await found)


class ArqBackend:
    def __init__(self, url: str, store: Store, prefix: str = "dutiful") -> None:
        self.address = read_redis_url(url)
        self.names = QueueNames(prefix)
        self._store = store
        self._redis = connect(self.address)

    async def enqueue(self, job_type: str, payload: dict[str, Any], *, queue_name: str = DEFAULT_QUEUE) -> str | None:
        return (await self.enqueue_many([Message(job_type, payload, queue_name)]))[0]

    async def enqueue_many(self, messages: Sequence[Message]) -> list[str | None]:
        """Sends in few round trips; the same message again changes nothing while Redis has it."""
        sent: list[str | None] = []
        for start in range(0, len(messages), PIPELINE):
            sent += await self._send(messages[start : start + PIPELINE])
        return sent

    async def _send(self, messages: Sequence[Message]) -> list[str | None]:
        now = time.time_ns() // 1_000_000
        ids: list[str | None] = []
        keys = [self.names.key(message.queue_name) for message in messages]
        async with self._asking() as redis, redis.pipeline(transaction=False) as pipe:
            queues = {message.queue_name for message in messages}
            pipe.sadd(self.names.known, *queues)
            for message, key in zip(messages, keys, strict=True):
                name = delivery_id(message.payload)
                body = serialize_job(FUNCTION, (message.payload["job_id"],), {}, None, now, serializer=encode)
                pipe.set(job_key_prefix + name, body, px=KEPT_MS)
                pipe.zadd(key, {name: _score(now, message.payload)}, nx=True)
                ids.append(name)
            known, *answers = await pipe.execute(raise_on_error=False)
            added = answers[1::2]
            for answer in (known, *answers[::2], *(one for one in added if not _is_wrong_type(one))):
                if isinstance(answer, Exception):
                    raise answer
        refused = {m.queue_name: key for m, key, one in zip(messages, keys, added, strict=True) if _is_wrong_type(one)}
        if refused:
            held = ", ".join(sorted(refused.values()))[:500]
            problem = f"Redis at {self.address} has something else than a queue in {held}"
            raise QueueRefused(refused, problem, "delete or rename it there, and the jobs are delivered")
        return ids

    def queue_key(self, queue: str) -> str:
        return self.names.key(queue)

    def delivery_name(self, job_id: UUID, number: int) -> str:
        return delivery_id({"job_id": job_id, "number": number})

    async def missing(self, delivered: Sequence[tuple[str, str]]) -> set[str]:
        """Those that Redis does not have; and those that no worker would ever take, which it has no more then."""
        lost: set[str] = set()
        async with self._asking() as redis:
            for queue in {queue for queue, _ in delivered}:
                key, names = self.names.key(queue), [name for of, name in delivered if of == queue]
                try:
                    await drop_hidden(redis, key, names)
                    scores = await redis.zmscore(key, names)
                except ResponseError as error:
                    if not _is_wrong_type(error):
                        raise
                    scores = [None] * len(names)
                lost |= {name for name, score in zip(names, scores, strict=True) if score is None}
        return lost

    async def get_job_metadata(self, backend_job_id: str) -> dict[str, Any] | None:
        job_id = job_of(backend_job_id)
        job = None if job_id is None else await self._store.queries.job(job_id)
        if job is None:
            return None
        key = self.names.key(job.queue)
        async with self._asking() as redis, redis.pipeline(transaction=True) as pipe:
            pipe.zscore(key, backend_job_id)
            pipe.exists(in_progress_key_prefix + backend_job_id)
            pipe.get(retry_key_prefix + backend_job_id)
            pipe.get(job_key_prefix + backend_job_id)
            score, taken, tries, body = await pipe.execute()
        if score is None:
            return None
        sent = _sent_at(body)
        return {
            "status": "in_progress" if taken else "queued",
            "queue": key,
            "tries": int(tries or 0),
            "enqueued_at": None if sent is None else sent.isoformat(),
        }

    async def get_job_result(self, backend_job_id: str) -> object | None:
        return await stored_result(self._store, backend_job_id)

    async def ping(self) -> str:
        """The version of the server."""
        async with self._asking() as redis:
            return str((await redis.info("server"))["redis_version"])

    async def depths(self) -> dict[str, int]:
        """How many messages wait in each queue."""
        async with self._asking() as redis:
            queues = await self.names.read_known(redis)
            return {queue: await redis.zcard(self.names.key(queue)) for queue in queues}

    async def close(self) -> None:
        await self._redis.aclose(close_connection_pool=True)

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[ArqRedis]:
        try:
            yield self._redis
        except (RedisError, OSError, TimeoutError, *_MISREAD) as error:
            raise away(self.address, error) from error


async def drop_hidden(redis: ArqRedis, key: str, names: Sequence[str]) -> int:
    """Deletes those messages of a queue that no worker would ever take, and what hides them; returns how many."""
    async with redis.pipeline(transaction=False) as pipe:
        pipe.zmscore(key, [*names])
        for name in names:
            pipe.pttl(in_progress_key_prefix + name)
        scores, *expiries = await pipe.execute()
    latest = time.time_ns() // 1_000_000 + LONGEST_HIDDEN_MS
    hidden = {
        name
        for name, score, expiry in zip(names, scores, expiries, strict=True)
        # -1: a key that never expires. Arq takes a score of 0 for none.
        if score is not None and (expiry == -1 or expiry > LONGEST_HIDDEN_MS or score == 0 or score > latest)
    }
    if hidden:
        await redis.zrem(key, *hidden)
        await redis.delete(*(in_progress_key_prefix + name for name in hidden))
    return len(hidden)


def _is_wrong_type(answer: object) -> bool:
    """Whether a key that has the name of a queue holds something else."""
    return isinstance(answer, ResponseError) and "WRONGTYPE" in str(answer)


def away(address: RedisAddress, error: BaseException) -> BackendAway:
    return BackendAway(f"Redis at {address} does not answer as it should ({type(error).__name__}): {error}")


def _score(now: int, payload: Mapping[str, Any]) -> int:
    better = LOWEST_PRIORITY - min(int(payload["priority"]), LOWEST_PRIORITY)
    return now - better * STEP_MS


def _sent_at(body: bytes | None) -> datetime | None:
    try:
        return None if body is None else datetime.fromtimestamp(decode(body)["et"] / 1000, UTC)
    except msgspec.DecodeError:
        return None
