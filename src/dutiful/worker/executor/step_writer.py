"""Reads and writes steps, those of all handlers of a worker together."""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

from dutiful.concurrency.daemon_pool import DaemonPool
from dutiful.core import ids
from dutiful.core.errors import ClaimLost, DataRefused, DutifulError
from dutiful.core.job import Claim
from dutiful.core.steps import StepRecord
from dutiful.observe.logs import job_fields
from dutiful.observe.outage import level_of
from dutiful.store.steps import StepMark, StepStore, StepWait

log = logging.getLogger("dutiful.worker")
BATCH = 1_000
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0
T = TypeVar("T")
R = TypeVar("R")
AGAIN = object()  # the answer for an item that is tried again


class GroupCall(Generic[T, R]):
    """Calls the store once for all items that came in while the last call was under way."""

    def __init__(self, call: Callable[[Sequence[T]], Awaitable[Sequence[Any]]]) -> None:
        """`call` answers for each item: with its result, an exception, or AGAIN."""
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._running: asyncio.Task[None] | None = None
        self._context = contextvars.copy_context()  # not that of the handler that comes first
        self._closed = False

    async def __call__(self, item: T) -> R:
        if self._closed:
            raise ClaimLost("this worker has ended")
        answer: asyncio.Future[R] = self._loop.create_future()
        self._waiting.append((item, answer))
        if self._running is None:
            self._running = self._loop.create_task(self._run(), name="dutiful steps", context=self._context)
        return await answer

    def close(self) -> None:
        self._closed = True
        if self._running is not None:
            self._running.cancel()
        for _, answer in self._waiting:
            if not answer.done():
                answer.set_exception(ClaimLost("this worker has ended"))

    async def _run(self) -> None:
        pause = FIRST_RETRY
        try:
            while batch := self._take():
                try:
                    again = await self._answer(batch)
                except DutifulError as error:
                    log.log(level_of(error), "steps wait for the store: %s", error)
                    again = batch
                if again:
                    self._waiting[:0] = again
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_RETRY)
                else:
                    pause = FIRST_RETRY
        finally:
            self._running = None

    def _take(self) -> list[tuple[T, "asyncio.Future[R]"]]:
        wanted = [one for one in self._waiting if not one[1].done()]  # else its caller has given up
        self._waiting = wanted[BATCH:]
        return wanted[:BATCH]

    async def _answer(self, batch: list[tuple[T, "asyncio.Future[R]"]]) -> list[tuple[T, "asyncio.Future[R]"]]:
        """Returns those to be tried again."""
        try:
            answers = await self._call([item for item, _ in batch])
        except Exception as error:
            if isinstance(error, DutifulError) and not isinstance(error, DataRefused):
                raise  # not caused by an item
            if len(batch) > 1:
                middle = len(batch) // 2
                return [*await self._answer(batch[:middle]), *await self._answer(batch[middle:])]
            answers = [error]
        again = []
        for (item, future), answer in zip(batch, answers, strict=True):
            if answer is AGAIN:
                again.append((item, future))
            elif not future.done():
                future.set_exception(answer) if isinstance(answer, BaseException) else future.set_result(answer)
        return again


class StepWriter:
    """Reads and writes the steps of all attempts of a worker."""

    def __init__(self, store: StepStore, threads: int) -> None:
        self._store = store
        self.load: GroupCall[Claim, list[StepRecord]] = GroupCall(self._load)
        self.put: GroupCall[StepMark, None] = GroupCall(self._put)
        self._threads = DaemonPool(threads, "dutiful step")

    async def wait(self, wait: StepWait, claim: Claim) -> tuple[StepRecord, datetime]:
        """Begins to wait, or goes on; tries again until the store answers."""
        pause = FIRST_RETRY
        while True:
            try:
                found = await self._store.wait(wait)
            except DataRefused:
                raise
            except DutifulError as error:
                job = ids.public(claim.job_id)
                log.log(level_of(error), "job %s cannot begin to wait: %s", job, error, extra=job_fields(claim))
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_RETRY)
                continue
            if found is None:
                raise _lost(wait)
            return found

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        """Runs a plain function beside the event loop; one whose attempt ends runs on, and its result is lost."""
        thread = self._threads.submit(partial(contextvars.copy_context().run, call))
        try:
            return await asyncio.wrap_future(thread)
        except asyncio.CancelledError:
            self._threads.leave(thread)
            raise

    def close(self) -> None:
        self.load.close()
        self.put.close()
        self._threads.close()

    async def _load(self, claims: Sequence[Claim]) -> Sequence[Any]:
        found = await self._store.load([claim.job_id for claim in claims])
        return [found.get(claim.job_id, []) for claim in claims]

    async def _put(self, marks: Sequence[StepMark]) -> Sequence[Any]:
        unstored = await self._store.put(marks)
        if not unstored.lost and not unstored.busy:
            return [None] * len(marks)
        return [
            _lost(mark) if mark.claim_id in unstored.lost else AGAIN if mark.claim_id in unstored.busy else None
            for mark in marks
        ]


def _lost(of: StepMark | StepWait) -> ClaimLost:
    return ClaimLost(f"the claim of job {ids.public(of.job_id)} is lost: its step {of.name} is not stored")
