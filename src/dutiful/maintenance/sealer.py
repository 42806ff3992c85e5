"""Seals audit events in order, and deletes those past their retention."""

import logging
import time
from datetime import timedelta

from dutiful.core.duration import brief
from dutiful.core.review.audit import SHORTEST_KEEP, Anchor, Seal, seal
from dutiful.delivery.base import QueueLevels
from dutiful.store.audit import AuditStore
from dutiful.store.leadership import Survey

log = logging.getLogger("dutiful.maintenance")
BATCH = 500
TRIM_INTERVAL = 60.0


class Sealer:
    """Two at once are safe: a batch is stored only if its first seal follows the head."""

    name = "sealer"

    def __init__(self, store: AuditStore) -> None:
        self._store = store
        self._not_before = 0.0
        self._refused: timedelta | None = None  # a policy that was logged already

    async def tick(self, survey: Survey) -> QueueLevels | None:
        if survey.unsealed:
            while await self.seal_batch() == BATCH:
                pass
        if time.monotonic() >= self._not_before:
            await self._trim()
            self._not_before = time.monotonic() + TRIM_INTERVAL
        return None

    async def _trim(self) -> None:
        keep = await self._store.retention()
        if keep is None or keep >= SHORTEST_KEEP:
            while await self._store.trim(BATCH) == BATCH:
                pass
        elif keep != self._refused:
            self._refused = keep
            log.error(
                "no audit event is deleted: they are to be kept for %s, and no policy is below %s; see `dutiful audit "
                "verify`, and set another with `dutiful audit keep`",
                keep,
                brief(SHORTEST_KEEP),
            )

    async def seal_batch(self) -> int:
        """Returns how many were sealed; none, too, if another process was faster."""
        last: Seal | Anchor | None = await self._store.head()
        seals: list[Seal] = []
        for event in await self._store.unsealed(BATCH):
            last = seal(event, last)
            seals.append(last)
        return len(seals) if seals and await self._store.seal(seals) else 0
