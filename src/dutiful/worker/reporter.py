"""Writes phases and progress in batches: while one round trip is under way, what comes in waits for the next."""

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dutiful.core import ids
from dutiful.core.errors import ClaimLost, DataRefused, DutifulError
from dutiful.core.job import Claim, PhaseRecord
from dutiful.observe.logs import about
from dutiful.tracking import PhaseMark, Tracking
from dutiful.worker.track import Track

log = logging.getLogger("dutiful.worker")
BATCH = 1_000
PAUSE = 0.25  # between two writes of mere progress
SHARE = 20  # progress may take one part in so many of the time
LONGEST_PAUSE = 10.0
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0


@dataclass(slots=True, eq=False)
class _Entry:
    """What one job has to say; with `stored`, somebody waits until it is."""

    track: Track
    marks: Sequence[PhaseMark] = ()
    stored: "asyncio.Future[None] | None" = None

    @property
    def given_up(self) -> bool:
        return self.stored is not None and self.stored.done()

    def settle(self, error: Exception | None = None) -> None:
        if self.stored is None or self.stored.done():
            return
        if error is None:
            self.stored.set_result(None)
        else:
            self.stored.set_exception(error)


class Reporter:
    """One for a worker. It writes one batch at a time, so that a job's reports are stored in their order."""

    def __init__(self, tracking: Tracking, news: Callable[[], None]) -> None:
        self._tracking = tracking
        self._news = news
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: list[_Entry] = []
        self._noted: dict[int, Track] = {}
        self._underway: frozenset[int] = frozenset()  # the claims whose reports are being written
        self._due = 0.0  # when what was noted may be written
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._context = contextvars.copy_context()  # not that of the handler who happens to speak first
        self._closed = False

    async def phases(self, claim: Claim) -> list[PhaseRecord]:
        """As the store has them, which is asked until it answers."""
        pause = FIRST_RETRY
        while True:
            try:
                return await self._tracking.phases(claim.job_id)
            except DutifulError as error:
                job = ids.public(claim.job_id)
                log.warning("job %s waits for what is known of its phases: %s", job, error, extra=about(claim))
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_RETRY)

    async def mark(self, track: Track, marks: Sequence[PhaseMark]) -> None:
        """Store them with the track as it is now; returns when they are. ClaimLost if the job is not ours any more."""
        entry = _Entry(track, marks, self._loop.create_future())
        self._waiting.append(entry)
        self._turn()
        assert entry.stored is not None
        await entry.stored

    def note(self, track: Track) -> None:
        """Store the track soon, together with what it says until then. From any thread."""
        if track.claim_id in self._noted:
            return
        self._noted[track.claim_id] = track
        if threading.get_ident() == self._thread:
            self._turn()
        else:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to write it
                self._loop.call_soon_threadsafe(self._turn)

    async def last_word(self, track: Track) -> None:
        """Store what the track said last, if that is not done, and take no more of it."""
        try:
            if track.claim_id in self._noted or track.claim_id in self._underway:
                await self.mark(track, ())
        finally:
            track.closed = True
            self._noted.pop(track.claim_id, None)

    def close(self) -> None:
        """Write no more; who waits for it, or ever will, is told so."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()
        self._turn()

    def _turn(self) -> None:
        """See whether there is something to write now, or later."""
        if self._closed:
            waiting, self._waiting = self._waiting, []
            for entry in waiting:  # of a handler that outlives its worker
                entry.settle(
                    ClaimLost(f"job {ids.public(entry.track.job_id)} is no longer ours: this worker has ended")
                )
            return
        if self._writing is not None:
            return  # it looks again when it is done
        if self._waiting or (self._noted and time.monotonic() >= self._due):
            self._writing = self._loop.create_task(self._write(), name="dutiful reporter", context=self._context)
        elif self._noted and self._timer is None:
            wait = self._due - time.monotonic()
            self._timer = self._loop.call_later(wait, self._ring, context=self._context)

    def _ring(self) -> None:
        self._timer = None
        self._turn()

    async def _write(self) -> None:
        pause = FIRST_RETRY
        try:
            while batch := self._take():
                self._underway = frozenset(entry.track.claim_id for entry in batch)
                began = time.monotonic()
                try:
                    await self._store(batch)
                    pause = FIRST_RETRY
                    self._news()
                except DutifulError as error:
                    log.warning("progress waits to be stored: %s", error)
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
                    took = time.monotonic() - began
                    self._due = began + min(max(PAUSE, SHARE * took), LONGEST_PAUSE)
        finally:
            self._underway = frozenset()
            self._writing = None
            self._turn()

    def _take(self) -> list[_Entry]:
        """Those somebody waits for, and when it is time those that were noted; each job once."""
        batch: dict[int, _Entry] = {}
        rest: list[_Entry] = []
        for entry in self._waiting:
            if not entry.given_up:
                known = len(batch) >= BATCH or entry.track.claim_id in batch
                rest.append(entry) if known else batch.setdefault(entry.track.claim_id, entry)
        self._waiting = rest
        if time.monotonic() >= self._due:
            for claim_id in list(self._noted)[: BATCH - len(batch)]:
                if claim_id not in batch:
                    batch[claim_id] = _Entry(self._noted[claim_id])
        for claim_id in batch:
            # Before its report is made, so that what is said after that is noted again.
            self._noted.pop(claim_id, None)
        return list(batch.values())

    def _put_back(self, batch: Sequence[_Entry]) -> None:
        self._waiting = [entry for entry in batch if entry.stored is not None] + self._waiting
        for entry in batch:
            if entry.stored is None and not entry.track.closed:
                self._noted.setdefault(entry.track.claim_id, entry.track)

    async def _store(self, batch: Sequence[_Entry]) -> None:
        marks = [mark for entry in batch for mark in entry.marks]
        try:
            lost = await self._tracking.report([entry.track.report() for entry in batch], marks)
        except Exception as error:
            if isinstance(error, DutifulError) and not isinstance(error, DataRefused):
                raise  # nobody's fault here: the whole batch is tried again
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._store(batch[:middle])
                await self._store(batch[middle:])
                return
            strange = None if isinstance(error, DataRefused) else error
            claim = batch[0].track.claim
            job = ids.public(claim.job_id)
            log.warning("what job %s says of itself is refused: %s", job, error, exc_info=strange, extra=about(claim))
            batch[0].settle(error)
            return
        for entry in batch:
            if entry.track.claim_id in lost:
                entry.track.closed = True
                entry.settle(ClaimLost(f"job {ids.public(entry.track.job_id)} is no longer ours"))
            else:
                entry.settle()
