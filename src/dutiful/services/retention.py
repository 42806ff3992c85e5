"""Marks finished jobs stale and deletes them when their time is over, in small steps, for as long as there are any."""

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from dutiful.core import ids
from dutiful.core.job import JobRecord
from dutiful.daemons import Daemons
from dutiful.delivery import Lines
from dutiful.duties import Duties, Parted, Survey, Tidings
from dutiful.observe.logs import about
from dutiful.watching import Watching

log = logging.getLogger("dutiful.services")
BATCH = 1_000
SLICE, SLICE_TIME = 100, 0.25  # jobs, seconds: nobody's event waits long for the callbacks of others
# At most this share of the time goes into deleting, so that it never starves the work itself.
SHARE = 0.6
LONGEST_REST, SHORTEST_REST = 60.0, 1.0
FROM_START = 600.0
OTHERS_STAY = timedelta(days=30)  # what belongs to no job, at least
Callback = Callable[[JobRecord], Any]


class Old(Duties, Watching, Protocol):
    """What retention needs of a store."""


class Walk:
    """How far one pass over the finished jobs has come; the cursor spares a walk over what was seen before."""

    def __init__(self) -> None:
        self.cursor: UUID | None = None
        self._began = time.monotonic()

    def move(self, cursor: UUID | None) -> bool:
        """On to `cursor`; False at the end."""
        if cursor is not None:
            self.cursor = cursor
            return True
        if time.monotonic() - self._began > FROM_START:
            # What was too young when the cursor passed it is found again from the start.
            self.cursor, self._began = None, time.monotonic()
        return False


class Retention:
    """`stale_after` and `keep` count from a job's end; with both, only what is stale is deleted."""

    name = "retention"

    def __init__(
        self,
        store: Old,
        keep: timedelta | None,
        stale_after: timedelta | None = None,
        *,
        on_stale: Sequence[Callback] = (),
        on_delete: Sequence[Callback] = (),
        news: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._keep = keep
        self._stale_after = stale_after
        self._on_stale = on_stale
        self._on_delete = on_delete
        self._news = news
        self._stale_walk, self._delete_walk = Walk(), Walk()
        self._not_before = 0.0
        spans = [span.total_seconds() for span in (keep, stale_after) if span is not None]
        self._rest = min(LONGEST_REST, max(SHORTEST_REST, min(spans, default=LONGEST_REST) / 20))

    async def tick(self, survey: Survey) -> Lines | None:
        if time.monotonic() >= self._not_before:
            await self.once()
            self._not_before = time.monotonic() + self._rest
        return None

    async def once(self) -> None:
        """One whole pass: those whose turn has come become stale first, then what is past its time is deleted."""
        await self._tell_untold()  # a process may have died between the mark and the callback
        if self._stale_after is not None:
            await self._in_steps(self._mark_stale)
        if self._keep is not None:
            await self._in_steps(self._delete)
        stays = max(self._keep or OTHERS_STAY, OTHERS_STAY)
        await self._in_steps(lambda: self._store.tidy(stays, BATCH))

    async def _in_steps(self, step: Callable[[], Any]) -> None:
        more = True
        while more:
            began = time.monotonic()
            more = await step()
            if more:
                await asyncio.sleep((time.monotonic() - began) * (1 / SHARE - 1))

    async def _mark_stale(self) -> bool:
        assert self._stale_after is not None
        told = not self._on_stale
        parted = await self._store.mark_stale(self._stale_after, BATCH, self._stale_walk.cursor, told=told)
        await self._part(parted, deleted=False, told=told)
        return self._stale_walk.move(parted.cursor)

    async def _delete(self) -> bool:
        """Whoever wants to hear of each job has it deleted with care; otherwise nothing is read, only deleted."""
        careful = bool(self._on_delete) or await self._store.listened()
        return await (self._remove() if careful else self._retain())

    async def _remove(self) -> bool:
        assert self._keep is not None
        told = not self._on_delete
        parted = await self._store.remove(
            self._keep, BATCH, self._delete_walk.cursor, stale_only=self._stale_after is not None, told=told
        )
        await self._part(parted, deleted=True, told=told)
        return self._delete_walk.move(parted.cursor)

    async def _retain(self) -> bool:
        assert self._keep is not None
        stale_only = self._stale_after is not None
        retained = await self._store.retain(self._keep, BATCH, self._delete_walk.cursor, stale_only=stale_only)
        return self._delete_walk.move(retained.cursor)

    async def _part(self, parted: Parted, *, deleted: bool, told: bool) -> None:
        if not told:
            await self._tell([Tidings(job, deleted) for job in parted.jobs])
        elif parted.jobs:
            self._news()

    async def _tell_untold(self) -> None:
        while tidings := await self._store.untold(BATCH):
            await self._tell(tidings)

    async def _tell(self, tidings: Sequence[Tidings]) -> None:
        """The callbacks first, then the events: of a slice at a time, for each costs a commit."""
        left = deque(tidings)
        # Of our own, for a callback that hangs must not keep the process from its end.
        with closing(Daemons(1, "dutiful retention")) as threads:
            while left:
                told: list[Tidings] = []
                until = time.monotonic() + SLICE_TIME
                try:
                    while left and len(told) < SLICE and time.monotonic() < until:
                        for callback in self._on_delete if left[0].deleted else self._on_stale:
                            await _call(callback, left[0].job, threads)
                        told.append(left.popleft())
                finally:
                    # Also when we are told to stop: what was told of is not told again by the next.
                    stale = [one.job.id for one in told if not one.deleted]
                    if told:
                        await self._store.tell(stale, [one.job.id for one in told if one.deleted])
                        self._news()


async def _call(callback: Callback, job: JobRecord, threads: Daemons) -> None:
    """A callback that fails, in whatever way, is logged; the job's time is over all the same."""
    # In a task of its own: one that cancels itself, or waits for what is cancelled, does not end the service.
    calling = asyncio.create_task(_called(callback, job, threads))
    try:
        await asyncio.wait([calling])
    except asyncio.CancelledError:
        calling.cancel()
        raise
    error = asyncio.CancelledError("it was cancelled") if calling.cancelled() else calling.result()
    if error is not None:
        name = getattr(callback, "__name__", callback)
        log.error("%s failed for job %s", name, ids.public(job.id), exc_info=error, extra=about(job))


async def _called(callback: Callback, job: JobRecord, threads: Daemons) -> BaseException | None:
    """What it raised; an exit, too, which out of a task would end the event loop."""
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
