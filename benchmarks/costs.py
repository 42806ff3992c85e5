"""What a job costs in CPU, write-ahead log and commits: figures that a busy machine changes little.

The CPU of a server is that of its backends, and of all that they start or that works for them: parallel workers,
autovacuum's workers and, since Postgres 18, those that read and write for backends. The checkpointer, the background
writer and the WAL writer are counted apart, because when they work is chance. The rest is not counted.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
_ACTIVE = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND state = 'active' AND pid <> pg_backend_pid()"
)
_TICKS = os.sysconf("SC_CLK_TCK")
_BACKGROUND = ("checkpointer", "background writer", "walwriter")
_IDLE = ("logger", "autovacuum launcher", "logical replication launcher", "startup")
_STILL_S = 0.1
_STILL_WITHIN_S = 2.0
_TOLD_WITHIN_S = 11.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Sums since each process began; only differences mean something."""

    client_s: float = 0.0
    server_s: float = 0.0
    background_s: float = 0.0
    wal_bytes: int = 0
    written_bytes: int = 0

    def per_job(self, since: Reading, jobs: int) -> dict[str, float]:
        """The metrics of the time between two readings; those of another store are left out."""
        jobs = max(jobs, 1)
        metrics = {"client_us_per_job": (self.client_s - since.client_s) * 1e6 / jobs}
        if self.wal_bytes:
            metrics |= {
                "server_us_per_job": (self.server_s - since.server_s) * 1e6 / jobs,
                "background_us_per_job": (self.background_s - since.background_s) * 1e6 / jobs,
                "wal_bytes_per_job": (self.wal_bytes - since.wal_bytes) / jobs,
            }
        else:
            metrics["written_bytes_per_job"] = (self.written_bytes - since.written_bytes) / jobs
        return metrics


class ServerMeter:
    """Reads what a server on this machine has done, over one connection whose own work is not counted."""

    def __init__(self, url: str) -> None:
        # To another database than the measured ones, so that its commits are not counted either.
        import psycopg  # here, because workers that are measured import this module, and should not pay for it

        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._own = self._connection.info.backend_pid
        self._postmaster = int(_stat(self._own)[_PARENT])

    def close(self) -> None:
        self._connection.close()

    def cpu(self) -> tuple[float, float]:
        """Seconds of the backends, those that have ended included, and of the background processes."""
        while True:
            ended = _cpu_of_ended(self._postmaster)
            working = background = 0.0
            for pid in _children(self._postmaster):
                title = _title(pid)
                if title.startswith(_BACKGROUND):
                    background += _cpu_exactly(pid)
                elif pid != self._own and not title.startswith(_IDLE):
                    working += _cpu_exactly(pid)
            # A backend that ended meanwhile would be counted twice or not at all.
            if ended == _cpu_of_ended(self._postmaster):
                return ended + working, background

    def wal_bytes(self) -> int:
        """How much write-ahead log the server has made, all databases together."""
        return int(self._value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"))

    def commits(self, database: str) -> int:
        """How many transactions were committed in a database, once all its sessions have reported their counts.

        A session tells them when it ends, or when it has been idle for ten seconds.
        """
        deadline = time.monotonic() + _TOLD_WITHIN_S
        while self._value(_SESSIONS, database) and time.monotonic() < deadline:
            time.sleep(0.005)
        return int(self._value("SELECT xact_commit FROM pg_stat_database WHERE datname = %s", database))

    async def still(self) -> float:
        """Wait until no more is written, and say when the last was: then whatever was run is also stored.

        While a commit waits for a slow disk nothing is written either, but its session is active.
        """
        began = changed = active = time.time()
        seen = self.wal_bytes()
        while (now := time.time()) - max(changed, active) < _STILL_S and now - began < _STILL_WITHIN_S:
            await asyncio.sleep(0.005)
            if (position := self.wal_bytes()) != seen:
                seen, changed = position, time.time()
            elif self._value(_ACTIVE):
                active = time.time()
        return changed

    def _value(self, statement: str, *parameters: str) -> int:
        row = self._connection.execute(statement.encode(), parameters or None).fetchone()
        assert row is not None
        return int(row[0])


def read(meter: ServerMeter | None, clients: Iterable[int] = ()) -> Reading:
    """All at once: the server's, if there is one, and that of client processes with their children.

    Without any, this process is the client; its children are no part of it, because the server is one of them.
    """
    pids = [pid for client in clients for pid in _tree(client)]
    client_s = sum(_cpu_in_ticks(pid) for pid in pids) if pids else time.process_time()
    pids = pids or [os.getpid()]
    if meter is None:
        return Reading(client_s, written_bytes=sum(map(_written, pids)))
    server_s, background_s = meter.cpu()
    return Reading(client_s, server_s, background_s, meter.wal_bytes())


@contextmanager
def server_meter(url: str) -> Iterator[ServerMeter]:
    meter = ServerMeter(url)
    try:
        yield meter
    finally:
        meter.close()


# Positions in /proc/PID/stat after the name, which may contain spaces.
_PARENT, _USER, _SYSTEM, _ENDED_USER, _ENDED_SYSTEM = 1, 11, 12, 13, 14


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _cpu_in_ticks(pid: int) -> float:
    """Of a process, all its threads, and its children that have ended."""
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(fields[index]) for index in (_USER, _SYSTEM, _ENDED_USER, _ENDED_SYSTEM)) / _TICKS


def _cpu_of_ended(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[_ENDED_USER]) + int(fields[_ENDED_SYSTEM])) / _TICKS


def _cpu_exactly(pid: int) -> float:
    """Of a process of one thread, to the nanosecond if the kernel tells: ticks of 10 ms add up over many backends."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return _cpu_in_ticks(pid)


def _title(pid: int) -> str:
    """What a process of Postgres says that it is."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").removeprefix("postgres: ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _written(pid: int) -> int:
    """Bytes that a process gave to the disk."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _tree(pid: int) -> list[int]:
    return [pid, *(below for child in _children(pid) for below in _tree(child))]
