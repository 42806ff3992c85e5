"""Daemon threads, for which a process does not wait when it ends, unlike those of a ThreadPoolExecutor."""

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

Task = tuple["Future[Any]", Callable[[], Any]]
# Threads of an event loop whose calls hang. With more of them, calls wait for one that ends, because a handler may try
# again and again, and a process may have so many threads only.
MOST_LEFT = 200


class DaemonPool:
    """Up to `size` threads, started when they are needed; further tasks are queued."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._queue: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._started = 0
        self._spare = 0  # idle threads less queued tasks
        self._left: set[Future[Any]] = set()  # running tasks that the pool no longer waits for
        self._closed = False

    def submit(self, function: Callable[[], Any], future: "Future[Any] | None" = None) -> "Future[Any]":
        future = Future() if future is None else future
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads of {self._name} are closed")
            self._queue.put((future, function))
            self._spare -= 1
            self._start_thread()
        return future

    def leave(self, future: "Future[Any]") -> bool:
        """Lets another thread take the place of the one that runs this task, and ends with it; False: it has ended."""
        with self._lock:
            if future.done() or self._closed:
                return False
            self._left.add(future)
            self._threads -= 1
            self._start_thread()
        return True

    @property
    def left(self) -> int:
        """How many threads still run what the pool no longer waits for."""
        return len(self._left)

    def close(self) -> None:
        """Cancels queued tasks; a running one continues, and its thread ends with it."""
        with self._lock:
            self._closed = True
            while True:
                try:
                    task = self._queue.get_nowait()
                except Empty:
                    break
                if task is not None:
                    task[0].cancel()
            for _ in range(self._threads):
                self._queue.put(None)

    def _start_thread(self) -> None:
        """Starts one if a task waits for it; under the lock."""
        if self._spare < 0 and self._threads < self._size:
            self._spare += 1
            self._threads += 1
            self._started += 1
            threading.Thread(target=self._run, name=f"{self._name} {self._started}", daemon=True).start()

    def _run(self) -> None:
        while True:
            task = self._queue.get()
            if task is None:
                return
            _run_task(*task)
            with self._lock:
                if task[0] in self._left:
                    self._left.discard(task[0])
                    return
                del task  # an idle thread must keep nothing alive
                self._spare += 1


class LoopThreads(ThreadPoolExecutor):
    """Threads of an event loop, for `asyncio.to_thread` and the like, in which calls that hang keep no others waiting.

    Another takes the place of one whose caller was cancelled, up to MOST_LEFT of them; `on_left` gets its future, in
    the caller's context.
    """

    def __init__(self, on_left: Callable[["Future[Any]"], None], size: int | None = None) -> None:
        super().__init__(1)  # an event loop takes nothing else; it starts no thread
        # As many as asyncio has by itself.
        self._pool = DaemonPool(size or min(32, (os.cpu_count() or 1) + 4), "asyncio")
        self._on_left = on_left

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return self._pool.submit(partial(fn, *args, **kwargs), _Call(self._leave))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.close()

    def _leave(self, call: "Future[Any]") -> None:
        if self._pool.left < MOST_LEFT and self._pool.leave(call):
            self._on_left(call)


class _Call(Future[Any]):
    """Cancelled by the event loop when its caller is."""

    def __init__(self, leave: Callable[[Future[Any]], None]) -> None:
        super().__init__()
        self._leave = leave
        self._is_left = False

    def cancel(self) -> bool:
        if super().cancel():
            return True
        if not self._is_left:
            self._is_left = True
            self._leave(self)
        return False


def _run_task(future: "Future[Any]", function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except StopIteration as error:
        # An awaited future cannot carry it; a coroutine turns it into a RuntimeError too.
        stopped = RuntimeError("it raised StopIteration")
        stopped.__cause__ = error
        future.set_exception(stopped)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def raise_in_thread(thread: int, error: type[Exception] | None) -> None:
    """Raises in the thread at its next Python instruction; None withdraws an error that was not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error and ctypes.py_object(error))
