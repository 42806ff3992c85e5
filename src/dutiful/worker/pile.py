"""Outcomes on their way to the store."""

from dataclasses import dataclass, field
from typing import NamedTuple

from dutiful.core.job import Claim
from dutiful.core.settle import Change
from dutiful.working import Completion

BATCH = 1_000


class Span(NamedTuple):
    """Of an attempt, in seconds."""

    ahead: float  # from its claim to its start
    ran: float


NONE = Span(0.0, 0.0)
# The claim itself, for by then the keeper may have found it gone, and its lease be dropped.
Ended = tuple[Claim, Completion, Span]


@dataclass(slots=True)
class Pile:
    """What is merely done, and what changes in some other way."""

    done: list[Ended] = field(default_factory=list)
    changes: list[tuple[Claim, Change]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.done) + len(self.changes)

    @property
    def claims(self) -> set[int]:
        return {claim.claim_id for claim, _, _ in self.done} | {claim.claim_id for claim, _ in self.changes}

    def take(self) -> "Pile":
        """The next batch of them, which are no longer here then."""
        taken = Pile(self.done[:BATCH], self.changes[:BATCH])
        self.done, self.changes = self.done[BATCH:], self.changes[BATCH:]
        return taken

    def put_back(self, taken: "Pile") -> None:
        self.done, self.changes = taken.done + self.done, taken.changes + self.changes
