"""Counts attempts in memory by kind and outcome; the heartbeat flushes them to the store."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from dutiful.core.job import Claim
from dutiful.core.metrics.sketch import Sketch, add_times
from dutiful.core.settle import Change
from dutiful.core.states import State
from dutiful.store.claims import Completion
from dutiful.store.metrics import AttemptStats, MetricStore, outcome_of


class Timing(msgspec.Struct, frozen=True, gc=False):
    """How long an attempt took, in seconds."""

    buffered: float  # from its claim to its start
    ran: float


NO_TIMING = Timing(0.0, 0.0)
# The claim itself, because its lease may be found lost and dropped before the outcome is stored.
Completed = tuple[Claim, Completion, Timing]

# The job will have its first attempt once more, and its wait is counted then; after a loss it is not known whether the
# attempt had begun.
RETURNED = frozenset({"snoozed", "released", "lost"})
SKETCH_AT = 4_096  # so many times are sketched at once by sorting them: in Python that is faster than one by one


@dataclass(slots=True)
class Count:
    """The attempts of one kind and outcome since the last flush; the latest times are not in the sketch yet."""

    kind: str
    outcome: str
    count: int = 0
    runs: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    run: Sketch = field(default_factory=dict)
    wait: Sketch = field(default_factory=dict)
    run_microseconds: int = 0
    wait_microseconds: int = 0
    payload_bytes: int = 0
    payload_most: int = 0

    def sketch_times(self) -> None:
        self.count += len(self.runs)
        self.run_microseconds += add_times(self.run, self.runs)
        self.wait_microseconds += add_times(self.wait, self.waits)
        self.runs, self.waits = [], []


class AttemptCounters:
    """Counts outcomes that the store has accepted.

    A refused outcome is counted by the worker or person that took the claim away. A job that was never started is no
    attempt.
    """

    def __init__(self) -> None:
        self._ended: dict[int, Timing] = {}  # by claim, of attempts that did not complete their job
        self._counts: dict[str, dict[str, Count]] = {}  # by outcome, then kind
        self._uncounted: list[Sequence[Completed]] = []
        self._unfolded = 0  # an upper bound
        self._turn = 0
        self._unsent: list[AttemptStats] = []  # this turn's, until the store has them

    def attempt_ended(self, claim: Claim, timing: Timing) -> None:
        """Notes an attempt that did not complete its job, and whose outcome is not stored yet."""
        self._ended[claim.claim_id] = timing

    def completed(self, completed: Sequence[Completed]) -> None:
        """Notes stored completions, to be counted when the caller has time for `count`."""
        self._uncounted.append(completed)

    def count(self) -> None:
        """Counts the completions noted since the last call."""
        uncounted, self._uncounted = self._uncounted, []
        for completed in uncounted:
            self._count(State.COMPLETED.value, completed)

    def settled(self, claim: Claim, change: Change) -> None:
        """Counts a stored change."""
        timing = self._ended.pop(claim.claim_id, None)
        if timing is not None:
            self._count(outcome_of(change), [(claim, change, timing)])

    def settled_by_handler(self, state: State, claim: Claim, timing: Timing) -> None:
        """Counts a job that the handler's own transaction brought into this state."""
        self._count(state.value, [(claim, None, timing)])

    def refused(self, claim: Claim) -> None:
        """Forgets an attempt whose claim was lost before its outcome could be stored."""
        self._ended.pop(claim.claim_id, None)

    def rescued(self, kind: str, change: Change) -> None:
        """Counts an attempt of a dead worker; how long it ran is unknown."""
        outcome = outcome_of(change)
        self._kinds(outcome).setdefault(kind, Count(kind, outcome)).count += 1

    async def flush(self, store: MetricStore, worker_id: UUID) -> None:
        """Writes what was counted; the same turn is written again until the store has answered."""
        if not self._unsent:
            self._unsent = self._take()
            self._turn += 1 if self._unsent else 0
        if self._unsent:
            await store.add(worker_id, self._turn, self._unsent)
            self._unsent = []

    async def flush_all(self, store: MetricStore, worker_id: UUID) -> None:
        """Writes a turn that is under way, and what has been counted since."""
        await self.flush(store, worker_id)
        await self.flush(store, worker_id)

    def _count(self, outcome: str, ended: Sequence[tuple[Claim, object, Timing]]) -> None:
        """Runs for every job, so it calls next to nothing."""
        kinds = self._kinds(outcome)
        returned = outcome in RETURNED
        for claim, _, timing in ended:
            one = kinds.get(claim.kind)
            if one is None:
                one = kinds[claim.kind] = Count(claim.kind, outcome)
            one.runs.append(timing.ran)
            if claim.attempt == 1 and not claim.crashes and not returned:
                one.waits.append(claim.waited + timing.buffered)
            payload = claim.payload
            size = len(payload) if payload.isascii() else len(payload.encode())
            one.payload_bytes += size
            if size > one.payload_most:
                one.payload_most = size
        self._unfolded += len(ended)
        if self._unfolded > SKETCH_AT:
            self._fold()

    def _fold(self) -> None:
        for kinds in self._counts.values():
            for one in kinds.values():
                one.sketch_times()
        self._unfolded = 0

    def _take(self) -> list[AttemptStats]:
        self.count()
        self._fold()
        counts, self._counts = self._counts, {}
        ended = [one for kinds in counts.values() for one in kinds.values()]
        return msgspec.convert(ended, list[AttemptStats], from_attributes=True)

    def _kinds(self, outcome: str) -> dict[str, Count]:
        return self._counts.setdefault(outcome, {})
