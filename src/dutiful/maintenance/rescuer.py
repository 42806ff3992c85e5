"""Rescues jobs of workers that died."""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dutiful.core import ids
from dutiful.core.job import HeldClaim
from dutiful.core.outcome import Cancelled, Lost
from dutiful.core.settle import Change, Policy, decide_or_fail
from dutiful.core.states import State
from dutiful.delivery.base import EVERYWHERE, QueueLevels
from dutiful.kind import Kind
from dutiful.observe.logs import job_fields
from dutiful.store import Store
from dutiful.store.leadership import Survey

log = logging.getLogger("dutiful.maintenance")
BATCH = 500


class Rescuer:
    name = "rescuer"

    def __init__(
        self,
        store: Store,
        kinds: Mapping[str, Kind[Any, Any]],
        uniform: Callable[[float, float], float] = random.uniform,
        on_rescue: Callable[[str, Change], None] | None = None,
    ) -> None:
        """Calls `on_rescue` with the kind and the change of each job."""
        self._store = store
        self._kinds = kinds
        self._uniform = uniform
        self._on_rescue = on_rescue

    async def tick(self, survey: Survey) -> QueueLevels | None:
        if not survey.expired:
            return None
        moved = False
        while expired := await self._store.claims.expired(BATCH):
            rescued = await self.rescue(expired, expired_only=True)
            moved = moved or rescued > 0
            if len(expired) < BATCH or rescued == 0:
                break
        return EVERYWHERE if moved else None

    async def rescue_orphans(self) -> int:
        """Rescues jobs without waiting for their leases, where the store knows that a worker is dead."""
        return await self.rescue(await self._store.claims.orphans())

    async def rescue(self, claims: Sequence[HeldClaim], *, expired_only: bool = False) -> int:
        """Makes each job ready again, cancelled as requested, or a dead letter after too many crashes.

        Returns how many were rescued; `expired_only` leaves out claims that were renewed meanwhile.
        """
        if not claims:
            return 0
        changes = [decide_or_fail(one, self._outcome(one), self._policy(one.kind), 1, self._uniform) for one in claims]
        refused = {one.job_id for one in await self._store.claims.settle(changes, expired_only=expired_only)}
        for claim, change in zip(claims, changes, strict=True):
            if claim.job_id not in refused:
                _log_rescue(claim, change)
                if self._on_rescue is not None:
                    self._on_rescue(claim.kind, change)
        return len(changes) - len(refused)

    def _outcome(self, claim: HeldClaim) -> Lost | Cancelled:
        return Cancelled("cancelled while its worker died") if claim.cancel_requested else Lost()

    def _policy(self, kind: str) -> Policy:
        known = self._kinds.get(kind)
        return known.policy if known else Policy()


def _log_rescue(job: HeldClaim, change: Change) -> None:
    result = "is a dead letter now" if change.to is State.FAILED else f"is {change.to} again"
    log.warning(
        "job %s (%s) was lost with worker %s; it %s",
        ids.public(job.job_id),
        job.kind,
        job.worker_id,
        result,
        extra=job_fields(job),
    )
