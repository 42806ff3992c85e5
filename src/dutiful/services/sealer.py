"""Seals audit events in order, and deletes those whose time is over."""

import time

from dutiful.auditing import Auditing
from dutiful.core.audit import Anchor, Seal, seal
from dutiful.delivery import Lines
from dutiful.duties import Survey

BATCH = 500
REST = 60.0  # between two looks for events whose time is over


class Sealer:
    """Two at once are safe: a batch is stored only if its first seal follows the head."""

    name = "sealer"

    def __init__(self, store: Auditing) -> None:
        self._store = store
        self._not_before = 0.0

    async def tick(self, survey: Survey) -> Lines | None:
        if survey.unsealed:
            while await self.seal_some() == BATCH:
                pass
        if time.monotonic() >= self._not_before:
            while await self._store.trim_audit(BATCH) == BATCH:
                pass
            self._not_before = time.monotonic() + REST
        return None

    async def seal_some(self) -> int:
        """How many were sealed: none, too, if somebody else was faster."""
        last: Seal | Anchor | None = await self._store.audit_head()
        seals: list[Seal] = []
        for event in await self._store.unsealed(BATCH):
            last = seal(event, last)
            seals.append(last)
        return len(seals) if seals and await self._store.seal_audit(seals) else 0
