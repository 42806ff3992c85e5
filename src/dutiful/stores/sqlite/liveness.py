"""Whether a worker process on this host still lives."""

import os
import socket
from pathlib import Path

HOST = socket.gethostname()
_PROC = Path("/proc/self/stat")


def process_started(pid: int) -> str | None:
    """A mark of the process that has this pid now, which no later one with the same pid will have."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field is the command in parentheses, which may contain anything; the start time is the 22nd.
    return stat.rpartition(b")")[2].split()[19].decode()


def visible(host: str, pid: int) -> bool:
    return host == HOST and (process_started(pid) is not None or not _PROC.exists())


def alive(host: str, pid: int, started: str | None, expires_at: int, now: int) -> bool:
    """Judge by the process where it can be seen, and by its last word where it cannot."""
    if host == HOST and started is not None:
        return process_started(pid) == started
    if host == HOST and not _PROC.exists():
        return _exists(pid)
    return expires_at > now


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
