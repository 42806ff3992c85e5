"""What attempts came to, counted in memory by kind and outcome until it is handed over, a few times a minute."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from dutiful.core.job import Claim
from dutiful.core.settle import Change
from dutiful.core.sketch import Sketch
from dutiful.core.transitions import State
from dutiful.measuring import Measuring, Tally, outcome_of

# The attempt was handed back, so the job will be claimed for the first time once more, and its wait be counted then.
HANDED_BACK = frozenset({"snoozed", "released", "lost"})


class Count:
    """Of one kind and outcome, since the last turn."""

    __slots__ = ("count", "payload_bytes", "payload_most", "run", "run_microseconds", "wait", "wait_microseconds")

    def __init__(self) -> None:
        self.count = 0
        self.run: Sketch = {}
        self.wait: Sketch = {}
        self.run_microseconds = 0
        self.wait_microseconds = 0
        self.payload_bytes = 0
        self.payload_most = 0


class Tallies:
    """Counted is what the store has taken: an outcome that it refused, since the claim was lost, is counted by whoever
    took the claim away, a worker or a person. What was never started is no attempt."""

    def __init__(self) -> None:
        self._ended: dict[int, float] = {}  # by claim whose outcome is not known to be stored: how long it ran
        self._counts: dict[str, dict[str, Count]] = {}  # by outcome, then kind
        self._turn = 0
        self._turned: list[Tally] = []  # this turn's, until the store has them

    def ended(self, claim: Claim, seconds: float) -> None:
        """An attempt came to its end after so long; its outcome is on its way."""
        self._ended[claim.claim_id] = seconds

    def completed(self, claims: Sequence[Claim], lost: Iterable[int] = ()) -> None:
        """These are stored, but for those that were lost."""
        for claim_id in lost:
            self._ended.pop(claim_id, None)
        self._count(State.COMPLETED.value, claims)

    def settled(self, claim: Claim, change: Change) -> None:
        """A change is stored."""
        self._count(outcome_of(change), [claim])

    def refused(self, claim: Claim) -> None:
        """The claim was lost before its outcome could be stored."""
        self._ended.pop(claim.claim_id, None)

    def rescued(self, kind: str, change: Change) -> None:
        """An attempt of some worker that is gone was brought to its end; nobody knows how long it ran."""
        _of(self._kinds(outcome_of(change)), kind).count += 1

    async def hand_over(self, store: Measuring, worker_id: UUID) -> None:
        """Until the store has answered, it is the same turn that is tried again."""
        if not self._turned:
            self._turned = self._taken()
            self._turn += 1 if self._turned else 0
        if self._turned:
            await store.tally(worker_id, self._turn, self._turned)
            self._turned = []

    async def hand_over_all(self, store: Measuring, worker_id: UUID) -> None:
        """At the end: a turn that was under way, and what has been counted since."""
        await self.hand_over(store, worker_id)
        await self.hand_over(store, worker_id)

    def _count(self, outcome: str, claims: Iterable[Claim]) -> None:
        """Run for every job, so it calls next to nothing: the buckets are those of core.sketch."""
        kinds, pop = self._kinds(outcome), self._ended.pop
        handed_back = outcome in HANDED_BACK
        for claim in claims:
            seconds = pop(claim.claim_id, None)
            if seconds is None:
                continue
            one = kinds.get(claim.kind)
            if one is None:
                one = kinds[claim.kind] = Count()
            one.count += 1
            micro = int(seconds * 1e6)
            one.run_microseconds += micro
            if micro >= 4:
                power = micro.bit_length() - 3
                micro = (power << 2) + (micro >> power)
            sketch = one.run
            sketch[micro] = sketch.get(micro, 0) + 1
            if claim.attempt == 1 and not claim.crashes and not handed_back:
                micro = int(claim.waited * 1e6)
                one.wait_microseconds += micro
                if micro >= 4:
                    power = micro.bit_length() - 3
                    micro = (power << 2) + (micro >> power)
                sketch = one.wait
                sketch[micro] = sketch.get(micro, 0) + 1
            size = len(claim.payload)
            one.payload_bytes += size
            if size > one.payload_most:
                one.payload_most = size

    def _taken(self) -> list[Tally]:
        counts, self._counts = self._counts, {}
        return [
            Tally(
                kind=kind,
                outcome=outcome,
                count=one.count,
                run=one.run,
                wait=one.wait,
                run_microseconds=one.run_microseconds,
                wait_microseconds=one.wait_microseconds,
                payload_bytes=one.payload_bytes,
                payload_most=one.payload_most,
            )
            for outcome, kinds in counts.items()
            for kind, one in kinds.items()
        ]

    def _kinds(self, outcome: str) -> dict[str, Count]:
        return self._counts.setdefault(outcome, {})


def _of(kinds: dict[str, Count], kind: str) -> Count:
    return kinds.setdefault(kind, Count())
