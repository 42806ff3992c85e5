"""Attempts that are seen in traces."""

from typing import TYPE_CHECKING, Any

from dutiful.core.job import Claim
from dutiful.core.outcome import Outcome
from dutiful.core.transitions import State
from dutiful.kind import Kind
from dutiful.worker.attempt import Attempts
from dutiful.worker.slot import Slot

if TYPE_CHECKING:
    from dutiful.observe.tracing import Tracer


class TracedAttempts(Attempts):
    """Each has a span, which is current wherever its handler runs."""

    def __init__(self, tracer: "Tracer", *parts: Any) -> None:
        super().__init__(*parts)
        self._tracer = tracer

    async def run(self, claim: Claim, kind: Kind[Any, Any], slot: Slot) -> Outcome | State:
        begun = self._tracer.begin(claim)
        try:
            outcome = await super().run(claim, kind, slot)
        except BaseException:
            self._tracer.interrupted(begun)
            raise
        self._tracer.end(begun, claim, outcome)
        return outcome
