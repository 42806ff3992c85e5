"""Outcomes on their way to the store."""

from dataclasses import dataclass, field

from dutiful.core.job import Claim
from dutiful.core.settle import Change
from dutiful.working import Completion

BATCH = 1_000


@dataclass(slots=True)
class Pile:
    """What is merely done, and what changes in some other way."""

    done: list[Completion] = field(default_factory=list)
    changes: list[tuple[Claim, Change]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.done) + len(self.changes)

    @property
    def claims(self) -> set[int]:
        return {one.claim_id for one in self.done} | {claim.claim_id for claim, _ in self.changes}

    def take(self) -> "Pile":
        """The next batch of them, which are no longer here then."""
        taken = Pile(self.done[:BATCH], self.changes[:BATCH])
        self.done, self.changes = self.done[BATCH:], self.changes[BATCH:]
        return taken

    def put_back(self, taken: "Pile") -> None:
        self.done, self.changes = taken.done + self.done, taken.changes + self.changes
