"""Stays signed on for handlers that outlive their worker, since no drain may call that safe; signs off after them."""

import asyncio
import atexit
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from dutiful.core.errors import DutifulError
from dutiful.duties import WorkerRecord
from dutiful.store import Store
from dutiful.worker.slot import Slot

log = logging.getLogger("dutiful.worker")
LOOK = 0.2
LAST_WORDS = 5.0


class Vigil:
    """In a thread and with a store of its own, for the worker's event loop and store are closed by then.

    It ends with the last of the handlers, or with the process, which takes them along.
    """

    def __init__(
        self, make_store: Callable[[], Store], worker: WorkerRecord, heartbeat: timedelta, slots: Sequence[Slot]
    ) -> None:
        self._make_store = make_store
        self._worker = worker
        self._heartbeat = heartbeat
        self._slots = slots
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dutiful vigil", daemon=True)

    @property
    def needed(self) -> bool:
        return any(slot.outlived_by is not None for slot in self._slots)

    async def beat(self, store: Store) -> None:
        """Say what runs on; of what is paused, or waits in any queue, nothing will be claimed."""
        heard = [pause.mark for pause in await store.pauses()]
        jobs: dict[str, list[str]] = defaultdict(list)
        for slot in self._slots:
            if (job_id := slot.outlived_by) is not None:
                jobs[slot.lane].append(str(job_id))
        lanes = {name: _lane(running, heard) for name, running in jobs.items()}
        record = msgspec.structs.replace(self._worker, seen_at=datetime.now(UTC), lanes=lanes, kinds=[], locks=None)
        await store.beat(record, 3 * self._heartbeat)

    def begin(self) -> None:
        atexit.register(self._end)
        self._thread.start()

    def _end(self) -> None:
        self._ending.set()
        self._thread.join(LAST_WORDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except Exception:
            log.exception("worker %s could not sign off after its last handler", self._worker.id)
        finally:
            atexit.unregister(self._end)

    async def _watch(self) -> None:
        while True:
            store = self._make_store()
            try:
                await store.open()
                try:
                    await self._stay(store)
                    await store.leave(self._worker.id)
                    return
                finally:
                    await store.close()
            except DutifulError as error:
                if self._ending.is_set():
                    return
                log.warning("worker %s has to wait to sign off: %s", self._worker.id, error)
                await asyncio.sleep(self._heartbeat.total_seconds())

    async def _stay(self, store: Store) -> None:
        due = time.monotonic()
        while self.needed and not self._ending.is_set():
            if time.monotonic() >= due:
                await self.beat(store)
                due = time.monotonic() + self._heartbeat.total_seconds()
            await asyncio.sleep(LOOK)


def _lane(jobs: list[str], heard: list[str]) -> dict[str, Any]:
    busy = len(jobs)
    return {"slots": busy, "queues": [], "busy": busy, "jobs": jobs, "ahead": 0, "utilisation": 1.0, "heard": heard}
