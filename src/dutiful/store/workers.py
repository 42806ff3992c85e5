"""The contract of worker records: which workers live, and what their lanes do."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol
from uuid import UUID

import msgspec

SQL_LANE = "sql"  # of workers in SQL


class Process(StrEnum):
    """The state of a worker's process, as seen from this host; processes of other hosts are unseen."""

    UNSEEN = "unseen"
    RUNS = "runs"
    STOPPED = "stopped"  # by a signal or a debugger: it does nothing, and may continue at any time
    ENDED = "ended"


class LaneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One lane of a worker, as of its last heartbeat."""

    slots: int
    queues: tuple[str, ...]  # ("*",): any
    busy: int = 0  # slots
    jobs: tuple[UUID, ...] = ()  # that run in them or gather there, or whose handlers linger
    lingering: int = 0  # handlers that run on although their jobs were settled without them
    buffered: int = 0  # claims that no slot has taken up yet
    gathering: tuple[UUID, ...] = ()  # those that wait in slots for others of their batches
    utilisation: float | None = None  # busy slots as a share of all, on average since the heartbeat before
    pauses_seen: tuple[str, ...] = ()  # marks of the pauses that all its claims respect, those in flight included
    breakers: dict[str, str] | None = None  # by kind: the breaker that it declares; None: unknown
    kinds: tuple[str, ...] = ()  # none: all that its worker runs
    tenants: tuple[str, ...] = ()  # none: jobs of any tenant
    fair: bool = False  # whether tenants take turns in it
    reserve: int = 0  # slots that it keeps for tenants that run nothing in it

    def serves(self, queue: str) -> bool:
        return queue in self.queues or "*" in self.queues


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process, as the fleet sees it."""

    id: UUID
    name: str
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    alive: bool = True  # its process exists or, if that is unseen, its heartbeat is recent
    process: Process = Process.UNSEEN
    leading: bool = False
    lanes: dict[str, LaneRecord]
    kinds: list[str]
    locks: str | None = None  # the scheme of its locks; None: it takes none, or does not say

    @property
    def in_sql(self) -> bool:
        """Whether it works by published functions only: it promotes and rescues, and leads nothing else."""
        return self.locks is None and set(self.lanes) == {SQL_LANE}


class WorkerStore(Protocol):
    """A worker is recorded with its first heartbeat, and removed when it ends."""

    async def heartbeat(self, worker: WorkerRecord, ttl: timedelta, *, now: datetime | None = None) -> None:
        """Records that the worker is alive, for `ttl`."""

    async def remove(self, worker_id: UUID) -> None: ...

    async def all(self) -> list[WorkerRecord]: ...
