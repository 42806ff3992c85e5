"""Linux's inotify: the kernel says when a file was written or closed, and nothing runs until it does."""

import logging
import os
import struct
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

log = logging.getLogger("dutiful.delivery")

MODIFY = 0x002
CLOSE_WRITE = 0x008
ONCE = 0x8000_0000
_Q_OVERFLOW = 0x4000
_HEADER = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_MOST_BYTES = 16_384


class Inotify:
    """One instance, whose `fd` becomes readable when something happened to a file that is watched."""

    def __init__(self, libc: "ctypes.CDLL", fd: int) -> None:
        self._libc = libc
        self.fd = fd

    @classmethod
    def open(cls) -> "Inotify | None":
        """None where there is no inotify, or its user has too many instances."""
        if sys.platform != "linux":
            return None
        try:
            # Here, because a process that only enqueues does not need it, and some builds of Python lack it.
            import ctypes

            libc = ctypes.CDLL(None)
            fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (ImportError, OSError, AttributeError) as error:
            log.debug("no inotify: %s", error)
            return None
        if fd < 0:
            log.debug("no inotify: too many open files, or instances of this user")
            return None
        return cls(libc, fd)

    def watch(self, path: str, mask: int) -> int | None:
        """The number of the watch, the same if the file is watched already; None if it cannot be watched."""
        number: int = self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        if number < 0:
            log.debug("%s is not watched: it is missing, or this user has too many watches", path)
            return None
        return number

    def read(self) -> set[int]:
        """The watches to which something happened since; -1 among them if events were lost."""
        try:
            events = os.read(self.fd, _MOST_BYTES)
        except BlockingIOError:
            return set()
        found: set[int] = set()
        at = 0
        while at < len(events):
            number, mask, _, length = _HEADER.unpack_from(events, at)
            found.add(-1 if mask & _Q_OVERFLOW else number)
            at += _HEADER.size + length
        return found

    def close(self) -> None:
        os.close(self.fd)
