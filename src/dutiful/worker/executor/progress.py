"""The progress of attempts: handlers report it from any thread, and one writer stores it in batches."""

import asyncio
import contextvars
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec

from dutiful.core import ids
from dutiful.core.errors import ClaimLost, DataRefused, DutifulError, UsageError
from dutiful.core.items import ItemCounts, ItemName
from dutiful.core.job import Claim, PhaseRecord
from dutiful.core.retry.error_info import storable
from dutiful.observe.logs import job_fields
from dutiful.observe.outage import level_of
from dutiful.payload.key_ring import JobSeal
from dutiful.payload.sealing import seal_items, seal_message
from dutiful.store.progress import PhaseMark, ProgressReport, ProgressStore

log = logging.getLogger("dutiful.worker")
MESSAGE_LIMIT = 2_000
BATCH = 1_000
PAUSE = 0.25  # between two writes of mere progress
SHARE = 20  # progress may take one part in so many of the time
LONGEST_PAUSE = 10.0
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0


class ProgressSink(Protocol):
    """Where progress goes when it has changed."""

    def changed(self, tracker: "ProgressTracker") -> None: ...

    async def flush(self, tracker: "ProgressTracker") -> None:
        """Stores the last progress of a tracker, and ignores later changes."""


class ProgressTracker:
    """The progress of one attempt; `report` is taken at the moment it is written."""

    def __init__(self, claim: Claim, sink: ProgressSink, phases: int = 1, seal: JobSeal | None = None) -> None:
        self._seal = seal
        self.claim = claim
        self.job_id = claim.job_id
        self.claim_id = claim.claim_id
        self.closed = False  # later changes are ignored
        # Of the running phase, or of a job without phases; the last one is shown.
        self.item_counts: list[ItemCounts] = []
        self._sink = sink
        self._lock = threading.Lock()
        self._phases = phases
        self._phase: str | None = None
        self._position = 0
        self._percent: float | None = None
        self._counted = False  # the percentage follows from the items
        self._message: str | None = None

    def enter_phase(self, phase: str, position: int) -> None:
        """Starts the progress of a phase afresh."""
        with self._lock:
            self._phase, self._position = phase, position
            self._percent, self._counted, self._message = 0.0, False, None
            self.item_counts = []

    def finish_phase(self) -> None:
        """Sets the progress of a phase that has ended."""
        with self._lock:
            self._percent, self._counted = 100.0, False

    def progress(self, percent: float | None, message: str | None) -> None:
        if percent is not None:
            check_percent(percent)
        if message is not None and not isinstance(message, str):
            raise UsageError(f"the message of a progress must be a text, not {message!r:.80}")
        with self._lock:
            if percent is not None:
                self._percent, self._counted = percent, False
            if message is not None:
                self._message = message
        self._touch()

    def add_items(self, names: Iterable[ItemName]) -> ItemCounts:
        counts = ItemCounts(names)
        with self._lock:
            self.item_counts.append(counts)
            self._counted = True
        self._touch()
        return counts

    def mark(self, change: Callable[..., None], *args: object) -> None:
        """Changes item counts under the lock, so that no change is lost."""
        # No context manager of our own: a thread that is interrupted inside of one would keep the lock.
        with self._lock:
            change(*args)
        self._touch()

    def report(self) -> ProgressReport:
        with self._lock:
            percent, message = self._percent, self._message
            shown = self.item_counts[-1] if self.item_counts else None
            if self._counted and shown is not None and shown.total:
                percent = 100 * shown.ended / shown.total
            # Redacted here, because most messages of a busy handler are never stored.
            text = None if message is None else storable(str.__str__(message), MESSAGE_LIMIT)
            items = None if shown is None else shown.as_dict()
            if self._seal is not None:
                text = seal_message(self._seal, text)
                items = None if items is None else seal_items(self._seal, items)
            return ProgressReport(
                job_id=self.job_id,
                claim_id=self.claim_id,
                phase=self._phase,
                percent=percent,
                overall=None if percent is None else overall(self._position, percent, self._phases),
                message=text,
                items=None if items is None else msgspec.json.encode(items).decode(),
            )

    def _touch(self) -> None:
        if not self.closed:
            self._sink.changed(self)


@dataclass(slots=True, eq=False)
class _Entry:
    """A write of one job's progress; with `stored`, a caller waits for it."""

    tracker: ProgressTracker
    marks: Sequence[PhaseMark] = ()
    stored: "asyncio.Future[None] | None" = None

    def settle(self, error: Exception | None = None) -> None:
        if self.stored is not None and not self.stored.done():
            self.stored.set_result(None) if error is None else self.stored.set_exception(error)

    def lose(self, why: str = "") -> None:
        self.settle(ClaimLost(f"the claim of job {ids.public(self.tracker.job_id)} is lost{why}"))


