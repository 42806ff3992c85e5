"""What the fleet knows of a worker: that it is alive, what its lanes do, and when it leaves."""

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from dutiful.acting import Pause
from dutiful.core.errors import DutifulError, StoreUnavailable
from dutiful.duties import WorkerRecord
from dutiful.locking import LockMode
from dutiful.worker.declaration import Declaration
from dutiful.worker.lane import Lane
from dutiful.worker.lock_accord import Accord
from dutiful.worker.plan import Plan
from dutiful.worker.vigil import Vigil

log = logging.getLogger("dutiful.worker")


class Presence:
    def __init__(
        self, plan: Plan, lanes: Sequence[Lane], accord: Accord, declaration: Declaration, started_at: datetime
    ) -> None:
        self._id = plan.worker_id
        self._store = plan.store
        self._delivery = plan.delivery
        self._settings = plan.settings
        self._kinds = sorted(plan.kinds)
        self._tallies = plan.tallies
        self._make_store = plan.make_store
        self._lanes = lanes
        self._accord = accord
        self._declaration = declaration
        self._started_at = started_at
        self._beaten = time.monotonic()
        self._looks = 0  # since the last beat
        self._busy: Counter[str] = Counter()  # by lane: busy slots, of all these looks

    def look(self) -> None:
        """See how many slots are busy; what is full now and then is not full all the time."""
        self._looks += 1
        for lane in self._lanes:
            self._busy[lane.name] += lane.busy

    async def heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat.total_seconds())
            await self.beat()
            if self._tallies is not None:
                await self._tallies.hand_over(self._store, self._id)
            await self._declaration.renew()

    async def beat(self) -> None:
        # Seen before the lanes are: of what is paused, nothing is claimed from here on.
        pauses = await self._store.pauses()
        record = self._record(self._seen(pauses), await self._lock_mode())
        ttl = 3 * self._settings.heartbeat
        await self._store.beat(record, ttl)
        if time.monotonic() - self._beaten > ttl.total_seconds():
            self._accord.doubt()
        self._beaten = time.monotonic()
        self._delivery.watched(await self._store.listened())

    def _record(self, lanes: dict[str, Any], locks: LockMode | None = None) -> WorkerRecord:
        host = socket.gethostname()
        return WorkerRecord(
            id=self._id,
            name=f"{host}:{os.getpid()}",
            host=host,
            pid=os.getpid(),
            started_at=self._started_at,
            seen_at=datetime.now(UTC),
            lanes=lanes,
            kinds=self._kinds,
            locks=locks,
        )

    def _seen(self, pauses: Sequence[Pause]) -> dict[str, dict[str, Any]]:
        """The lanes as they are now, and how full they were since this was last asked."""
        self.look()
        looks, busy = self._looks, self._busy
        self._looks, self._busy = 0, Counter()
        tenants = {"tenants": list(self._settings.claim_tenants)} if self._settings.claim_tenants else {}
        return {
            lane.name: {
                "slots": lane.settings.slots,
                "queues": list(lane.settings.queues),
                "busy": lane.busy,
                "jobs": lane.running,
                "ahead": lane.ahead,
                "utilisation": round(busy[lane.name] / (looks * len(lane.slots)), 4),
                "heard": lane.claimer.hear(pauses),
                "breakers": self._declaration.heeded,
                **tenants,
            }
            for lane in self._lanes
        }

    async def _lock_mode(self) -> LockMode | None:
        try:
            return await self._store.lock_mode()
        except StoreUnavailable as error:
            log.warning("locks have to wait: %s", error)  # nothing else has
            return None

    async def leave(self) -> None:
        if self._tallies is not None:
            try:
                await asyncio.wait_for(self._tallies.hand_over_all(self._store, self._id), 2)
            except (DutifulError, TimeoutError) as error:
                log.warning("what was counted last could not be handed over: %s", error)
        vigil = self._vigil()
        try:
            await asyncio.wait_for(self._store.leave(self._id) if vigil is None else vigil.beat(self._store), 5)
        except (DutifulError, TimeoutError) as error:
            log.warning("could not sign off: %s", error)
        finally:
            if vigil is not None:
                vigil.begin()  # after the beat, which else might come when it has signed off already

    def _vigil(self) -> Vigil | None:
        """If handlers run on when we are gone, and our process does too."""
        if self._make_store is None:
            return None
        slots = [slot for lane in self._lanes for slot in lane.slots]
        vigil = Vigil(self._make_store, self._record({}), self._settings.heartbeat, slots)
        return vigil if vigil.needed else None
