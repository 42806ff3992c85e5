"""What people may do with a dead letter: one table, and nothing outside it is legal.

Laws:
1. A dead letter is acted on while it is open; reprocessing, resolved and discarded ones are closed to people.
2. Reprocessing makes exactly one new job; what becomes of that job resolves the dead letter.
3. Its payload, errors and history never change.
"""

from enum import StrEnum
from uuid import UUID

from dutiful.core.errors import IllegalTransition
from dutiful.core.ids import public
from dutiful.core.transitions import State


class ReviewState(StrEnum):
    PENDING_REVIEW = "pending_review"
    ACKNOWLEDGED = "acknowledged"  # somebody has seen it, and has not decided yet
    REPROCESSING = "reprocessing"  # a new job stands for it
    RESOLVED = "resolved"  # its new job has ended, or somebody has mended it by hand
    DISCARDED = "discarded"


class ReviewAct(StrEnum):
    ACKNOWLEDGE = "acknowledge"
    REPROCESS = "reprocess"
    RESOLVE = "resolve"
    DISCARD = "discard"


OPEN = frozenset({ReviewState.PENDING_REVIEW, ReviewState.ACKNOWLEDGED})

_TO = {
    ReviewAct.REPROCESS: ReviewState.REPROCESSING,
    ReviewAct.RESOLVE: ReviewState.RESOLVED,
    ReviewAct.DISCARD: ReviewState.DISCARDED,
}
TABLE: dict[tuple[ReviewState, ReviewAct], ReviewState] = {
    (ReviewState.PENDING_REVIEW, ReviewAct.ACKNOWLEDGE): ReviewState.ACKNOWLEDGED,
    **{(state, act): to for state in sorted(OPEN) for act, to in _TO.items()},
}


def check(state: ReviewState, act: ReviewAct, what: str) -> ReviewState:
    """Where `act` takes a dead letter that is `state`; IllegalTransition, naming `what`, if it may not."""
    to = TABLE.get((state, act))
    if to is None:
        allowed = ", ".join(a for s, a in TABLE if s is state) or "nothing: it is closed"
        raise IllegalTransition(f"{what} is {state}, so it cannot be told to {act}; it may be told to: {allowed}")
    return to


def from_states(act: ReviewAct) -> frozenset[ReviewState]:
    """The states in which `act` is allowed."""
    return frozenset(state for state, allowed in TABLE if allowed is act)


BY_HAND = "by hand"  # the resolution of one that a person has mended


def resolution(new_job_id: UUID, state: State | None) -> str:
    """How a reprocessed dead letter came to be resolved: its new job ended in `state`; None: it is gone."""
    match state:
        case None:
            return f"its new job {public(new_job_id)} is gone"
        case State.FAILED:
            return f"failed again as {public(new_job_id)}, which has a dead letter of its own"
        case _:
            return f"{state.value.replace('_', ' ')} as {public(new_job_id)}"
