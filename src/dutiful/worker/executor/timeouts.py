"""`ctx.timeout(…)`: a part of a handler that is stopped when its time is over, on the event loop or in a thread."""

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from types import TracebackType
from typing import Any, NoReturn

from dutiful.concurrency.daemon_pool import raise_in_thread
from dutiful.core.duration import Duration, brief, duration
from dutiful.core.errors import UsageError
from dutiful.core.outcome import TimeoutExceeded


class BlockTimeout:
    """Implements dutiful.context.Timeout.

    Once its time is over, the block can only end as timed out, whatever it returned or raised, unless the whole attempt
    was asked to stop. A block that does not end within `grace` has the attempt stopped, by `stop_attempt`.
    """

    def __init__(
        self,
        length: Duration,
        grace: float,
        stop_attempt: Callable[[timedelta], None],
        check_attempt: Callable[[], None],
    ) -> None:
        self._thread: _ThreadTimer | None = None
        self._length = duration(length, "ctx.timeout")
        if not self._length:
            raise UsageError("ctx.timeout needs a time above 0, as in ctx.timeout('30s')")
        self._grace = grace
        self._stop_attempt = stop_attempt
        self._check_attempt = check_attempt
        self._entered = False
        self._asyncio: asyncio.Timeout | None = None
        self._late: asyncio.TimerHandle | None = None

    # --- on the event loop

    async def __aenter__(self) -> "BlockTimeout":
        self._enter()
        seconds = self._length.total_seconds()
        self._asyncio = asyncio.timeout(seconds)
        await self._asyncio.__aenter__()
        self._late = asyncio.get_running_loop().call_later(seconds + self._grace, self._stop_attempt, self._length)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._asyncio is not None and self._late is not None
        self._late.cancel()
        try:
            await self._asyncio.__aexit__(kind, error, traceback)
        except TimeoutError:
            self._raise(error)
        # A cancellation that is left is meant for the whole attempt.
        if self._asyncio.expired() and not isinstance(error, asyncio.CancelledError):
            self._raise(error)

    # --- in a thread

    def __enter__(self) -> "BlockTimeout":
        if asyncio._get_running_loop() is not None:
            raise UsageError("on an event loop, write `async with ctx.timeout(…)`")
        self._enter()
        self._thread = _ThreadTimer(self._length, self._grace, self._stop_attempt)
        try:
            self._thread.start()
        except TimeoutExceeded as error:  # its time was over before the block began
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._thread is not None
        try:
            over = self._thread.end()
        except TimeoutExceeded:  # raised just now, and not in the block
            over = self._thread.end()
        if over:
            # What was about to be raised was withdrawn, also if it was meant to stop the whole attempt.
            self._check_attempt()
            self._raise(error)

    def __del__(self) -> None:
        # The interpreter may raise in __exit__ before its first line; then it has not ended its timer, and is gone.
        if self._thread is not None:
            self._thread.cancel()

    def _enter(self) -> None:
        if self._entered:
            raise UsageError("this ctx.timeout(…) was used before; make one for each block")
        self._entered = True

    def _raise(self, error: BaseException | None) -> NoReturn:
        late = TimeoutExceeded(f"a part of the handler ran longer than its timeout of {brief(self._length)}")
        late.limit = self._length
        # Its own interruption is no cause worth showing.
        ours = isinstance(error, (asyncio.CancelledError, TimeoutExceeded))
        raise late from (None if ours else error)


class _ThreadTimer:
    """Raises TimeoutExceeded in the thread that made it, when its time is over; blocks of one thread are nested."""

    # Of the attempt whose context this is, so that what one leaves behind does not reach the next in its thread.
    _innermost: ContextVar["_ThreadTimer | None"] = ContextVar("innermost", default=None)

    def __init__(self, length: timedelta, grace: float, stop_attempt: Callable[[timedelta], None]) -> None:
        self._ident = threading.get_ident()
        self._length = length
        self._grace = grace
        self._stop_attempt = stop_attempt
        outer = self._innermost.get()
        self._outer = outer if outer is not None and outer._ident == self._ident else None
        self._lock = threading.RLock()  # because __del__ may be called anywhere, also where it is held
        self._ended = self._fired = False
        self._timer = self._after(length.total_seconds(), self._fire)

    def start(self) -> None:
        self._innermost.set(self)
        self._timer.start()

    def end(self) -> bool:
        """Withdraws what was not raised yet; whether the time was over."""
        self.cancel()
        self._innermost.set(self._outer)
        if self._fired:
            raise_in_thread(self._ident, None)
            outer = self._outer
            while outer is not None:
                if outer._fired and not outer._ended:
                    raise_in_thread(self._ident, TimeoutExceeded)  # its error may have been withdrawn with ours
                outer = outer._outer
        return self._fired

    def cancel(self) -> None:
        with self._lock:
            self._ended = True
            self._timer.cancel()

    def _fire(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._fired = True
            raise_in_thread(self._ident, TimeoutExceeded)
            # A call into C is interrupted when it returns; if that takes too long, the job goes on without it.
            self._timer = self._after(self._grace, self._give_up)
            self._timer.start()

    def _give_up(self) -> None:
        if not self._ended:
            self._stop_attempt(self._length)

    @staticmethod
    def _after(seconds: float, call: Callable[[], Any]) -> threading.Timer:
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), call)
        timer.daemon = True
        return timer
