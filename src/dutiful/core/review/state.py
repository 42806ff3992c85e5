"""What people may do with a dead letter: one table, and nothing outside it is legal.

Laws:
1. People act on a dead letter only while it is open; reprocessing, resolved and discarded ones are closed.
2. Reprocessing makes exactly one new job, whose end resolves the dead letter; if that job is cancelled, the dead
   letter is to be reviewed again.
3. Its payload, errors and history never change.
"""

from enum import StrEnum
from uuid import UUID

from dutiful.core.errors import IllegalTransition
from dutiful.core.ids import public
from dutiful.core.states import State


class ReviewState(StrEnum):
    PENDING_REVIEW = "pending_review"
    ACKNOWLEDGED = "acknowledged"  # a person has seen it, and has not decided yet
    REPROCESSING = "reprocessing"  # a new job runs in its place
    RESOLVED = "resolved"  # its new job has ended, or a person has resolved it by hand
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
        raise IllegalTransition(f"{what} is {state}, so {act} is not allowed; allowed: {allowed}")
    return to


def from_states(act: ReviewAct) -> frozenset[ReviewState]:
    """The states in which `act` is allowed."""
    return frozenset(state for state, allowed in TABLE if allowed is act)


BY_HAND = "by hand"  # the resolution of one that a person has resolved


def resolution(new_job_id: UUID, state: State | None) -> tuple[ReviewState, str]:
    """The state of a reprocessed dead letter whose new job ended as `state` (None: it was deleted), and the reason."""
    name = public(new_job_id)
    match state:
        case None:
            return ReviewState.RESOLVED, f"its new job {name} is gone"
        case State.CANCELLED:
            return ReviewState.PENDING_REVIEW, f"its new job {name} was cancelled"
        case State.FAILED:
            return ReviewState.RESOLVED, f"failed again as {name}, which has a dead letter of its own"
        case _:
            return ReviewState.RESOLVED, f"{state.value.replace('_', ' ')} as {name}"
