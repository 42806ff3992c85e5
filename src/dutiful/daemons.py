"""Threads that a process does not wait for when it ends, as it does for those of a ThreadPoolExecutor."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

Task = tuple["Future[Any]", Callable[[], Any]]


class Daemons:
    """Up to `size` of them, started when they are needed; what they are given waits in line."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._line: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._spare = 0  # threads that are idle, less what waits in line
        self._closed = False

    def submit(self, function: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads of {self._name} are closed")
            self._line.put((future, function))
            self._spare -= 1
            if self._spare < 0 and self._threads < self._size:
                self._spare += 1
                self._threads += 1
                threading.Thread(target=self._run, name=f"{self._name} {self._threads}", daemon=True).start()
        return future

    def close(self) -> None:
        """What waits in line is cancelled; what runs goes on, and its thread ends with it."""
        with self._lock:
            self._closed = True
            while True:
                try:
                    task = self._line.get_nowait()
                except Empty:
                    break
                if task is not None:
                    task[0].cancel()
            for _ in range(self._threads):
                self._line.put(None)

    def _run(self) -> None:
        while True:
            task = self._line.get()
            if task is None:
                return
            _fulfil(*task)
            del task  # while this thread is idle, it keeps nothing alive
            with self._lock:
                self._spare += 1


def _fulfil(future: "Future[Any]", function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except StopIteration as error:
        # No future that is awaited can carry it; in a coroutine it turns into this, too.
        stopped = RuntimeError("it raised StopIteration")
        stopped.__cause__ = error
        future.set_exception(stopped)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
