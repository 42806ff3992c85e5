"""Claims for one lane, and knows which pauses its claims have heeded."""

from collections.abc import Callable, Sequence

from dutiful.acting import Pause
from dutiful.core.job import Claim, Lapsed
from dutiful.settings import LaneSettings
from dutiful.worker.lease import Leases
from dutiful.worker.lines import Lines
from dutiful.worker.plan import Plan
from dutiful.worker.suspects import Suspects
from dutiful.working import Ask


class Claimer:
    def __init__(
        self,
        plan: Plan,
        lane: LaneSettings,
        lines: Lines,
        leases: Leases,
        suspects: Suspects,
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called when a suspect may be claimed that could not be before."""
        self._store = plan.store
        self._worker_id = plan.worker_id
        self._names = list(plan.kinds)
        self._lease = plan.settings.lease
        self._tenants = plan.settings.claim_tenants
        self._lane = lane
        self._lines = lines
        self._leases = leases
        self._suspects = suspects
        self._wake = wake
        self._asking = False
        self._asked = 0  # claims so far, the one under way included
        self._seen: dict[str, int] = {}  # by the marks of pauses: how many claims may have been asked before it

    async def claim(self, want: int, free: int) -> list[Claim]:
        """Up to `want` jobs, and a suspect besides if there is a free slot to run it at once."""
        lines = self._lines.serve(self._lane.queues)
        if not lines:
            return []
        seeks = free > 0 and self._suspects.seek(self._wake)
        ask = Ask(self._worker_id, self._lane.name, lines, self._names, want, self._lease, int(seeks), self._tenants)
        claims: list[Claim] = []
        try:
            self._asking = True
            self._asked += 1
            with self._leases.claiming():
                claims = await self._store.claim(ask)
                self._leases.add(claims)
        finally:
            self._asking = False
            if seeks:
                self._suspects.found(claims)
        if claims:
            self._lines.claimed(claims)
        return claims

    async def unknown(self) -> list[Lapsed]:
        """What this worker holds and nobody here knows of, since the answer to a claim was lost."""
        held = await self._store.held_by(self._worker_id)
        await self._leases.answered()  # what another lane is claiming just now is about to be known
        return [lapsed for lapsed in held if self._leases.claim(lapsed.claim_id) is None]

    def hear(self, pauses: Sequence[Pause]) -> list[str]:
        """Tell it what is paused; returns the marks of those that no claim still under way can have missed."""
        self._seen = {pause.mark: self._seen.get(pause.mark, self._asked) for pause in pauses}
        return [mark for mark, asked in self._seen.items() if asked < self._asked or not self._asking]
