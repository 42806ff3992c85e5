"""Whether a worker process on this host still lives."""

import os
import socket
from pathlib import Path

HOST = socket.gethostname()
_PROC = Path("/proc/self/stat")


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pids() -> str:
    """Which processes we can see: containers may share a host's name, but each has pids of its own."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


_BOOT, _PIDS = _boot(), _pids()


def process_started(pid: int) -> str | None:
    """A mark of the process that has this pid now, which no other one has, before or after a reboot."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field is the command in parentheses, which may contain anything.
    fields = stat.rpartition(b")")[2].split()
    state, threads, started = fields[0], int(fields[17]), fields[19].decode()
    if state in (b"Z", b"X") and threads <= 1:
        return None  # it has ended, and only waits for its parent to take note
    return f"{_BOOT} {_PIDS} {started}"


def visible(host: str, pid: int) -> bool:
    return host == HOST and (process_started(pid) is not None or not _PROC.exists())


def alive(host: str, pid: int, started: str | None, expires_at: int, now: int) -> bool:
    """Judge by the process where it can be seen, and by its last word where it cannot."""
    if (seen := _seen(host, pid, started)) is not None:
        return seen
    return expires_at > now


def dead(host: str, pid: int, started: str | None) -> bool:
    """Whether it is certain that the process has ended; a worker that is silent may only be slow."""
    return _seen(host, pid, started) is False


def _seen(host: str, pid: int, started: str | None) -> bool | None:
    """Whether the process lives; None if it cannot be seen from here."""
    if host != HOST:
        return None
    if started is None:
        return None if _PROC.exists() else _exists(pid)
    boot, pids, _ = started.split(" ")
    if boot != _BOOT:
        return False
    return process_started(pid) == started if pids == _PIDS else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
