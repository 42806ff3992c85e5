"""Calls from a thread into an event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
POLL = 0.05  # seconds; a waiting thread can be interrupted only between two polls


def on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class LoopCall(Generic[T]):
    """Runs a coroutine on the loop; starts at once, and `wait` blocks for the result.

    The thread may be interrupted at any instruction, because errors are raised in it from outside. An
    interrupt inside a concurrent.futures.Future would leave its lock held, and the loop would wait for it forever when
    it sets the result. A SimpleQueue has no lock that Python code can leave held.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._done: SimpleQueue[asyncio.Task[T]] = SimpleQueue()
        self._loop = loop
        loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop.create_task(work()).add_done_callback(self._done.put)

    def wait(self) -> T:
        """Returns the result or raises the error; CancelledError of concurrent.futures if the loop gave up."""
        while True:
            try:
                task = self._done.get(timeout=POLL)
            except Empty:
                if self._loop.is_closed() and self._done.empty():  # then no result can come
                    raise CancelledError from None
                continue
            if task.cancelled():
                raise CancelledError
            return task.result()
