"""The slots of a worker: the job that each one runs, and how a handler is made to stop."""

import asyncio
import contextvars
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any
from uuid import UUID

from dutiful.core.job import Claim
from dutiful.core.states import State
from dutiful.kind import Kind, Mode
from dutiful.worker.counters import Timing

REPEAT_STOP = 1.0  # seconds after which a handler that runs past its deadline is asked to stop once more


class StopReason(Enum):
    """Why an attempt is asked to stop before its end."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    LOST = "lost"  # this worker no longer holds the claim
    SHUTDOWN = "shutdown"


@dataclass(slots=True, eq=False)
class Slot:
    """Runs one job at a time. Written by the event loop only; the lease thread reads it."""

    lane: str
    task: asyncio.Task[None] | None = None
    claim: Claim | None = None
    kind: Kind[Any, Any] | None = None
    started: float = 0.0
    deadline: float | None = None
    timeout: timedelta | None = None  # the one that the deadline comes from
    settled: State | None = None  # by the handler's own transaction
    stop: StopReason | None = None
    later_stop: StopReason | None = None  # another reason, given after the first
    stop_requested_at: float = 0.0
    thread: tuple[UUID, Future[Any]] | None = None  # the job whose handler was started in a thread
    abandoned: bool = False  # the claim was released while the handler still runs
    closing: bool = False  # from now on the worker itself cancels the task
    _interrupt: Callable[[StopReason], None] | None = None
    _job_limit: tuple[float | None, timedelta | None] = (None, None)  # deadline and timeout outside of phases

    def begin(self, claim: Claim, kind: Kind[Any, Any]) -> None:
        self.claim = claim
        self.kind = kind
        self.stop = self.later_stop = self.settled = None
        self.deadline = self.timeout = None
        if kind.mode is Mode.PROCESS:  # its clock starts once it has a process
            self.started = time.monotonic()
        else:
            self.start_clock()

    def start_clock(self) -> None:
        """Counts the job's time from now on, because its handler begins."""
        self.started = time.monotonic()
        if self.kind is not None and self.kind.timeout is not None:
            self.deadline = self.started + self.kind.timeout.total_seconds()
            self.timeout = self.kind.timeout
        self._job_limit = self.deadline, self.timeout

    def begin_phase(self, timeout: timedelta | None) -> None:
        """Gives a phase this long, but no longer than what is left of the job's own time."""
        if timeout is not None:
            deadline = time.monotonic() + timeout.total_seconds()
            if self.deadline is None or deadline < self.deadline:
                self.deadline, self.timeout = deadline, timeout

    @property
    def phase_deadline_applies(self) -> bool:
        """Whether the deadline is that of a phase, not the job's own."""
        return self.deadline != self._job_limit[0]

    def end_phase(self) -> None:
        self.deadline, self.timeout = self._job_limit
        self._interrupt = None

    def clear_phase_timeout(self) -> None:
        """Lets the job continue after a phase that exceeded its own timeout; any other reason to stop still holds."""
        if self.stop is StopReason.TIMEOUT and self.phase_deadline_applies:
            self.stop, self.later_stop = self.later_stop, None
            self.stop_requested_at = 0.0
            if self.stop is None and self.task is not None:
                uncancel(self.task)

    def end(self) -> None:
        self.claim = self.kind = self.deadline = self._interrupt = None

    @contextmanager
    def absorb_cancellation(self) -> Iterator[None]:
        """Between jobs: ends a cancellation that a handler caused or left behind, unless the worker is closing."""
        try:
            yield
        except asyncio.CancelledError:
            if self.closing:
                raise
        if self.task is not None and not self.closing:
            uncancel(self.task)

    @property
    def elapsed(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self.started)

    @property
    def lingering_job(self) -> UUID | None:
        """The job whose handler still runs after the slot was given up; safe to read from any thread."""
        if (thread := self.thread) is not None and not thread[1].done():
            return thread[0]
        claim, task = self.claim, self.task
        if claim is None or task is None or task.done() or task.get_loop().is_closed():
            return None
        return claim.job_id

    def timing(self, claimed_at: float) -> Timing:
        """The timing of the attempt that has just ended here."""
        return Timing(self.started - claimed_at, time.monotonic() - self.started)

    def set_interrupt(self, interrupt: Callable[[StopReason], None]) -> None:
        """Says how to stop a handler that does not run on the event loop (a thread, a process)."""
        self._interrupt = interrupt
        if self.stop is not None:
            interrupt(self.stop)

    def request_stop(self, reason: StopReason) -> None:
        """Asks the handler to stop; the first reason holds, later calls ask again."""
        if self.claim is None or self.task is None:
            return
        if self.stop is None:
            self.stop = reason
        elif reason is not self.stop:
            self.later_stop = reason
        self.stop_requested_at = time.monotonic()
        if self._interrupt is not None:
            self._interrupt(self.stop)
        else:
            self.task.cancel()


def uncancel(task: "asyncio.Task[Any]") -> None:
    """Takes all cancellations of a task back."""
    while task.uncancel() > 0:
        pass


class Slots:
    """All slots of one worker."""

    def __init__(self) -> None:
        self._all: list[Slot] = []

    def add(self, lane: str, number: int) -> list[Slot]:
        added = [Slot(lane) for _ in range(number)]
        self._all.extend(added)
        return added

    def stop_job(self, job_id: UUID, reason: StopReason) -> None:
        for slot in self._all:
            # Every one, because a job that was claimed again may still run here under its lost claim.
            if slot.claim is not None and slot.claim.job_id == job_id:
                slot.request_stop(reason)

    def cancel(self, job_id: UUID) -> None:
        self.stop_job(job_id, StopReason.CANCEL)

    def lose(self, claim: Claim) -> bool:
        """Stops a job whose claim was lost; whether it runs here."""
        for slot in self._all:
            if slot.claim is not None and slot.claim.claim_id == claim.claim_id:
                if slot.settled is None:  # else the claim is gone because the handler's transaction has ended it
                    slot.request_stop(StopReason.LOST)
                return True
        return False

    def stop_overdue(self) -> None:
        now = time.monotonic()
        for slot in self._all:
            if slot.deadline is not None and now >= slot.deadline and now - slot.stop_requested_at >= REPEAT_STOP:
                slot.request_stop(StopReason.TIMEOUT)

    def stop_all(self) -> list[Slot]:
        """Interrupts every running job because of a shutdown; returns their slots."""
        running = [slot for slot in self._all if slot.claim is not None]
        for slot in running:
            slot.request_stop(StopReason.SHUTDOWN)
        return running

    def close(self) -> None:
        for slot in self._all:
            slot.closing = True


@dataclass(slots=True)
class CurrentSlot:
    """The slot whose handler holds the event loop at this moment, which is at fault when the loop does not answer."""

    slot: Slot | None = None


@types.coroutine
def run_in_context(
    handler: Coroutine[Any, Any, Any], context: contextvars.Context, current: CurrentSlot, slot: Slot
) -> Generator[Any, Any, Any]:
    """Runs a handler inside this task, but in a context of its own.

    A task for each job would isolate its context variables too, at several times the cost of a small job.
    """
    send, throw, run = handler.send, handler.throw, context.run
    value: Any = None
    error: BaseException | None = None
    while True:
        current.slot = slot
        try:
            yielded = run(send, value) if error is None else run(throw, error)
        except StopIteration as end:
            return end.value
        finally:
            current.slot = None
        value = error = None
        try:
            value = yield yielded
        except BaseException as raised:  # passed on to the handler, which it is meant for
            error = raised
