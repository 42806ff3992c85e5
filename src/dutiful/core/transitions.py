"""Where a job may stand and how it may move: one table, and nothing outside it is legal.

Laws:
1. A job stands in exactly one state.
2. A final state is never left.
3. Only a claim that is still held may move a running job (the store proves it by the claim's token).
4. An illegal transition raises and changes nothing.
"""

from enum import StrEnum

from dutiful.core.errors import IllegalTransition


class State(StrEnum):
    SCHEDULED = "scheduled"
    READY = "ready"
    BLOCKED = "blocked"
    RUNNING = "running"
    COMPLETED = "completed"
    COMPLETED_WITH_ERRORS = "completed_with_errors"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in FINAL


class Act(StrEnum):
    """What can happen to a live job."""

    PROMOTE = "promote"
    BLOCK = "block"
    ADMIT = "admit"
    EXPEDITE = "expedite"
    CLAIM = "claim"
    RELEASE = "release"
    COMPLETE = "complete"
    RETRY = "retry"
    SNOOZE = "snooze"
    LOSE = "lose"
    FAIL = "fail"
    CANCEL = "cancel"


DONE = {
    Act.PROMOTE: "promoted",
    Act.BLOCK: "blocked",
    Act.ADMIT: "admitted",
    Act.EXPEDITE: "expedited",
    Act.CLAIM: "claimed",
    Act.RELEASE: "released",
    Act.COMPLETE: "completed",
    Act.RETRY: "retried",
    Act.SNOOZE: "snoozed",
    Act.LOSE: "lost",
    Act.FAIL: "failed",
    Act.CANCEL: "cancelled",
}
"""What a job has been then, for messages."""

FINAL = frozenset({State.COMPLETED, State.COMPLETED_WITH_ERRORS, State.FAILED, State.CANCELLED})
WAITING = frozenset({State.SCHEDULED, State.READY, State.BLOCKED})

TABLE: dict[tuple[State, Act], frozenset[State]] = {
    (State.SCHEDULED, Act.PROMOTE): frozenset({State.READY, State.BLOCKED}),
    (State.SCHEDULED, Act.EXPEDITE): frozenset({State.READY, State.BLOCKED}),
    (State.SCHEDULED, Act.FAIL): frozenset({State.FAILED}),
    (State.SCHEDULED, Act.CANCEL): frozenset({State.CANCELLED}),
    (State.READY, Act.BLOCK): frozenset({State.BLOCKED}),
    (State.READY, Act.CLAIM): frozenset({State.RUNNING}),
    (State.READY, Act.FAIL): frozenset({State.FAILED}),
    (State.READY, Act.CANCEL): frozenset({State.CANCELLED}),
    (State.BLOCKED, Act.ADMIT): frozenset({State.READY, State.SCHEDULED}),
    (State.BLOCKED, Act.EXPEDITE): frozenset({State.READY, State.BLOCKED}),
    (State.BLOCKED, Act.FAIL): frozenset({State.FAILED}),
    (State.BLOCKED, Act.CANCEL): frozenset({State.CANCELLED}),
    (State.RUNNING, Act.RELEASE): frozenset({State.READY, State.BLOCKED}),
    (State.RUNNING, Act.COMPLETE): frozenset({State.COMPLETED, State.COMPLETED_WITH_ERRORS}),
    (State.RUNNING, Act.RETRY): frozenset({State.SCHEDULED, State.READY, State.BLOCKED}),
    (State.RUNNING, Act.SNOOZE): frozenset({State.SCHEDULED, State.READY, State.BLOCKED}),
    (State.RUNNING, Act.LOSE): frozenset({State.READY, State.BLOCKED, State.FAILED}),
    (State.RUNNING, Act.FAIL): frozenset({State.FAILED}),
    (State.RUNNING, Act.CANCEL): frozenset({State.CANCELLED}),
}


def check(state: State, act: Act, to: State) -> State:
    """Return `to` if `act` may take a job from `state` there; raise IllegalTransition otherwise."""
    if to in TABLE.get((state, act), frozenset()):
        return to
    if state.final:
        raise IllegalTransition(f"a {state} job has ended, so it cannot be {DONE[act]}")
    if (state, act) in TABLE:
        become = ", ".join(sorted(TABLE[state, act]))
        raise IllegalTransition(f"a {state} job that is {DONE[act]} cannot become {to}, only: {become}")
    allowed = ", ".join(sorted(DONE[a] for s, a in TABLE if s is state))
    raise IllegalTransition(f"a {state} job cannot be {DONE[act]}; it can be: {allowed}")
