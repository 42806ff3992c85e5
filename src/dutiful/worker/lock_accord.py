"""Sees to it that all workers of a fleet keep locks in one way, for the two ways do not see each other."""

import asyncio
import logging
from typing import Protocol
from uuid import UUID

from dutiful.core.errors import StoreUnavailable, UsageError
from dutiful.duties import WorkerRecord
from dutiful.locking import LockMode

log = logging.getLogger("dutiful.worker")
PAUSE = 1.0


class Fleet(Protocol):
    async def lock_mode(self) -> LockMode: ...
    async def workers(self) -> list[WorkerRecord]: ...


class Accord:
    """Looked for at the start, and before each lock until it is found.

    A worker says its mode before it takes a lock. So of two that differ, the one that looks later sees the other, and
    takes none until that one has gone; who has found all the others in accord need not look again.
    """

    def __init__(self, fleet: Fleet, worker_id: UUID) -> None:
        self._fleet = fleet
        self._worker_id = worker_id
        self._found = False

    def doubt(self) -> None:
        """The fleet may have taken us for dead."""
        self._found = False

    async def greet(self) -> None:
        """Look when the worker starts, so that it has come before those who start later."""
        try:
            self._found = await self._look()
        except (StoreUnavailable, UsageError) as error:
            log.warning("no job gets a lock here for now: %s", error)

    async def check(self) -> None:
        """UsageError if a live worker keeps locks in the other way."""
        while not self._found:
            try:
                self._found = await self._look()
            except StoreUnavailable as error:
                log.warning("waiting for a lock, but the database is away: %s", error)
            if not self._found:
                await asyncio.sleep(PAUSE)

    async def _look(self) -> bool:
        """Whether all is well; if not, our own word is not out yet."""
        ours = await self._fleet.lock_mode()
        workers = await self._fleet.workers()
        for worker in workers:
            if worker.alive and worker.id != self._worker_id and worker.locks not in (None, ours):
                raise UsageError(
                    f"this worker keeps locks as {ours}, but worker {worker.name} as {worker.locks}, so they would "
                    "not exclude each other: let all reach Postgres the same way, or set direct_url behind a pooler"
                )
        return any(worker.id == self._worker_id and worker.locks == ours for worker in workers)
