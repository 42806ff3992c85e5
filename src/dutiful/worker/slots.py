"""The slots of a worker: the job that each one runs, and how a handler is made to stop."""

import asyncio
import contextvars
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Protocol, assert_never
from uuid import UUID

from dutiful.core.breaker.state import CallResult
from dutiful.core.job import Claim
from dutiful.core.states import State
from dutiful.kind import Kind, Mode, Phase
from dutiful.worker.counters import Timing

REPEAT_STOP = 1.0  # seconds after which a handler that had its time to stop is asked once more


class StopReason(Enum):
    """Why an attempt is asked to stop before its end."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    LOST = "lost"  # this worker no longer holds the claim
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class StopGrace:
    """How many seconds a handler that was asked to stop may take; then its job is settled without it."""

    timeout: float
    cancel: float

    def after(self, reason: StopReason) -> float | None:
        match reason:
            case StopReason.TIMEOUT:
                return self.timeout
            case StopReason.CANCEL | StopReason.LOST:
                return self.cancel
            case StopReason.SHUTDOWN:
                return None  # the worker has a grace period of its own for it
            case _:
                assert_never(reason)


@dataclass(frozen=True, slots=True, eq=False)
class LingeringHandler:
    """A handler that runs on although its job was settled without it."""

    claim: Claim
    lane: str
    running: "Future[Any] | asyncio.Task[None]"  # of its thread, or of its slot
    is_part: bool = False  # a thread that an async handler has started, and no longer waits for

    @property
    def ended(self) -> bool:
        return self.running.done()


class OwnCompletion(Protocol):
    """How a handler has completed its job in a transaction: kept with the attempt, because its thread may linger."""

    settled: State | None  # the transaction is committed
    completed_by_user: State | None  # whether it is committed, only the store knows


class SlotBatch(Protocol):
    """The jobs of a slot that has several, or that gathers them."""

    @property
    def claims(self) -> Sequence[Claim]:
        """Those that have no outcome yet."""

    def stop(self, claim: Claim, reason: StopReason) -> None: ...


@dataclass(slots=True, eq=False)
class Slot:
    """Runs one job at a time. Written by the event loop only; the lease thread reads it."""

    lane: str
    task: asyncio.Task[None] | None = None
    claim: Claim | None = None
    kind: Kind[Any, Any] | None = None
    batch: SlotBatch | None = None  # of which `claim` is the first; it gathers jobs while that is None
    started: float = 0.0
    deadline: float | None = None
    timeout: timedelta | None = None  # the one that the deadline comes from
    own_completion: OwnCompletion | None = None  # of the handler that runs
    stop: StopReason | None = None
    later_stop: StopReason | None = None  # another reason, given after the first
    stop_requested_at: float = 0.0
    stop_since: float = 0.0  # when the present reason was first given
    phase: tuple[Phase, int] | None = None  # that runs, and which attempt at it
    thread: tuple[UUID, Future[Any]] | None = None  # the job whose handler was started in a thread
    abandoned: bool = False  # the claim was settled or released while the handler still runs
    closing: bool = False  # from now on the worker itself cancels the task
    on_given_up: Callable[[CallResult], Coroutine[Any, Any, None]] | None = None  # reports to the breaker of its kind
    on_left: Callable[[CallResult], Coroutine[Any, Any, None]] | None = None  # reports for the blocks that it is in
    _interrupt: Callable[[StopReason], None] | None = None
    _leave: Callable[[], LingeringHandler | None] | None = None  # ends the wait for a handler in a thread
    _job_limit: tuple[float | None, timedelta | None] = (None, None)  # deadline and timeout outside of phases

    def begin(self, claim: Claim, kind: Kind[Any, Any]) -> None:
        self.claim = claim
        self.kind = kind
        self.stop = self.later_stop = self.own_completion = None
        self.deadline = self.timeout = self.phase = None
        if kind.mode is Mode.PROCESS:  # its clock starts once it has a process
            self.started = time.monotonic()
        else:
            self.start_clock()

    def start_clock(self) -> None:
        """Counts the job's time from now on, because its handler begins."""
        self.started = time.monotonic()
        timeout = None if self.kind is None else self.kind.timeout  # read once: it is looked up in the settings
        if timeout is not None:
            self.deadline, self.timeout = self.started + timeout.total_seconds(), timeout
        self._job_limit = self.deadline, self.timeout

    def begin_phase(self, phase: Phase, attempt: int) -> None:
        """Gives a phase its own timeout, but no longer than what is left of the job's own time."""
        self.phase = phase, attempt
        self.limit_to(phase.timeout)

    def limit_to(self, timeout: timedelta | None) -> None:
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
        self._interrupt = self._leave = self.phase = None

    def clear_phase_timeout(self) -> None:
        """Lets the job continue after a phase that exceeded its own timeout; any other reason to stop still holds."""
        if self.stop is StopReason.TIMEOUT and self.phase_deadline_applies:
            self.stop, self.later_stop = self.later_stop, None
            self.stop_requested_at, self.stop_since = 0.0, time.monotonic()
            if self.stop is None and self.task is not None:
                uncancel(self.task)

    def end(self) -> None:
        self.claim = self.kind = self.deadline = self.phase = None
        self._interrupt = self._leave = self.on_given_up = self.on_left = None

    @property
    def claims(self) -> list[Claim]:
        """The jobs that run in it."""
        if self.claim is None:
            return []
        return [self.claim] if self.batch is None else list(self.batch.claims)

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
    def is_completed(self) -> bool:
        """Whether its handler has completed the job in a transaction."""
        own = self.own_completion
        return own is not None and (own.settled or own.completed_by_user) is not None

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

    def set_interrupt(
        self,
        interrupt: Callable[[StopReason], None],
        leave: Callable[[], LingeringHandler | None] | None = None,
    ) -> None:
        """Says how to stop a handler that does not run on the event loop (a thread, a process).

        `leave` ends the wait for it, with the error of the stop, and returns what lingers; None if it has just ended.
        """
        self._interrupt, self._leave = interrupt, leave
        if self.stop is not None:
            interrupt(self.stop)

    def request_stop(self, reason: StopReason) -> None:
        """Asks the handler to stop; the first reason holds.

        It is not asked again while it has time to clean up, because that would interrupt what it does in `finally`.
        """
        if self.claim is None or self.task is None:
            return
        now, has_to_end = time.monotonic(), reason is StopReason.SHUTDOWN
        if self.stop is None:
            self.stop, self.stop_since, self.stop_requested_at = reason, now, 0.0
        else:
            has_to_end = has_to_end and reason not in (self.stop, self.later_stop)
            if reason is not self.stop:
                self.later_stop = reason
        if self.stop_requested_at >= self.stop_since and not self.abandoned and not has_to_end:
            return
        self.stop_requested_at = now
        if self._interrupt is not None:
            self._interrupt(self.stop)
        else:
            self.task.cancel()

    def is_overdue(self, grace: StopGrace, now: float) -> bool:
        """Whether the handler had its time to stop, and still runs."""
        if self.stop is None or self.claim is None or self.abandoned:
            return False
        allowed = grace.after(self.stop)
        return allowed is not None and now - self.stop_since >= allowed

    def leave_thread(self) -> tuple[bool, LingeringHandler | None]:
        """Whether it waits for a handler in a thread; if so, it does no more, and the handler lingers."""
        leave, self._leave = self._leave, None
        if leave is None:
            return False, None
        # What follows in its own task (the next phase, the store) has its time as well.
        self.stop_since = time.monotonic()
        return True, leave()


