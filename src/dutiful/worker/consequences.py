"""What follows from a stored outcome beyond its own job: hints for other workers, something to do for services."""

from dutiful.core.job import Claim
from dutiful.core.settle import Change
from dutiful.core.transitions import State
from dutiful.delivery import EVERYWHERE, Delivery
from dutiful.service import Duty


class Consequences:
    def __init__(self, delivery: Delivery, duties: Duty | None) -> None:
        self._delivery = delivery
        self._duties = duties

    def settled(self, claim: Claim, change: Change) -> None:
        if change.to is State.READY:
            # Others may have a free slot for it. What goes back to its old place in line is below their floors, where
            # only a look from the start finds it.
            told = claim.queue and not change.keep_seq
            self._delivery.hint(frozenset({(claim.queue, claim.priority)}) if told else EVERYWHERE)
        if self._duties is not None and change.to is State.SCHEDULED and change.delay is not None:
            self._duties.expect(change.delay)

    def ended(self, webhook: bool) -> None:
        """Jobs are final now; `webhook`: one of them names a webhook."""
        if self._duties is not None:
            self._duties.ended(webhook)
