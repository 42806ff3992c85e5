"""Work that a thread has an event loop do for it, and waits for."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
LOOK = 0.05  # a thread that waits can be interrupted only between two looks


class Errand(Generic[T]):
    """Begins at once; `wait` says what came of it.

    The thread may be interrupted at any instruction, for errors are raised in it from outside. Inside a
    concurrent.futures.Future it would leave a lock behind, and the loop that brings the result would wait for that lock
    for ever. A SimpleQueue has none that Python code can leave behind.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._answer: SimpleQueue[asyncio.Task[T]] = SimpleQueue()
        self._loop = loop
        loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop.create_task(work()).add_done_callback(self._answer.put)

    def wait(self) -> T:
        """The result, or the error raised here; CancelledError of concurrent.futures if the loop gave it up."""
        while True:
            try:
                task = self._answer.get(timeout=LOOK)
            except Empty:
                if self._loop.is_closed() and self._answer.empty():  # then nobody is left to bring it
                    raise CancelledError from None
                continue
            if task.cancelled():
                raise CancelledError
            return task.result()
