"""Closes connections across forks: a fork waits for transactions to end, and the child closes what it inherited."""

import os
import threading
from collections.abc import Callable
from types import TracebackType
from weakref import WeakSet

from dutiful.stores.sqlite.engine.driver import LIBRARIES

REASON = "this store was opened before a fork: call open() in the child process as well"


class Gate:
    """Held while a thread uses its connection; a fork waits for it, and `abandon` is called in the child.

    SQLite's library tracks its locks per process: a child that opened the file beside an inherited connection would
    assume locks that only its parent holds. If an inherited connection is closed while no transaction is open, the
    parent loses nothing, and the child assumes no locks.
    """

    def __init__(self, abandon: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._abandon = abandon
        _gates.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._lock.release()

    def remove(self) -> None:
        _gates.discard(self)


_gates: WeakSet[Gate] = WeakSet()
_held: list[Gate] = []
_forking = threading.Lock()


def _before() -> None:
    _forking.acquire()
    _held.extend(_gates)
    for gate in _held:
        gate._lock.acquire()


def _after_in_parent() -> None:
    while _held:
        _held.pop()._lock.release()
    _forking.release()


def _after_in_child() -> None:
    global _forking
    _forking = threading.Lock()
    LIBRARIES.forget()
    while _held:
        gate = _held.pop()
        gate.remove()
        gate._abandon()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
