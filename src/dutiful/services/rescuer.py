"""Takes jobs back from workers that died."""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dutiful.core import ids
from dutiful.core.job import Lapsed
from dutiful.core.outcome import Cancelled, Lost
from dutiful.core.settle import Change, Policy, decide_surely
from dutiful.core.transitions import State
from dutiful.delivery import EVERYWHERE, Lines
from dutiful.duties import Duties, Survey
from dutiful.kind import Kind
from dutiful.observe.logs import about
from dutiful.working import Refusal, Work

log = logging.getLogger("dutiful.services")
BATCH = 500


class Rescue(Duties, Work, Protocol):
    """What a rescue needs of a store."""


class Rescuer:
    name = "rescuer"

    def __init__(
        self,
        store: Rescue,
        kinds: Mapping[str, Kind[Any, Any]],
        uniform: Callable[[float, float], float] = random.uniform,
        rescued: Callable[[str, Change], None] | None = None,
    ) -> None:
        """`rescued` hears of the kind and the fate of each."""
        self._store = store
        self._kinds = kinds
        self._uniform = uniform
        self._rescued = rescued

    async def tick(self, survey: Survey) -> Lines | None:
        if not survey.lapsed:
            return None
        moved = False
        while lapsed := await self._store.lapsed(BATCH):
            changes = self.decide(lapsed)
            refused = await self._store.settle(changes, lapsed_only=True)
            self.report(lapsed, changes, refused)
            moved = moved or len(refused) < len(changes)
            if len(lapsed) < BATCH or len(refused) == len(changes):
                break
        return EVERYWHERE if moved else None

    async def recover(self) -> int:
        """Take back at once what dead workers held, where the store can tell that they are; returns how many."""
        lapsed = await self._store.orphans()
        if not lapsed:
            return 0
        changes = self.decide(lapsed)
        refused = await self._store.settle(changes)
        self.report(lapsed, changes, refused)
        return len(changes) - len(refused)

    def decide(self, lapsed: Sequence[Lapsed]) -> list[Change]:
        """The fate of each: back in line, cancelled as asked, or a dead letter if it was there at too many deaths."""
        return [decide_surely(job, self._outcome(job), self._policy(job.kind), 1, self._uniform) for job in lapsed]

    def _outcome(self, lapsed: Lapsed) -> Lost | Cancelled:
        return Cancelled("cancelled while its worker died") if lapsed.cancel_requested else Lost()

    def _policy(self, kind: str) -> Policy:
        known = self._kinds.get(kind)
        return known.policy if known else Policy()

    def report(self, lapsed: Sequence[Lapsed], changes: Sequence[Change], refused: Sequence[Refusal]) -> None:
        """Say what became of them."""
        not_ours = {refusal.job_id for refusal in refused}
        for job, change in zip(lapsed, changes, strict=True):
            if job.job_id not in not_ours:
                _tell_of(job, change)
                if self._rescued is not None:
                    self._rescued(job.kind, change)


def _tell_of(job: Lapsed, change: Change) -> None:
    fate = "is a dead letter now" if change.to is State.FAILED else f"is {change.to} again"
    log.warning(
        "job %s (%s) was lost with worker %s; it %s",
        ids.public(job.job_id),
        job.kind,
        job.worker_id,
        fate,
        extra=about(job),
    )
