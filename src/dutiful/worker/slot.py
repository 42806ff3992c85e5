"""One place in a lane: the job that runs there now, and how to make it stop."""

import asyncio
import contextvars
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from typing import Any

from dutiful.core.job import Claim
from dutiful.kind import Kind, Mode


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
        "abandoned",
        "claim",
        "closing",
        "deadline",
        "kind",
        "lane",
        "started",
        "stop",
        "task",
        "told_at",
    )

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self.task: asyncio.Task[None] | None = None
        self.claim: Claim | None = None
        self.kind: Kind[Any, Any] | None = None
        self.started = 0.0
        self.deadline: float | None = None
        self.stop: Stop | None = None
        self.told_at = 0.0
        self.abandoned = False  # its claim was given back while its handler ran on
        self.closing = False  # the worker itself cancels the task now
        self._interrupt: Callable[[Stop], None] | None = None

    def begin(self, claim: Claim, kind: Kind[Any, Any]) -> None:
        self.claim = claim
        self.kind = kind
        self.stop = None
        self.deadline = None
        if kind.mode is not Mode.PROCESS:  # that one waits for a process first
            self.count_from_now()

    def count_from_now(self) -> None:
        """The handler begins: its time counts from here."""
        self.started = time.monotonic()
        if self.kind is not None and self.kind.timeout is not None:
            self.deadline = self.started + self.kind.timeout.total_seconds()

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

    def interrupted_by(self, interrupt: Callable[[Stop], None]) -> None:
        """How to reach a handler that does not run on the event loop (a thread, a process)."""
        self._interrupt = interrupt
        if self.stop is not None:
            interrupt(self.stop)

    def tell(self, stop: Stop) -> None:
        """Ask the handler to stop; the first reason holds, later calls ask again."""
        if self.claim is None or self.task is None:
            return
        self.stop = self.stop or stop
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
