"""One place in a lane: the job that runs there now, and how to make it stop."""

import asyncio
import contextvars
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from typing import Any
from uuid import UUID

from dutiful.core.job import Claim
from dutiful.core.transitions import State
from dutiful.kind import Kind, Mode
from dutiful.worker.pile import Span


class Stop(Enum):
    """Why an attempt is told to stop before its end."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    LOST = "lost"  # its claim is no longer ours
    SHUTDOWN = "shutdown"


class Slot:
    """Runs one job at a time. Read by the keeper's thread, written by the event loop's only."""

    __slots__ = (
        "_interrupt",
        "_whole",
        "abandoned",
        "allowed",
        "also",
        "claim",
        "closing",
        "deadline",
        "kind",
        "lane",
        "settled",
        "started",
        "stop",
        "task",
        "thread",
        "told_at",
    )

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self.task: asyncio.Task[None] | None = None
        self.claim: Claim | None = None
        self.kind: Kind[Any, Any] | None = None
        self.started = 0.0
        self.deadline: float | None = None
        self.allowed: timedelta | None = None  # the timeout that the deadline comes from
        self.settled: State | None = None  # by a transaction of the handler's own
        self.stop: Stop | None = None
        self.also: Stop | None = None  # another reason, that came after the first
        self.told_at = 0.0
        self.thread: tuple[UUID, Future[Any]] | None = None  # the job whose handler was begun in one
        self.abandoned = False  # its claim was given back while its handler ran on
        self.closing = False  # the worker itself cancels the task now
        self._interrupt: Callable[[Stop], None] | None = None
        self._whole: tuple[float | None, timedelta | None] = (None, None)  # deadline and timeout outside of phases

    def begin(self, claim: Claim, kind: Kind[Any, Any]) -> None:
        self.claim = claim
        self.kind = kind
        self.stop = self.also = self.settled = None
        self.deadline = self.allowed = None
        if kind.mode is Mode.PROCESS:  # that one waits for a process first
            self.started = time.monotonic()
        else:
            self.count_from_now()

    def count_from_now(self) -> None:
        """The handler begins: its time counts from here."""
        self.started = time.monotonic()
        if self.kind is not None and self.kind.timeout is not None:
            self.deadline = self.started + self.kind.timeout.total_seconds()
            self.allowed = self.kind.timeout
        self._whole = self.deadline, self.allowed

    def begin_phase(self, timeout: timedelta | None) -> None:
        """It has this long, and no longer than what is left of the job's own time."""
        if timeout is not None:
            deadline = time.monotonic() + timeout.total_seconds()
            if self.deadline is None or deadline < self.deadline:
                self.deadline, self.allowed = deadline, timeout

    @property
    def hurried(self) -> bool:
        """Whether the deadline is that of a phase, not the job's own."""
        return self.deadline != self._whole[0]

    def end_phase(self) -> None:
        self.deadline, self.allowed = self._whole
        self._interrupt = None

    def forgive(self) -> None:
        """Go on after a phase whose own time was over; any other reason to stop still holds."""
        if self.stop is Stop.TIMEOUT and self.hurried:
            self.stop, self.also = self.also, None
            self.told_at = 0.0
            if self.stop is None and self.task is not None:
                while self.task.uncancel() > 0:
                    pass

    def end(self) -> None:
        self.claim = self.kind = self.deadline = self._interrupt = None

    @contextmanager
    def unmoved(self) -> Iterator[None]:
        """Between jobs: a cancellation that a handler brought about or left behind ends here, unless we are closing."""
        try:
            yield
        except asyncio.CancelledError:
            if self.closing:
                raise
        if self.task is not None and not self.closing:
            while self.task.uncancel() > 0:
                pass

    @property
    def ran(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self.started)

    @property
    def outlived_by(self) -> UUID | None:
        """The job whose handler still runs when the slot itself is given up; asked by any thread."""
        if (thread := self.thread) is not None and not thread[1].done():
            return thread[0]
        claim, task = self.claim, self.task
        if claim is None or task is None or task.done() or task.get_loop().is_closed():
            return None
        return claim.job_id

    def span(self, claimed: float) -> Span:
        """Of the attempt that ran here until now, whose claim was made then."""
        return Span(self.started - claimed, time.monotonic() - self.started)

    def interrupted_by(self, interrupt: Callable[[Stop], None]) -> None:
        """How to reach a handler that does not run on the event loop (a thread, a process)."""
        self._interrupt = interrupt
        if self.stop is not None:
            interrupt(self.stop)

    def tell(self, stop: Stop) -> None:
        """Ask the handler to stop; the first reason holds, later calls ask again."""
        if self.claim is None or self.task is None:
            return
        if self.stop is None:
            self.stop = stop
        elif stop is not self.stop:
            self.also = stop
        self.told_at = time.monotonic()
        if self._interrupt is not None:
            self._interrupt(self.stop)
        else:
            self.task.cancel()


class Stepping:
    """Which slot's handler holds the event loop at this moment: whom to blame when it does not come back."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot: Slot | None = None


@types.coroutine
def in_own_context(
    handler: Coroutine[Any, Any, Any], context: contextvars.Context, stepping: Stepping, slot: Slot
) -> Generator[Any, Any, Any]:
    """Run a handler inside this task, but in a context of its own.

    A task for each job would isolate its context variables too, at several times the cost of a small job.
    """
    send, throw, run = handler.send, handler.throw, context.run
    value: Any = None
    error: BaseException | None = None
    while True:
        stepping.slot = slot
        try:
            yielded = run(send, value) if error is None else run(throw, error)
        except StopIteration as end:
            return end.value
        finally:
            stepping.slot = None
        value = error = None
        try:
            value = yield yielded
        except BaseException as raised:  # passed on to the handler, which is where it belongs
            error = raised
