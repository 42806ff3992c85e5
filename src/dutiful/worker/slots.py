"""All slots of one worker: whom to tell that a job has to stop."""

import time
from collections.abc import Iterator
from uuid import UUID

from dutiful.core.job import Claim
from dutiful.worker.slot import Slot, Stop

AGAIN = 1.0  # after so many seconds, a handler that runs past its deadline is told once more


class Slots:
    def __init__(self) -> None:
        self._all: list[Slot] = []

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._all)

    def make(self, lane: str, number: int) -> list[Slot]:
        """More of them, for this lane."""
        made = [Slot(lane) for _ in range(number)]
        self._all.extend(made)
        return made

    def tell(self, job_id: UUID, stop: Stop) -> None:
        for slot in self._all:
            # Every one: a job that was lost and claimed again may still run here under its dead claim, too.
            if slot.claim is not None and slot.claim.job_id == job_id:
                slot.tell(stop)

    def cancel(self, job_id: UUID) -> None:
        self.tell(job_id, Stop.CANCEL)

    def lose(self, claim: Claim) -> bool:
        """Somebody else has this job now; whether it runs here."""
        for slot in self._all:
            if slot.claim is not None and slot.claim.claim_id == claim.claim_id:
                if slot.settled is None:  # else its claim is gone since its own transaction has ended it
                    slot.tell(Stop.LOST)
                return True
        return False

    def tell_overdue(self) -> None:
        now = time.monotonic()
        for slot in self._all:
            if slot.deadline is not None and now >= slot.deadline and now - slot.told_at >= AGAIN:
                slot.tell(Stop.TIMEOUT)

    def tell_all(self) -> list[Slot]:
        """Shut down what runs; returns where something did."""
        running = [slot for slot in self._all if slot.claim is not None]
        for slot in running:
            slot.tell(Stop.SHUTDOWN)
        return running

    def close(self) -> None:
        """From here on, the worker itself cancels their tasks."""
        for slot in self._all:
            slot.closing = True
