"""Workers that take the ids of their jobs from Redis, through Arq; everything else is as in any worker.

`dutiful worker --arq` runs one. `worker_settings(app)` is for the command `arq`: `arq jobs.WorkerSettings`.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any
from uuid import UUID

from arq.connections import ArqRedis
from arq.constants import in_progress_key_prefix, job_key_prefix, retry_key_prefix
from arq.worker import Function, Retry, func
from arq.worker import Worker as Arq
from redis.exceptions import RedisError, ResponseError

from dutiful.app import Dutiful
from dutiful.client.client import Client
from dutiful.concurrency.cancellation import check_cancelled
from dutiful.core.errors import BackendAway, DutifulError, ShutdownTimeout, UsageError
from dutiful.declare.lane import ANY, LaneSettings
from dutiful.delivery.arq import (
    FUNCTION,
    ArqBackend,
    QueueNames,
    away,
    connect,
    connect_bounded,
    decode_any,
    drop_hidden,
    encode,
    settings_of,
)
from dutiful.delivery.redis_url import read_redis_url
from dutiful.observe.outage import OutageLog
from dutiful.observe.sparse import SparseLog
from dutiful.settings import DEFAULT_QUEUE
from dutiful.worker.lanes.inbox import Inbox, Receipt
from dutiful.worker.startup import StartLimit
from dutiful.worker.worker import Worker

log = logging.getLogger("dutiful.delivery")
IN_HAND = 20.0  # seconds that a message waits here for a free slot; then another worker may have it
TIMEOUT = IN_HAND + 10  # after a kill, Arq lets others have the messages in hand this much later, and 10 s
POLL_DELAY = 0.1
LOOK_FOR_QUEUES = 5.0
CONNECTIONS = 10  # to Redis, however many queues are served
# Who may enqueue may invent any number of queues, and each that is served asks Redis ten times a second. So of queues
# that no lane and no kind names, some are served at a time, and others take the places of some of them at each look.
MOST_FOUND, LOOKED_AT, TURNS = 50, 1_000, 5
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
LONGEST_DEFERRAL = 60
FINAL_WRITES = 1  # seconds in which a stopped `arq` may end what it writes to Redis about claimed jobs
UNLIMITED = 2**31  # tries of a message: the attempts of its job are counted in its row
LONGEST_NAME = 200  # of a message
# What Redis says of a message whose keys hold something else than Arq expects: Arq would end, again and again.
UNUSABLE = ("WRONGTYPE", "not an integer", "would overflow")
_CLOSING = "dutiful_closing"  # in the context of an Arq worker that hands over no more messages
_PREFIXES = (job_key_prefix, retry_key_prefix, in_progress_key_prefix)


class ArqIntake:
    """Takes messages from Redis, with one Arq worker for each queue, and offers them to a worker of Dutiful."""

    def __init__(self, backend: ArqBackend, lanes: Iterable[LaneSettings], queues: Iterable[str]) -> None:
        """`queues` are those of lanes that serve all; others are served when they are found in Redis."""
        self.inbox = Inbox()
        self._backend = backend
        self._lanes = list(lanes)
        self._declared = {DEFAULT_QUEUE, *queues}
        self._left: set[str] = set()  # queues that are no longer served, until their turn comes again
        self._dropped = SparseLog(log)
        self._outages = OutageLog("Redis", BackendAway, log)
        logging.getLogger("arq.worker").addFilter(_expired)
        self._outages.waiting = lambda: "running jobs continue, and no new ones are received"

    async def run(self) -> None:
        """Until it is cancelled; waits for a Redis that is away."""
        named = {queue for lane in self._lanes for queue in lane.queues} - {ANY}
        serves_all = any(ANY in lane.queues for lane in self._lanes)
        serving: dict[str, asyncio.Task[None]] = {}
        redis = connect_bounded(self._backend.address, CONNECTIONS)
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    wanted = named | (self._declared if serves_all else set())
                    if serves_all:
                        found = [queue for queue in serving if queue not in wanted]
                        try:
                            waiting = await self._backend.names.read_waiting(redis, LOOKED_AT)
                            found = _take_turns(found, [queue for queue in waiting if queue not in wanted])
                        except Exception as error:  # without this loop, nothing would be taken any more
                            if not isinstance(error, RedisError | OSError):  # those that take messages report these
                                self._outages.failed("a look for queues", error, log)
                        for queue in serving.keys() - wanted - {*found}:
                            self._left.add(queue)  # not cancelled: it may be in the middle of an exchange with Redis
                            del serving[queue]
                        wanted |= {*found}
                        self._left -= wanted
                    for queue in sorted(wanted - serving.keys()):
                        serving[queue] = tasks.create_task(self._serve(queue, redis), name=f"dutiful arq {queue}")
                    check_cancelled()
                    await asyncio.sleep(LOOK_FOR_QUEUES)
        finally:
            await redis.aclose(close_connection_pool=True)

    async def _serve(self, queue: str, redis: ArqRedis) -> None:
        """Runs an Arq worker, and another one after an error: Arq ends with its connection."""
        pause = FIRST_PAUSE
        while True:
            worker = _ArqWorker(
                [_function(partial(self.receive, queue))],
                **self._options(queue, redis),
                handle_signals=False,
            )
            worker.is_left = partial(self._left.__contains__, queue)
            worker.dropped = self._dropped
            began = asyncio.get_running_loop().time()
            try:
                await worker.async_run()
            except _Left:
                return
            except (RedisError, OSError, TimeoutError) as error:
                if UNUSABLE[0] in str(error):  # Redis answers; it would be called away and back at each try
                    key = self._backend.names.key(queue)
                    found = DutifulError(f"the key {key} of Redis holds something else than messages: delete it")
                    self._outages.failed(f"messages of queue {queue}", found, log)
                else:
                    self._outages.failed(queue, away(self._backend.address, error))
            except Exception as error:
                self._outages.failed(f"messages of queue {queue}", error, log)
            finally:
                await _close(worker)
            lasted = asyncio.get_running_loop().time() - began
            pause = FIRST_PAUSE if lasted > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _started(self, queue: str, _: dict[Any, Any]) -> None:
        self._outages.works(queue)

    def _options(self, queue: str, redis: ArqRedis) -> dict[str, Any]:
        return {
            **_options(redis),
            "on_startup": partial(self._started, queue),
            "queue_name": self._backend.names.key(queue),
            "max_jobs": max(slots_of(self._lanes, queue), 1),
        }

    async def receive(self, queue: str, ctx: dict[Any, Any], text: str) -> None:
        """Called by Arq with each message of a queue; when it returns, the job is claimed, or need not be."""
        if _CLOSING in ctx:  # redis kept the cancellation from the task that has read this message
            raise asyncio.CancelledError
        try:
            job_id = UUID(text)
        except ValueError:
            self._dropped.warning(
                "names no job", "a message in the queue %s of Redis names no job, and is dropped: %.100r", queue, text
            )
            return
        receipt = await self.inbox.offer(queue, job_id, ctx["job_id"], IN_HAND)
        if receipt is Receipt.ELSEWHERE:
            raise Retry(defer=min(2 ** min(ctx["job_try"], 6), LONGEST_DEFERRAL))
        if receipt is None:
            raise Retry


def _take_turns(serving: list[str], waiting: list[str]) -> list[str]:
    """Which queues are served next: those that are; if others wait for a place, without those that seem empty."""
    others = [queue for queue in waiting if queue not in serving]
    room = MOST_FOUND - len(serving)
    if len(others) <= room:
        return serving + others
    log.info("more than %d queues in Redis are named by no lane and no kind: they are served in turns", MOST_FOUND)
    empty = [queue for queue in serving if queue not in waiting]
    leaving = min(max(TURNS, len(empty)), len(others) - room)
    return sorted(serving, key=waiting.__contains__)[leaving:] + others[: room + leaving]


def slots_of(lanes: Iterable[LaneSettings], queue: str) -> int:
    """How many jobs of a queue these lanes run at a time."""
    return sum(lane.slots for lane in lanes if ANY in lane.queues or queue in lane.queues)


def _options(redis: ArqRedis) -> dict[str, Any]:
    return {
        # Not made by Arq, whose connections would wait for ever for a Redis that hangs.
        "redis_pool": redis,
        "job_timeout": TIMEOUT,
        "keep_result": 0,
        "max_tries": UNLIMITED,
        "poll_delay": POLL_DELAY,
        "job_serializer": encode,
        "job_deserializer": decode_any,
    }


def _function(receive: Callable[[dict[Any, Any], str], Awaitable[None]]) -> Function:
    return func(receive, name=FUNCTION, timeout=TIMEOUT, keep_result=0, max_tries=UNLIMITED)  # type: ignore[arg-type]


class _Left(Exception):
    """Ends a worker whose queue is not served any more."""


class _ArqWorker(Arq):
    """Drops what Arq would end with, because anything may be in a sorted set of Redis."""

    is_left: Callable[[], bool] | None = None
    dropped = SparseLog(log)

    async def start_jobs(self, job_ids: list[bytes]) -> None:
        readable = [name for name in job_ids if _is_name(name)]
        if garbage := [name for name in job_ids if not _is_name(name)]:
            self._log_dropped(len(garbage))
            await self.pool.zrem(self.queue_name, *garbage)
        running = len(self.tasks)
        try:
            await super().start_jobs(readable)
            if len(readable) >= self.queue_read_limit and len(self.tasks) == running < self.max_jobs:
                # All that Arq reads at once is hidden, so that what comes after it is never read.
                self._log_dropped(await drop_hidden(self.pool, self.queue_name, [name.decode() for name in readable]))
        except OverflowError:
            # An infinite score, which would be the first again. Arq has lost count of its slots, so it begins anew.
            self._log_dropped(await self.pool.zremrangebyscore(self.queue_name, "-inf", "-inf"))
            raise

    async def run_job(self, job_id: str, score: int) -> None:
        try:
            await super().run_job(job_id, score)
        except ResponseError as error:
            if not any(text in str(error) for text in UNUSABLE):
                raise
            self._log_dropped(1)
            await self.pool.zrem(self.queue_name, job_id)
            await self.pool.delete(*(prefix + job_id for prefix in _PREFIXES))

    def _log_dropped(self, count: int) -> None:
        if count:
            text = "%d entries of %s in Redis are no messages, and are dropped"
            self.dropped.warning("no message", text, count, self.queue_name)

    async def heart_beat(self) -> None:
        """Called after each look for messages."""
        await super().heart_beat()
        check_cancelled()
        if self.is_left is not None and self.is_left():
            raise _Left


def _is_name(name: bytes) -> bool:
    try:
        return 0 < len(name.decode()) <= LONGEST_NAME
    except UnicodeDecodeError:
        return False


class _Expired(logging.Filter):
    """Arq warns of each message whose body is not there."""

    _sparse = SparseLog(log)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg != "job %s expired":
            return True
        self._sparse.warning("expired", "message %s has no body in Redis, and is dropped", *(record.args or ("",)))
        return False


_expired = _Expired()


async def _close(worker: Arq) -> None:
    """Gives back the messages in hand. Arq cannot say goodbye to a Redis that is away."""
    worker.ctx[_CLOSING] = True
    for task in [*worker.tasks.values()]:
        task.cancel()
    await asyncio.gather(*worker.tasks.values(), return_exceptions=True)


class ArqWorker:
    """A worker of Dutiful that is fed by Arq; `await worker.run()` until `worker.stop()`."""

    def __init__(self, worker: Worker, intake: ArqIntake) -> None:
        self._worker = worker
        self._intake = intake
        self.id = worker.id
        self.stop, self.abort = worker.stop, worker.abort
        self.started = worker.started
        self.thread_left = worker.thread_left

    @property
    def replaced(self) -> bool:
        """Whether it has stopped because handlers linger in it."""
        return self._worker.replaced

    async def run(self, limit: StartLimit | None = None) -> None:
        feeding = asyncio.create_task(self._feed(), name="dutiful arq")
        try:
            await self._worker.run(limit)
        finally:
            await _cancelled(feeding)

    async def _feed(self) -> None:
        """From the first claim until no more are made."""
        await self._worker.started.wait()
        intake = asyncio.create_task(self._intake.run(), name="dutiful arq intake")
        try:
            await self._worker.stopping.wait()
        finally:
            await _cancelled(intake)


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def make_arq_worker(app: Dutiful, client: Client, *, services: bool = True, worker_id: UUID | None = None) -> ArqWorker:
    """A worker on an open client whose app has the setting redis_url."""
    intake = _make_intake(app, client)
    return ArqWorker(app.make_worker(client, services=services, worker_id=worker_id, inbox=intake.inbox), intake)


def _make_intake(app: Dutiful, client: Client) -> ArqIntake:
    if not isinstance(client.backend, ArqBackend):
        raise _no_redis()
    return ArqIntake(client.backend, app.settings.lanes, {kind.queue for kind in app.kinds.values()})


def worker_settings(app: Dutiful, queue: str = DEFAULT_QUEUE) -> type:
    """The settings of the command `arq`: `WorkerSettings = worker_settings(app)`, and `arq jobs.WorkerSettings`.

    Such a process serves one queue, and ends when Redis is away, as Arq does; its running jobs are run again then.
    """
    if app.settings.redis_url is None:
        raise _no_redis()
    slots = slots_of(app.settings.lanes, queue)
    if not slots:
        raise UsageError(f"no lane serves queue {queue!r}: name it in the setting lanes, or name another queue here")
    inside = _InsideArq(app, queue)
    address = read_redis_url(app.settings.redis_url)
    options = {
        **_options(connect(address)),
        "redis_settings": settings_of(address),  # for `arq --check`
        "functions": [_function(inside.receive)],
        "queue_name": QueueNames(app.settings.redis_prefix).key(queue),
        "max_jobs": slots,
        # Without it, Arq cancels that as well, and then ends without on_shutdown: running jobs would be lost.
        "job_completion_wait": FINAL_WRITES,
        "on_startup": staticmethod(inside.start),
        "on_shutdown": staticmethod(inside.stop),
    }
    return type("WorkerSettings", (), options)


class _InsideArq:
    """A worker of Dutiful in a process that Arq runs."""

    def __init__(self, app: Dutiful, queue: str) -> None:
        self._app = app
        self._queue = queue
        self._intake: ArqIntake | None = None
        self._worker: Worker | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self, _: dict[Any, Any]) -> None:
        await self._app.__aenter__()
        client = await self._app.client()
        self._intake = _make_intake(self._app, client)
        self._worker = self._app.make_worker(client, inbox=self._intake.inbox)
        self._running = asyncio.create_task(self._worker.run(StartLimit(self._app.settings.startup_timeout)))
        started = asyncio.create_task(self._worker.started.wait())
        await asyncio.wait([started, self._running], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._running.done():
            self._running.result()
        # A worker that ends by itself has failed; Arq would go on without it.
        self._running.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGTERM))

    async def receive(self, ctx: dict[Any, Any], text: str) -> None:
        assert self._intake is not None, "Arq calls no function before on_startup has returned"
        await self._intake.receive(self._queue, ctx, text)

    async def stop(self, _: dict[Any, Any]) -> None:
        if self._worker is not None and self._running is not None:
            self._worker.stop()
            try:
                await self._running
            except ShutdownTimeout as error:
                log.warning("%s", error)
        await self._app.__aexit__()


def _no_redis() -> UsageError:
    return UsageError("an Arq worker needs Redis: set redis_url, as in DUTIFUL_REDIS_URL=redis://localhost:6379/0")
