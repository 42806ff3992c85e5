"""Records in the store that this worker is alive, what its lanes do, and when it signs off."""

import asyncio
import atexit
import logging
import os
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core.errors import DutifulError, StoreAway, StoreUnavailable
from dutiful.observe.outage import level_of
from dutiful.store import Store
from dutiful.store.control import Pause
from dutiful.store.workers import LaneRecord, WorkerRecord
from dutiful.worker.breakers.client import BreakerDeclaration
from dutiful.worker.config import WorkerConfig
from dutiful.worker.lanes.lane import Lane
from dutiful.worker.locks.manager import LockModeCheck
from dutiful.worker.slots import Slots

log = logging.getLogger("dutiful.worker")
RETRY = 1.0  # seconds between two heartbeats while the store is away
CHECK_EVERY = 0.2  # seconds between two looks at lingering handlers
CLOSE_TIMEOUT = 5.0


class Heartbeat:
    def __init__(
        self,
        config: WorkerConfig,
        lanes: Sequence[Lane],
        slots: Slots,
        mode_check: LockModeCheck,
        declaration: BreakerDeclaration,
        started_at: datetime,
    ) -> None:
        self._config = config
        self._id = config.worker_id
        self._store = config.store
        self._settings = config.settings
        self._lanes = lanes
        self._slots = slots
        self._mode_check = mode_check
        self._declaration = declaration
        self._started_at = started_at
        self._last_beat = time.monotonic()
        self._samples = 0  # since the last beat
        self._busy: Counter[str] = Counter()  # by lane: the sum of busy slots over these samples

    def sample_busy(self) -> None:
        """Counts busy slots, because the utilisation at one moment says little."""
        self._samples += 1
        for lane in self._lanes:
            self._busy[lane.name] += lane.busy

    async def heartbeat(self) -> None:
        pause = interval = self._settings.heartbeat.total_seconds()
        while True:
            await asyncio.sleep(pause)
            try:
                with self._config.outages.watching("heartbeat"):
                    await self.beat()
                    if self._config.counters is not None:
                        await self._config.counters.flush(self._store.metrics, self._id)
                    await self._declaration.redeclare()
                pause = interval
            except StoreAway:
                pause = min(RETRY, interval)  # soon after its return, because without heartbeat a worker looks dead

    async def beat(self) -> None:
        # Read before the lanes are: a pause is reported as seen once no claim can miss it.
        pauses = await self._store.control.pauses()
        record = self._record(self._lane_records(pauses), await self._lock_scheme())
        ttl = 3 * self._settings.heartbeat
        await self._store.workers.heartbeat(record, ttl)
        if time.monotonic() - self._last_beat > ttl.total_seconds():
            self._mode_check.reset()
        self._last_beat = time.monotonic()
        self._config.delivery.set_remote_watchers(await self._store.events.has_listeners())

    def _record(self, lanes: dict[str, LaneRecord], locks: str | None = None) -> WorkerRecord:
        host = socket.gethostname()
        return WorkerRecord(
            id=self._id,
            name=f"{host}:{os.getpid()}",
            host=host,
            pid=os.getpid(),
            started_at=self._started_at,
            seen_at=datetime.now(UTC),
            lanes=lanes,
            kinds=sorted(self._config.kinds),
            locks=locks,
        )

    def _lane_records(self, pauses: Sequence[Pause]) -> dict[str, LaneRecord]:
        """The lanes as they are now, with their utilisation since the last call."""
        self.sample_busy()
        samples, busy = self._samples, self._busy
        self._samples, self._busy = 0, Counter()
        lingering: dict[str, tuple[UUID, ...]] = defaultdict(tuple)
        for one in self._slots.lingering:
            lingering[one.lane] += (one.claim.job_id,)
        return {
            lane.name: LaneRecord(
                slots=lane.settings.slots,
                queues=lane.settings.queues,
                busy=lane.busy,
                jobs=lane.running + lane.gathering + lingering[lane.name],
                lingering=len(lingering[lane.name]),
                buffered=lane.buffered,
                utilisation=round(busy[lane.name] / (samples * len(lane.slots)), 4),
                gathering=lane.gathering,
                pauses_seen=lane.pauses_seen(pauses),
                breakers=self._declaration.breaker_by_kind,
                kinds=lane.selection.kinds if lane.settings.narrows_kinds else (),
                tenants=lane.selection.tenants,
                fair=lane.settings.fair,
                reserve=lane.settings.reserved,
            )
            for lane in self._lanes
        }

    async def _lock_scheme(self) -> str | None:
        try:
            return await self._store.locks.scheme()
        except StoreUnavailable as error:
            log.log(level_of(error), "locks have to wait: %s", error)  # the rest of the worker continues
            return None

    async def sign_off(self) -> None:
        if self._config.counters is not None:
            try:
                await asyncio.wait_for(self._config.counters.flush_all(self._store.metrics, self._id), 2)
            except (DutifulError, TimeoutError) as error:
                log.warning("the last counts of attempts could not be stored: %s", error)
        lingering = self._lingering()
        signing_off = self._store.workers.remove(self._id) if lingering is None else lingering.beat(self._store)
        try:
            await asyncio.wait_for(signing_off, CLOSE_TIMEOUT)
        except (DutifulError, TimeoutError) as error:
            log.warning("could not sign off: %s", error)
        finally:
            if lingering is not None:
                lingering.start()  # after the beat, which otherwise might come when it has signed off already

    def _lingering(self) -> "LingeringHandlers | None":
        """Set if handlers outlive this worker, and its process too."""
        if self._config.make_store is None:
            return None
        record = self._record({})
        lingering = LingeringHandlers(self._config.make_store, record, self._settings.heartbeat, self._slots)
        return lingering if lingering.needed else None


