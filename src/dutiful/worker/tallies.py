"""What attempts came to, counted in memory by kind and outcome until it is handed over, a few times a minute."""

from collections.abc import Sequence
from uuid import UUID

from dutiful.core.job import Claim
from dutiful.core.settle import Change
from dutiful.core.sketch import Sketch, add_times
from dutiful.core.transitions import State
from dutiful.measuring import Measuring, Tally, outcome_of
from dutiful.worker.pile import Ended, Span

# The attempt was handed back, so the job will have its first one once more, and its wait be counted then; but not if it
# was lost, for then nobody knows whether it had begun.
HANDED_BACK = frozenset({"snoozed", "released", "lost"})
MANY = 4_096  # of so many the times are added up at once, by sorting them: in Python that is faster than one by one


class Count:
    """Of one kind and outcome, since the last turn; of the latest attempts their times as they came."""

    __slots__ = (
        "count", "payload_bytes", "payload_most", "run", "run_microseconds", "runs", "wait", "wait_microseconds",
        "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = 0
        self.runs: list[float] = []
        self.waits: list[float] = []
        self.run: Sketch = {}
        self.wait: Sketch = {}
        self.run_microseconds = 0
        self.wait_microseconds = 0
        self.payload_bytes = 0
        self.payload_most = 0

    def add_up(self) -> None:
        self.count += len(self.runs)
        self.run_microseconds += add_times(self.run, self.runs)
        self.wait_microseconds += add_times(self.wait, self.waits)
        self.runs, self.waits = [], []


class Tallies:
    """Counted is what the store has taken: an outcome that it refused, since the claim was lost, is counted by whoever
    took the claim away, a worker or a person. What was never started is no attempt."""

    def __init__(self) -> None:
        self._ended: dict[int, Span] = {}  # by claim, of those that were not completed
        self._counts: dict[str, dict[str, Count]] = {}  # by outcome, then kind
        self._uncounted: list[Sequence[Ended]] = []
        self._listed = 0  # times that are not added up yet, at most
        self._turn = 0
        self._turned: list[Tally] = []  # this turn's, until the store has them

    def ended(self, claim: Claim, span: Span) -> None:
        """An attempt came to its end, and the job is not completed; its outcome is on its way."""
        self._ended[claim.claim_id] = span

    def completed(self, ended: Sequence[Ended]) -> None:
        """These are stored; they are only noted, for `count` to be called when there is time."""
        self._uncounted.append(ended)

    def count(self) -> None:
        """What has been completed since the last time."""
        uncounted, self._uncounted = self._uncounted, []
        for ended in uncounted:
            self._count(State.COMPLETED.value, ended)

    def settled(self, claim: Claim, change: Change) -> None:
        """A change is stored."""
        span = self._ended.pop(claim.claim_id, None)
        if span is not None:
            self._count(outcome_of(change), [(claim, change, span)])

    def stored(self, state: State, claim: Claim, span: Span) -> None:
        """The handler has brought its job into this state by itself."""
        self._count(state.value, [(claim, None, span)])

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

    def _count(self, outcome: str, ended: Sequence[tuple[Claim, object, Span]]) -> None:
        """Run for every job, so it calls next to nothing."""
        kinds = self._kinds(outcome)
        handed_back = outcome in HANDED_BACK
        for claim, _, (ahead, ran) in ended:
            one = kinds.get(claim.kind)
            if one is None:
                one = kinds[claim.kind] = Count()
            one.runs.append(ran)
            if claim.attempt == 1 and not claim.crashes and not handed_back:
                one.waits.append(claim.waited + ahead)
            payload = claim.payload
            size = len(payload) if payload.isascii() else len(payload.encode())
            one.payload_bytes += size
            if size > one.payload_most:
                one.payload_most = size
        self._listed += len(ended)
        if self._listed > MANY:
            self._add_up()

    def _add_up(self) -> None:
        for kinds in self._counts.values():
            for one in kinds.values():
                one.add_up()
        self._listed = 0

    def _taken(self) -> list[Tally]:
        self.count()
        self._add_up()
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