class ProgressWriter:
    """Writes the progress of all jobs of a worker, one batch at a time, so that reports stay in order."""

    def __init__(self, store: ProgressStore, notify_watchers: Callable[[], None]) -> None:
        self._store = store
        self._notify_watchers = notify_watchers
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: list[_Entry] = []
        self._dirty: dict[int, ProgressTracker] = {}
        self._underway: frozenset[int] = frozenset()  # the claims whose reports are being written
        self._due = 0.0  # when dirty trackers may be written
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._context = contextvars.copy_context()  # not that of the handler that reports first
        self._closed = False

    async def phases(self, claim: Claim) -> list[PhaseRecord]:
        """Reads a job's phases, and tries again until the store answers."""
        pause = FIRST_RETRY
        while True:
            try:
                return await self._store.phases(claim.job_id)
            except DutifulError as error:
                job = ids.public(claim.job_id)
                text = "job %s waits for the record of its phases: %s"
                log.log(level_of(error), text, job, error, extra=job_fields(claim))
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_RETRY)

    async def write(self, tracker: ProgressTracker, marks: Sequence[PhaseMark]) -> None:
        """Stores marks and progress before it returns; ClaimLost if the job's claim is lost."""
        stored: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(_Entry(tracker, marks, stored))
        self._schedule()
        await stored

    def changed(self, tracker: ProgressTracker) -> None:
        """Stores a tracker soon, with the changes made until then. From any thread."""
        if tracker.claim_id in self._dirty:
            return
        self._dirty[tracker.claim_id] = tracker
        if threading.get_ident() == self._thread:
            self._schedule()
        else:
            with suppress(RuntimeError):  # the loop is closed, so it cannot be written
                self._loop.call_soon_threadsafe(self._schedule)

    def is_stored(self, tracker: ProgressTracker) -> bool:
        """Whether the last change of a tracker was stored, or is being stored."""
        return tracker.claim_id not in self._dirty

    async def flush(self, tracker: ProgressTracker) -> None:
        """Stores what is not stored yet of a tracker, and ignores later changes."""
        try:
            if tracker.claim_id in self._dirty or tracker.claim_id in self._underway:
                await self.write(tracker, ())
        finally:
            tracker.closed = True
            self._dirty.pop(tracker.claim_id, None)

    def close(self) -> None:
        """Writes no more; callers that wait, now or later, get ClaimLost."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()
        self._schedule()

    def _schedule(self) -> None:
        """Starts a write now, or sets the timer for one."""
        if self._closed:
            waiting, self._waiting = self._waiting, []
            for entry in waiting:  # of a handler that outlives its worker
                entry.lose(": this worker has ended")
            return
        if self._writing is not None:
            return  # it schedules again when it is done
        if self._waiting or (self._dirty and time.monotonic() >= self._due):
            self._writing = self._loop.create_task(self._write(), name="dutiful progress", context=self._context)
        elif self._dirty and self._timer is None:
            self._timer = self._loop.call_later(self._due - time.monotonic(), self._on_timer, context=self._context)

    def _on_timer(self) -> None:
        self._timer = None
        self._schedule()

    async def _write(self) -> None:
        pause = FIRST_RETRY
        try:
            while batch := self._take():
                self._underway = frozenset(entry.tracker.claim_id for entry in batch)
                began = time.monotonic()
                try:
                    await self._write_batch(batch)
                    pause = FIRST_RETRY
                    self._notify_watchers()
                except DutifulError as error:
                    log.log(level_of(error), "progress waits to be stored: %s", error)
                    self._put_back(batch)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_RETRY)
                except asyncio.CancelledError:
                    self._put_back(batch)
                    raise
                except Exception as error:
                    log.exception("progress could not be stored")
                    for entry in batch:
                        entry.settle(error)
                if any(entry.stored is None for entry in batch):
                    self._due = began + min(max(PAUSE, SHARE * (time.monotonic() - began)), LONGEST_PAUSE)
        finally:
            self._underway = frozenset()
            self._writing = None
            self._schedule()

    def _take(self) -> list[_Entry]:
        """Removes and returns writes that callers wait for, and dirty trackers when they are due; each job once."""
        batch: dict[int, _Entry] = {}
        rest = []
        for entry in self._waiting:
            if entry.stored is not None and not entry.stored.done():  # else its caller has given up
                known = len(batch) >= BATCH or entry.tracker.claim_id in batch
                rest.append(entry) if known else batch.setdefault(entry.tracker.claim_id, entry)
        self._waiting = rest
        if time.monotonic() >= self._due:
            for claim_id in list(self._dirty)[: BATCH - len(batch)]:
                if claim_id not in batch:
                    batch[claim_id] = _Entry(self._dirty[claim_id])
        for claim_id in batch:
            # Before its report is made, so that later changes make it dirty again.
            self._dirty.pop(claim_id, None)
        return list(batch.values())

    def _put_back(self, batch: Sequence[_Entry]) -> None:
        self._waiting = [entry for entry in batch if entry.stored is not None] + self._waiting
        for entry in batch:
            if entry.stored is None and not entry.tracker.closed:
                self._dirty.setdefault(entry.tracker.claim_id, entry.tracker)

    async def _write_batch(self, batch: Sequence[_Entry]) -> None:
        marks = [mark for entry in batch for mark in entry.marks]
        try:
            lost = await self._store.report([entry.tracker.report() for entry in batch], marks)
        except Exception as error:
            if isinstance(error, DutifulError) and not isinstance(error, DataRefused):
                raise  # not caused by the data: the whole batch is tried again
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._write_batch(batch[:middle])
                await self._write_batch(batch[middle:])
                return
            trace = None if isinstance(error, DataRefused) else error
            job, fields = ids.public(batch[0].tracker.job_id), job_fields(batch[0].tracker.claim)
            log.warning("the progress of job %s is refused: %s", job, error, exc_info=trace, extra=fields)
            batch[0].settle(error)
            return
        for entry in batch:
            if entry.tracker.claim_id in lost:
                entry.tracker.closed = True
                entry.lose()
            else:
                entry.settle()


def check_percent(percent: float) -> float:
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
        raise UsageError(f"progress of {percent!r} %: it must be a number from 0 to 100")
    return percent


def overall(position: int, percent: float, phases: int) -> int:
    """The percentage of a pipeline whose phase at `position` (the first is 0) is at `percent`; halves round up."""
    return math.floor((position * 100 + percent) / phases + 0.5)
