"""Sees to it that a process does not outlive the one that started it, whatever it computes."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1
_LOOK = 1.0


def die_with_parent() -> None:
    """For a process that multiprocessing has started: from here on it ends when its parent does.

    A thread that starts such a process has to live as long as that: to Linux, it is the thread that is the parent.
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    if not _killed_by_kernel():
        threading.Thread(target=_watch, args=(parent.pid,), name="dutiful parent", daemon=True).start()
    elif os.getppid() != parent.pid:
        os._exit(1)  # it ended before we had asked to be told


def _killed_by_kernel() -> bool:
    """Whether the kernel sees to it: no thread of ours could while a call into C keeps the interpreter to itself."""
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) == 0)
    except (OSError, AttributeError):
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(_LOOK)
    os._exit(1)
