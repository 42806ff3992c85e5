"""Slots that lanes lend: an idle one runs a job of a busy lane, and is back when that job has ended."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dutiful.worker.lanes.lane import Lane


class Lending:
    """Which lanes of a worker lend, and which borrow. A fair lane does neither: it shares out slots that it counts."""

    def __init__(self, lanes: Sequence["Lane"]) -> None:
        self._lenders = [lane for lane in lanes if lane.settings.lend]
        self._borrowers = [lane for lane in lanes if not lane.settings.fair]
        self._turn = 0

    def free_for(self, borrower: "Lane") -> int:
        """How many slots of other lanes would run a job of this one now."""
        if borrower.settings.fair:
            return 0
        return sum(lane.lendable for lane in self._lenders if lane is not borrower)

    def offer(self, lender: "Lane") -> None:
        """Lets others claim for slots of this lane that have become idle."""
        if lender.lendable:
            for lane in self._borrowers:
                if lane is not lender:
                    lane.look_again()

    def hand_over(self, borrower: "Lane") -> None:
        """Wakes slots of other lanes for claims that the borrower's own slots do not take."""
        left = borrower.buffered - borrower.idle
        for lane in self._lenders:
            if lane is not borrower:
                woken = min(left, lane.lendable)
                left -= woken
                for _ in range(woken):
                    lane.wake_slot()

    def borrower(self, lender: "Lane") -> "Lane | None":
        """The lane whose next claim an idle slot of this one runs; those that have some take turns."""
        if not lender.may_lend:
            return None
        waiting = [lane for lane in self._borrowers if lane is not lender and lane.buffered > lane.idle]
        self._turn += 1
        return waiting[self._turn % len(waiting)] if waiting else None
