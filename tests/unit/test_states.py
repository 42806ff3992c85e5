import itertools

import pytest

from dutiful.core.errors import IllegalTransition
from dutiful.core.states import FINAL, PARTICIPLES, TABLE, WAITING, State, Transition, check

# From, transition, and where it may lead; written down a second time, so that a change of the table is meant.
LEGAL = """
scheduled promote  ready blocked
scheduled run_now  ready blocked
scheduled retry    scheduled ready blocked
scheduled fail     failed
scheduled cancel   cancelled
ready     block    blocked
ready     claim    running
ready     retry    scheduled ready blocked
ready     fail     failed
ready     cancel   cancelled
blocked   admit    ready scheduled
blocked   run_now  ready blocked
blocked   retry    scheduled ready blocked
blocked   fail     failed
blocked   cancel   cancelled
running   release  ready blocked
running   complete completed completed_with_errors
running   retry    scheduled ready blocked
running   snooze   scheduled ready blocked
running   lose     ready blocked failed
running   fail     failed
running   cancel   cancelled
"""


def test_every_state_is_waiting_running_or_final() -> None:
    assert set(State) == WAITING | {State.RUNNING} | FINAL
    assert not WAITING & FINAL and {state for state in State if state.final} == FINAL


@pytest.mark.parametrize(("state", "transition"), list(itertools.product(sorted(FINAL), Transition)))
def test_a_final_state_is_never_left(state: State, transition: Transition) -> None:
    for to in State:
        with pytest.raises(
            IllegalTransition, match=f"a {state} job has ended, so it cannot be {PARTICIPLES[transition]}$"
        ):
            check(state, transition, to)


def test_what_is_listed_here_is_legal_and_nothing_else() -> None:
    legal = {tuple(line.split()[:2]): set(line.split()[2:]) for line in LEGAL.strip().splitlines()}
    for state, transition, to in itertools.product(State, Transition, State):
        if to in legal.get((state.value, transition.value), set()):
            assert check(state, transition, to) is to
        else:
            with pytest.raises(IllegalTransition, match=f"a {state} job .*{PARTICIPLES[transition]}"):
                check(state, transition, to)


def test_an_illegal_transition_is_explained() -> None:
    for state, transition, to, message in (
        (State.FAILED, Transition.RELEASE, State.READY, "a failed job has ended, so it cannot be released"),
        (State.READY, Transition.RELEASE, State.READY,
         "a ready job cannot be released; it can be: blocked, cancelled, claimed, failed, retried"),
        (State.RUNNING, Transition.RELEASE, State.FAILED,
         "a running job that is released cannot become failed, only: blocked, ready"),
    ):  # fmt: skip
        with pytest.raises(IllegalTransition) as refused:
            check(state, transition, to)
        assert str(refused.value) == message


def test_every_live_state_can_be_cancelled_and_reached_and_every_final_one_reached() -> None:
    reached = {to for targets in TABLE.values() for to in targets}
    assert reached == set(State)
    assert all((state, Transition.CANCEL) in TABLE for state in State if not state.final)


@pytest.mark.req("L42")
def test_a_job_that_waits_can_be_ended_by_a_cancel_or_fail_and_complete_only_if_it_runs() -> None:
    for state in WAITING:
        ends = {
            transition: targets & FINAL
            for (start, transition), targets in TABLE.items()
            if start is state and targets & FINAL
        }
        assert ends == {Transition.CANCEL: {State.CANCELLED}, Transition.FAIL: {State.FAILED}}


def test_a_blocked_job_never_runs_without_being_ready_first() -> None:
    into_running = {state for (state, _), targets in TABLE.items() if State.RUNNING in targets}
    assert into_running == {State.READY}
