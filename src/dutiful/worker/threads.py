"""Runs blocking handlers in threads, and reaches them there when they are to stop."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from dutiful.context import CURRENT
from dutiful.core.errors import ClaimLost, JobCancelled
from dutiful.core.outcome import TimeoutExceeded
from dutiful.daemons import Daemons
from dutiful.worker.context import AttemptContext
from dutiful.worker.interrupt import raise_in
from dutiful.worker.slot import Slot, Stop

_RAISED: dict[Stop, type[Exception]] = {
    Stop.TIMEOUT: TimeoutExceeded,
    Stop.CANCEL: JobCancelled,
    Stop.LOST: ClaimLost,
    Stop.SHUTDOWN: ClaimLost,
}


class Threads:
    def __init__(self, size: int) -> None:
        self._daemons = Daemons(size, "dutiful job")

    async def run(
        self, function: Callable[..., Any], arguments: dict[str, Any], context: AttemptContext, slot: Slot
    ) -> Any:
        """Run it and wait for its thread, however long that takes: until then the slot is taken."""
        call = _Call(function, arguments)
        own = contextvars.copy_context()
        own.run(CURRENT.set, context)
        thread = self._daemons.submit(partial(own.run, _caught, call))
        slot.thread = context.job_id, thread
        running = asyncio.wrap_future(thread)
        slot.interrupted_by(call.interrupt)
        try:
            value, error = await asyncio.shield(running)
        except asyncio.CancelledError:
            # The slot is being closed; the thread cannot be, so at least it is told.
            call.interrupt(Stop.SHUTDOWN)
            running.cancel()  # nobody asks for its result any more, and it may come when the loop is long closed
            raise
        slot.thread = None  # it keeps what came of it
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # its traceback leads here

    def close(self) -> None:
        self._daemons.close()


def _caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What it returned or raised; as the exception of a future, a TimeoutError would be replaced by an empty one."""
    try:
        return call(), None
    except BaseException as error:
        return None, error


class _Call:
    """A function on its way through a thread."""

    def __init__(self, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self._function = function
        self._arguments = arguments
        self._thread: int | None = None
        self._lock = threading.Lock()
        self._stop: Stop | None = None

    def __call__(self) -> Any:
        try:
            with self._lock:
                if self._stop is not None:
                    raise _RAISED[self._stop]
                self._thread = threading.get_ident()
            return self._function(**self._arguments)
        except StopIteration as error:
            # No future can carry it, so that its slot would wait for ever; in a coroutine it turns into this too.
            raise RuntimeError("the handler raised StopIteration") from error
        finally:
            with self._lock:
                # An error that is on its way and comes too late would hit the pool, which does not get over it.
                raise_in(threading.get_ident(), None)
                self._thread = None

    def interrupt(self, stop: Stop) -> None:
        """Raise in the thread at its next Python instruction; code inside a C call notices when that returns."""
        with self._lock:
            self._stop = stop
            if self._thread is not None:
                raise_in(self._thread, _RAISED[stop])
