"""The states of a job and the transitions between them, in one table.

`core.settle` checks each outcome of a running job against it, the operator each `fail` and `release`. The moves of
waiting jobs are written in the stores' SQL, which has no other ones; the stores' tests cover them.

Laws:
1. A job is in exactly one state.
2. A final state is never left.
3. Only a claim that is still held may move a running job (the store proves it by the claim's token).
4. An illegal transition that is asked for raises and changes nothing.
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


class Transition(StrEnum):
    """What can happen to a live job."""

    PROMOTE = "promote"
    BLOCK = "block"
    ADMIT = "admit"
    RUN_NOW = "run_now"
    CLAIM = "claim"
    RELEASE = "release"
    COMPLETE = "complete"
    RETRY = "retry"
    SNOOZE = "snooze"
    LOSE = "lose"
    FAIL = "fail"
    CANCEL = "cancel"


PARTICIPLES = {
    Transition.PROMOTE: "promoted",
    Transition.BLOCK: "blocked",
    Transition.ADMIT: "admitted",
    Transition.RUN_NOW: "run now",
    Transition.CLAIM: "claimed",
    Transition.RELEASE: "released",
    Transition.COMPLETE: "completed",
    Transition.RETRY: "retried",
    Transition.SNOOZE: "snoozed",
    Transition.LOSE: "lost",
    Transition.FAIL: "failed",
    Transition.CANCEL: "cancelled",
}
"""As messages name them: "it cannot be cancelled"."""

FINAL = frozenset({State.COMPLETED, State.COMPLETED_WITH_ERRORS, State.FAILED, State.CANCELLED})
WAITING = frozenset({State.SCHEDULED, State.READY, State.BLOCKED})

TABLE: dict[tuple[State, Transition], frozenset[State]] = {
    (State.SCHEDULED, Transition.PROMOTE): frozenset({State.READY, State.BLOCKED}),
    (State.SCHEDULED, Transition.RUN_NOW): frozenset({State.READY, State.BLOCKED}),
    (State.SCHEDULED, Transition.RETRY): frozenset({State.SCHEDULED, State.READY, State.BLOCKED}),
    (State.SCHEDULED, Transition.FAIL): frozenset({State.FAILED}),
    (State.SCHEDULED, Transition.CANCEL): frozenset({State.CANCELLED}),
    (State.READY, Transition.BLOCK): frozenset({State.BLOCKED}),
    (State.READY, Transition.CLAIM): frozenset({State.RUNNING}),
    (State.READY, Transition.RETRY): frozenset({State.SCHEDULED, State.READY, State.BLOCKED}),
    (State.READY, Transition.FAIL): frozenset({State.FAILED}),
    (State.READY, Transition.CANCEL): frozenset({State.CANCELLED}),
    (State.BLOCKED, Transition.ADMIT): frozenset({State.READY, State.SCHEDULED}),
    (State.BLOCKED, Transition.RUN_NOW): frozenset({State.READY, State.BLOCKED}),
    (State.BLOCKED, Transition.RETRY): frozenset({State.SCHEDULED, State.READY, State.BLOCKED}),
    (State.BLOCKED, Transition.FAIL): frozenset({State.FAILED}),
    (State.BLOCKED, Transition.CANCEL): frozenset({State.CANCELLED}),
    (State.RUNNING, Transition.RELEASE): frozenset({State.READY, State.BLOCKED}),
    (State.RUNNING, Transition.COMPLETE): frozenset({State.COMPLETED, State.COMPLETED_WITH_ERRORS}),
    (State.RUNNING, Transition.RETRY): frozenset({State.SCHEDULED, State.READY, State.BLOCKED}),
    (State.RUNNING, Transition.SNOOZE): frozenset({State.SCHEDULED, State.READY, State.BLOCKED}),
    (State.RUNNING, Transition.LOSE): frozenset({State.READY, State.BLOCKED, State.FAILED}),
    (State.RUNNING, Transition.FAIL): frozenset({State.FAILED}),
    (State.RUNNING, Transition.CANCEL): frozenset({State.CANCELLED}),
}


def check(state: State, transition: Transition, to: State) -> State:
    """Returns `to` if `transition` may take a job from `state` there; raises IllegalTransition otherwise."""
    if to in TABLE.get((state, transition), frozenset()):
        return to
    if state.final:
        raise IllegalTransition(f"a {state} job has ended, so it cannot be {PARTICIPLES[transition]}")
    if (state, transition) in TABLE:
        become = ", ".join(sorted(TABLE[state, transition]))
        raise IllegalTransition(f"a {state} job that is {PARTICIPLES[transition]} cannot become {to}, only: {become}")
    allowed = ", ".join(sorted(PARTICIPLES[t] for s, t in TABLE if s is state))
    raise IllegalTransition(f"a {state} job cannot be {PARTICIPLES[transition]}; it can be: {allowed}")