class LingeringHandlers:
    """Keeps a worker signed on while its handlers outlive it, because a drain is not safe before they have ended.

    Uses a thread and a store of its own, because the worker's event loop and store are closed by then. Ends with the
    last of the handlers, or with the process, which ends them too.
    """

    def __init__(
        self, make_store: Callable[[], Store], worker: WorkerRecord, heartbeat: timedelta, slots: Slots
    ) -> None:
        self._make_store = make_store
        self._worker = worker
        self._heartbeat = heartbeat
        self._slots = slots
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dutiful lingering", daemon=True)

    @property
    def needed(self) -> bool:
        return bool(self._slots.lingering_jobs())

    async def beat(self, store: Store) -> None:
        """Records the jobs that still run; nothing more is claimed, so every pause counts as seen."""
        pauses = tuple([pause.mark for pause in await store.control.pauses()])
        jobs: dict[str, tuple[UUID, ...]] = defaultdict(tuple)
        for lane, job_id in self._slots.lingering_jobs():
            jobs[lane] += (job_id,)
        lanes = {
            name: LaneRecord(
                slots=len(own),
                queues=(),
                busy=len(own),
                jobs=own,
                lingering=len(own),
                utilisation=1.0,
                pauses_seen=pauses,
            )
            for name, own in jobs.items()
        }
        record = msgspec.structs.replace(self._worker, seen_at=datetime.now(UTC), lanes=lanes, kinds=[], locks=None)
        await store.workers.heartbeat(record, 3 * self._heartbeat)

    def start(self) -> None:
        atexit.register(self._end)
        self._thread.start()

    def _end(self) -> None:
        self._ending.set()
        self._thread.join(CLOSE_TIMEOUT)

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
                    await self._beat_until_ended(store)
                    await store.workers.remove(self._worker.id)
                    return
                finally:
                    await store.close()
            except DutifulError as error:
                if self._ending.is_set():
                    return
                log.warning("worker %s has to wait to sign off: %s", self._worker.id, error)
                await asyncio.sleep(self._heartbeat.total_seconds())

    async def _beat_until_ended(self, store: Store) -> None:
        due = time.monotonic()
        while self.needed and not self._ending.is_set():
            if time.monotonic() >= due:
                await self.beat(store)
                due = time.monotonic() + self._heartbeat.total_seconds()
            await asyncio.sleep(CHECK_EVERY)
