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
from dutiful.worker.lane import Lane
from dutiful.worker.lock_accord import Accord
from dutiful.worker.plan import Plan

log = logging.getLogger("dutiful.worker")


class Presence:
    def __init__(self, plan: Plan, lanes: Sequence[Lane], accord: Accord, started_at: datetime) -> None:
        self._id = plan.worker_id
        self._store = plan.store
        self._delivery = plan.delivery
        self._settings = plan.settings
        self._kinds = sorted(plan.kinds)
        self._tallies = plan.tallies
        self._lanes = lanes
        self._accord = accord
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

    async def beat(self) -> None:
        # Seen before the lanes are: of what is paused, nothing is claimed from here on.
        pauses = await self._store.pauses()
        lanes = self._seen(pauses)
        host = socket.gethostname()
        record = WorkerRecord(
            id=self._id,
            name=f"{host}:{os.getpid()}",
            host=host,
            pid=os.getpid(),
            started_at=self._started_at,
            seen_at=datetime.now(UTC),
            lanes=lanes,
            kinds=self._kinds,
            locks=await self._lock_mode(),
        )
        ttl = 3 * self._settings.heartbeat
        await self._store.beat(record, ttl)
        if time.monotonic() - self._beaten > ttl.total_seconds():
            self._accord.doubt()
        self._beaten = time.monotonic()
        self._delivery.watched(await self._store.listened())

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
        try:
            await asyncio.wait_for(self._store.leave(self._id), 5)
        except (DutifulError, TimeoutError) as error:
            log.warning("could not sign off: %s", error)
