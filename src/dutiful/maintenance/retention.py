"""Marks finished jobs stale and deletes them when their time is over, in small steps."""

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from dutiful.concurrency.daemon_pool import DaemonPool
from dutiful.core import ids
from dutiful.core.job import JobRecord
from dutiful.delivery.base import QueueLevels
from dutiful.observe.logs import job_fields
from dutiful.store import Store
from dutiful.store.leadership import Survey
from dutiful.store.retention import KEEP_UNUSED, RetentionNotice, RetentionStep

log = logging.getLogger("dutiful.maintenance")
BATCH = 1_000
SLICE, SLICE_TIME = 100, 0.25  # jobs, seconds: no event waits long for the callbacks of other jobs
# At most this share of the time goes into deleting, so that it never starves jobs.
SHARE = 0.6
LONGEST_PAUSE, SHORTEST_PAUSE = 60.0, 1.0
RESTART_AFTER = 600.0
Callback = Callable[[JobRecord], Any]


class RetentionCursor:
    """How far a pass over the finished jobs has come, so that the next one does not repeat it."""

    def __init__(self) -> None:
        self.cursor: UUID | None = None
        self._began = time.monotonic()

    def advance(self, cursor: UUID | None) -> bool:
        """Moves to `cursor`; returns False at the end."""
        if cursor is not None:
            self.cursor = cursor
            return True
        if time.monotonic() - self._began > RESTART_AFTER:
            # Jobs that were too young when the cursor passed them are found again from the start.
            self.cursor, self._began = None, time.monotonic()
        return False


class Retention:
    """`stale_after` and `keep` count from a job's end; with both, only stale jobs are deleted.

    A callback runs before the job's event is sent. The store remembers which callbacks are due, so that another process
    calls them if this one dies.
    """

    name = "retention"

    def __init__(
        self,
        store: Store,
        keep: timedelta | None,
        stale_after: timedelta | None = None,
        *,
        on_stale: Sequence[Callback] = (),
        on_delete: Sequence[Callback] = (),
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._keep = keep
        self._stale_after = stale_after
        self._on_stale = on_stale
        self._on_delete = on_delete
        self._notify = notify
        self._stale_cursor, self._delete_cursor = RetentionCursor(), RetentionCursor()
        self._not_before = 0.0
        spans = [span.total_seconds() for span in (keep, stale_after) if span is not None]
        self._pause = min(LONGEST_PAUSE, max(SHORTEST_PAUSE, min(spans, default=LONGEST_PAUSE) / 20))

    async def tick(self, survey: Survey) -> QueueLevels | None:
        if time.monotonic() >= self._not_before:
            await self.run_once()
            self._not_before = time.monotonic() + self._pause
        return None

    async def run_once(self) -> None:
        """Runs one whole pass: marks jobs stale first, then deletes."""
        await self._send_unsent()  # a process may have died between the mark and the callback
        if self._stale_after is not None:
            await self._in_steps(self._mark_stale)
        if self._keep is not None:
            await self._in_steps(self._delete)
        keep = KEEP_UNUSED if self._keep is None else self._keep
        await self._in_steps(lambda: self._store.retention.delete_leftovers(keep, BATCH))

    async def _in_steps(self, step: Callable[[], Any]) -> None:
        more = True
        while more:
            began = time.monotonic()
            more = await step()
            if more:
                await asyncio.sleep((time.monotonic() - began) * (1 / SHARE - 1))

    async def _mark_stale(self) -> bool:
        assert self._stale_after is not None
        sent = not self._on_stale
        step = await self._store.retention.mark_stale(self._stale_after, BATCH, self._stale_cursor.cursor, sent=sent)
        await self._finish_step(step, deleted=False, sent=sent)
        return self._stale_cursor.advance(step.cursor)

    async def _delete(self) -> bool:
        """Reads the jobs that it deletes only if there are callbacks or watchers."""
        assert self._keep is not None
        cursor, stale_only, sent = self._delete_cursor.cursor, self._stale_after is not None, not self._on_delete
        wanted = not sent or await self._store.events.has_listeners()
        step = await self._store.retention.delete(
            self._keep, BATCH, cursor, stale_only=stale_only, tombstones=wanted, sent=sent
        )
        await self._finish_step(step, deleted=True, sent=sent)
        return self._delete_cursor.advance(step.cursor)

    async def _finish_step(self, step: RetentionStep, *, deleted: bool, sent: bool) -> None:
        if not sent:
            await self._send([RetentionNotice(job, deleted) for job in step.jobs])
        elif step.jobs:
            self._notify()

    async def _send_unsent(self) -> None:
        while notices := await self._store.retention.unsent(BATCH):
            await self._send(notices)

    async def _send(self, notices: Sequence[RetentionNotice]) -> None:
        """Runs callbacks, then releases the events; by the slice, because each release costs a commit."""
        left = deque(notices)
        # A pool of daemon threads, because a callback that hangs must not keep the process from exiting.
        with closing(DaemonPool(1, "dutiful retention")) as threads:
            while left:
                sent: list[RetentionNotice] = []
                until = time.monotonic() + SLICE_TIME
                try:
                    while left and len(sent) < SLICE and time.monotonic() < until:
                        for callback in self._on_delete if left[0].deleted else self._on_stale:
                            await _call(callback, left[0].job, threads)
                        sent.append(left.popleft())
                finally:
                    # Also when cancelled, so that the next leader does not repeat these callbacks.
                    stale = [one.job.id for one in sent if not one.deleted]
                    if sent:
                        await self._store.retention.mark_sent(stale, [one.job.id for one in sent if one.deleted])
                        self._notify()


async def _call(callback: Callback, job: JobRecord, threads: DaemonPool) -> None:
    """Logs a callback that fails, in whatever way; retention continues."""
    # In its own task, so that a callback that cancels itself, or awaits a cancelled task, does not end the service.
    calling = asyncio.create_task(_call_safely(callback, job, threads))
    try:
        await asyncio.wait([calling])
    except asyncio.CancelledError:
        calling.cancel()
        raise
    error = asyncio.CancelledError("it was cancelled") if calling.cancelled() else calling.result()
    if error is not None:
        name = getattr(callback, "__name__", callback)
        log.error("%s failed for job %s", name, ids.public(job.id), exc_info=error, extra=job_fields(job))


async def _call_safely(callback: Callback, job: JobRecord, threads: DaemonPool) -> BaseException | None:
    """Returns what it raised, SystemExit included, which out of a task would end the event loop."""
    try:
        if inspect.iscoroutinefunction(callback):
            await callback(job)
            return None
        answer = await asyncio.wrap_future(threads.submit(partial(callback, job)))
        if inspect.isawaitable(answer):  # from an object with an async __call__, or a lambda
            await answer
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return error
    return None
