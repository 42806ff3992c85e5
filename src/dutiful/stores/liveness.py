"""Whether a worker's process runs, as far as this process can see it."""

import os
import socket
from pathlib import Path

from dutiful.store.workers import Process

HOST = socket.gethostname()
_PROC = Path("/proc/self/stat")


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pids() -> str:
    """The namespace of visible pids: containers may share a host name, but each has its own pids."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


_BOOT, _PIDS = _boot(), _pids()


def process_started(pid: int) -> str | None:
    """A mark of the process with this pid, unique across reboots; None if there is no such process."""
    return None if (found := _look(pid)) is None else found[0]


def mark_of(host: str, pid: int) -> str | None:
    """The mark of a worker's process; None if it is not on this host."""
    return process_started(pid) if host == HOST else None


def visible(host: str, pid: int) -> bool:
    return host == HOST and (process_started(pid) is not None or not _PROC.exists())


def alive(process: Process, expires_at: int, now: int) -> bool:
    """Decides by the process where it is visible, and by the last heartbeat where it is not."""
    return expires_at > now if process is Process.UNSEEN else process is not Process.ENDED


def dead(host: str, pid: int, started: str | None) -> bool:
    """Whether it is certain that the process has ended; a worker that is silent may only be slow."""
    return process_of(host, pid, started) is Process.ENDED


def process_of(host: str, pid: int, started: str | None) -> Process:
    """The state of the process whose mark is `started`; None: it was not visible to its store."""
    if host != HOST:
        return Process.UNSEEN
    if started is None:
        return Process.UNSEEN if _PROC.exists() else Process.RUNS if _exists(pid) else Process.ENDED
    boot, pids, _ = started.split(" ")
    if boot != _BOOT:
        return Process.ENDED
    if pids != _PIDS:
        return Process.UNSEEN
    mark, stopped = _look(pid) or ("", False)
    if mark != started:
        return Process.ENDED
    return Process.STOPPED if stopped else Process.RUNS


def _look(pid: int) -> tuple[str, bool] | None:
    """The mark of the process that has this pid now, and whether it is stopped; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field is the command in parentheses, which may contain anything.
    fields = stat.rpartition(b")")[2].split()
    state, threads, started = fields[0], int(fields[17]), fields[19].decode()
    if state in (b"Z", b"X") and threads <= 1:
        return None  # a zombie process
    return f"{_BOOT} {_PIDS} {started}", state in (b"T", b"t")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