def uncancel(task: "asyncio.Task[Any]") -> None:
    """Takes all cancellations of a task back."""
    while task.uncancel() > 0:
        pass


class Slots:
    """All slots of one worker."""

    def __init__(self) -> None:
        self._all: list[Slot] = []
        self.lingering: list[LingeringHandler] = []

    def add(self, lane: str, number: int) -> list[Slot]:
        added = [Slot(lane) for _ in range(number)]
        self._all.extend(added)
        return added

    def replace(self, slot: Slot) -> Slot:
        """A slot for the place of one whose handler does not stop; the old one is still asked to stop."""
        (fresh,) = self.add(slot.lane, 1)
        return fresh

    def forget(self, slot: Slot, _: object = None) -> None:
        """Removes an abandoned slot whose handler has ended."""
        self._all.remove(slot)

    def overdue(self, grace: StopGrace) -> list[Slot]:
        """The slots whose handlers had their time to stop."""
        now = time.monotonic()
        return [slot for slot in self._all if slot.stop is not None and slot.is_overdue(grace, now)]

    def lingering_jobs(self) -> list[tuple[str, UUID]]:
        """Lanes and jobs of handlers that run without a slot; safe to call from any thread."""
        left = [(one.lane, one.claim.job_id) for one in list(self.lingering) if not one.ended]
        known = {job_id for _, job_id in left}
        slots = [slot for slot in list(self._all) if slot.claim is None or slot.claim.job_id not in known]
        return left + [(slot.lane, job_id) for slot in slots if (job_id := slot.lingering_job) is not None]

    def stop_job(self, job_id: UUID, reason: StopReason) -> None:
        for slot in self._all:
            # Every one, because a job that was claimed again may still run here under its lost claim.
            if slot.batch is not None:
                for claim in [one for one in slot.batch.claims if one.job_id == job_id]:
                    slot.batch.stop(claim, reason)
            elif slot.claim is not None and slot.claim.job_id == job_id:
                slot.request_stop(reason)

    def cancel(self, job_id: UUID) -> None:
        self.stop_job(job_id, StopReason.CANCEL)

    def lose(self, claim: Claim) -> bool:
        """Stops a job whose claim was lost; whether it runs here."""
        for slot in self._all:
            if slot.batch is not None:
                if any(one.claim_id == claim.claim_id for one in slot.batch.claims):
                    slot.batch.stop(claim, StopReason.LOST)
                    return slot.claim is not None
            elif slot.claim is not None and slot.claim.claim_id == claim.claim_id:
                if not slot.is_completed:  # else the claim is gone because the handler's transaction has ended it
                    slot.request_stop(StopReason.LOST)
                return True
        return False

    def stop_overdue(self) -> None:
        now = time.monotonic()
        for slot in self._all:
            if now - slot.stop_requested_at >= REPEAT_STOP:
                if slot.abandoned and slot.stop is not None:
                    slot.request_stop(slot.stop)
                elif slot.deadline is not None and now >= slot.deadline:
                    slot.request_stop(StopReason.TIMEOUT)

    def stop_all(self) -> list[Slot]:
        """Interrupts every running job because of a shutdown; returns their slots."""
        running = [slot for slot in self._all if slot.claim is not None and not slot.abandoned]
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
