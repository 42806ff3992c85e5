from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.job import HeldClaim, PhaseState
from dutiful.core.outcome import (
    Cancelled,
    Done,
    Failed,
    Lost,
    Outcome,
    Partial,
    PhaseTry,
    Released,
    Snoozed,
    TimedOut,
    TimeoutExceeded,
)
from dutiful.core.retry.backoff import Fixed, Linear
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.policy import Retry
from dutiful.core.settle import (
    Change,
    Policy,
    decide,
    decide_or_fail,
    dependency_error,
    dependency_reason,
    is_repeat,
    refused_error,
)
from dutiful.core.states import TABLE, State

JOB, WORKER = UUID(int=1), UUID(int=2)
OOPS: dict[str, Any] = {"type": "ValueError", "message": "oops"}
HOUR = timedelta(hours=1)
RETRY = Retry(backoff=Fixed(HOUR), per_error={KeyError: None, TimeoutExceeded: Fixed("2h")})


def held(attempt: int = 1, crashes: int = 0) -> HeldClaim:
    return HeldClaim(JOB, 7, attempt, crashes, "greet", WORKER, False)


def decided(
    outcome: Outcome, *, attempt: int = 1, crashes: int = 0, max_attempts: int = 5, policy: Policy | None = None
) -> Change:
    chosen = policy or Policy(retry=RETRY)
    return decide(held(attempt, crashes), outcome, chosen, max_attempts, lambda low, high: low)


def test_done_is_completed_with_its_result() -> None:
    change = decided(Done('{"n": 1}'), attempt=3)
    assert (change.to, change.outcome, change.result, change.attempt) == (State.COMPLETED, "done", '{"n": 1}', 3)


def test_partial_is_completed_with_errors() -> None:
    change = decided(Partial("[1]", (OOPS,)))
    assert (change.to, change.result, change.errors) == (State.COMPLETED_WITH_ERRORS, "[1]", (OOPS,))


def test_a_failure_is_tried_again_until_the_attempts_are_spent() -> None:
    fates = [decided(Failed(OOPS, ValueError), attempt=n, max_attempts=3) for n in (1, 2, 3)]
    assert [fate.to for fate in fates] == [State.SCHEDULED, State.SCHEDULED, State.FAILED]
    assert [fate.delay for fate in fates] == [HOUR, HOUR, None]
    assert [fate.attempt for fate in fates] == [1, 2, 3] and all(fate.errors == (OOPS,) for fate in fates)


def test_the_jobs_own_number_of_attempts_counts_not_its_kinds() -> None:
    policy = Policy(retry=Retry(max_attempts=1, backoff=Fixed(HOUR)))
    assert decided(Failed(OOPS), max_attempts=2, policy=policy).to is State.SCHEDULED
    assert decided(Failed(OOPS), max_attempts=1, policy=Policy(retry=RETRY)).to is State.FAILED


def test_what_can_never_succeed_fails_at_once() -> None:
    assert decided(Failed(OOPS, ValueError, final=True)).to is State.FAILED
    assert decided(Failed(OOPS, KeyError)).to is State.FAILED


def test_a_retry_without_delay_goes_straight_back_in_line() -> None:
    change = decided(Failed(OOPS), policy=Policy(retry=Retry(backoff=Fixed(0))))
    assert (change.to, change.delay, change.keep_seq) == (State.READY, None, False)


def test_the_delay_that_the_other_side_asked_for_replaces_the_computed_one() -> None:
    change = decided(Failed(OOPS, retry_after=timedelta(days=2)))
    assert (change.to, change.delay) == (State.SCHEDULED, timedelta(days=2))
    assert decided(Failed(OOPS, retry_after=HOUR), attempt=5).to is State.FAILED


@pytest.mark.req("W32", "W63")
def test_the_class_that_is_stored_with_an_error_decides_for_jobs_phases_and_timeouts_alike() -> None:
    policy = Retry(backoff=Fixed(HOUR), by_class={ErrorClass.TRANSIENT: Fixed("2h")})
    whole, own = Policy(retry=policy), PhaseTry(policy, 1)

    def fate(error_class: str, outcome: type[Failed | TimedOut], phase: PhaseTry | None) -> Change:
        error = OOPS | {"class": error_class}
        failed = Failed(error, phase=phase) if outcome is Failed else TimedOut(HOUR, error, phase)
        return decided(failed, policy=whole if phase is None else Policy(retry=Retry(max_attempts=1)))

    for outcome in (Failed, TimedOut):
        for phase in (None, own):
            assert fate("transient", outcome, phase).delay == 2 * HOUR
            assert fate("retryable", outcome, phase).delay == HOUR
            assert fate("non_retryable", outcome, phase).to is State.FAILED


def test_a_timeout_has_a_policy_of_its_own() -> None:
    change = decided(TimedOut(HOUR, OOPS))
    assert (change.to, change.outcome, change.delay) == (State.SCHEDULED, "timed_out", 2 * HOUR)


def test_a_snooze_spends_no_attempt() -> None:
    change = decided(Snoozed(HOUR), attempt=4, max_attempts=4)
    assert (change.to, change.delay, change.attempt, change.errors) == (State.SCHEDULED, HOUR, 3, ())
    assert decided(Snoozed(timedelta(0))).to is State.READY
    rejected = decided(Snoozed(timedelta(0), {"type": "BreakerOpen", "message": "", "breaker": "mail"}), attempt=4)
    assert (rejected.to, rejected.rejected_by, rejected.attempt) == (State.BLOCKED, "mail", 3)


def test_a_cancellation_has_its_reason() -> None:
    change = decided(Cancelled("not wanted"))
    assert change.to is State.CANCELLED and change.errors == ({"type": "Cancelled", "message": "not wanted"},)


def test_what_was_not_started_gets_its_position_back_and_spends_nothing() -> None:
    assert decided(Released()).began and not decided(Released(began=False)).began and not decided(Done(None)).began
    change = decided(Released(), attempt=2, crashes=1)
    assert (change.to, change.attempt, change.crashes, change.keep_seq) == (State.READY, 1, 1, True)


def test_a_lost_attempt_counts_as_a_crash_and_not_as_an_attempt() -> None:
    change = decided(Lost(), attempt=5, crashes=1, max_attempts=5)
    assert (change.to, change.attempt, change.crashes, change.keep_seq) == (State.READY, 4, 2, True)


def test_too_many_crashes_make_a_dead_letter() -> None:
    change = decided(Lost(), crashes=2)
    assert change.to is State.FAILED and change.errors[0]["type"] == "WorkerLost"
    assert change.errors[0]["class"] == "transient" and change.errors[0]["fingerprint"]
    assert "died 3 times" in change.errors[0]["message"]
    once = decided(Lost(), policy=Policy(retry_crashes=False))
    assert once.to is State.FAILED and "died once" in once.errors[0]["message"]


def test_a_phase_with_a_policy_of_its_own_is_counted_by_that() -> None:
    phase = Retry(max_attempts=3, backoff=Linear("1m"))
    fates = [decided(Failed(OOPS, phase=PhaseTry(phase, n)), attempt=9, max_attempts=1) for n in (1, 2, 3)]
    assert [fate.to for fate in fates] == [State.SCHEDULED, State.SCHEDULED, State.FAILED]
    assert [fate.delay for fate in fates] == [timedelta(minutes=1), timedelta(minutes=2), None]
    assert [fate.attempt for fate in fates] == [8, 8, 9]  # what the phase retries by itself, the job has not spent


def test_a_phase_that_took_too_long_is_counted_by_its_own_policy() -> None:
    phase = Retry(max_attempts=2, backoff=Fixed("1m"), per_error={TimeoutExceeded: Fixed("3m")})
    fates = [decided(TimedOut(HOUR, OOPS, PhaseTry(phase, n)), max_attempts=1) for n in (1, 2)]
    assert [(fate.to, fate.delay) for fate in fates] == [
        (State.SCHEDULED, timedelta(minutes=3)), (State.FAILED, None)
    ]  # fmt: skip


def test_what_a_phases_policy_says_of_an_error_counts_and_not_what_the_jobs_says() -> None:
    lenient, strict = Retry(backoff=Fixed("1m")), Retry(backoff=Fixed("1m"), per_error={ValueError: None})
    assert decided(Failed(OOPS, KeyError, phase=PhaseTry(lenient, 1))).to is State.SCHEDULED
    assert decided(Failed(OOPS, ValueError, phase=PhaseTry(strict, 1))).to is State.FAILED
    assert decided(Failed(OOPS, final=True, phase=PhaseTry(lenient, 1))).to is State.FAILED


def test_a_failure_has_all_its_errors_the_first_being_its_own() -> None:
    other = {"type": "KeyError", "message": "a"}
    assert decided(Failed(OOPS, more=(other, other))).errors == (OOPS, other, other)


@pytest.mark.parametrize(
    ("outcome", "phase_to"),
    [
        (Done(), None),
        (Partial(None, (OOPS,)), None),
        (Failed(OOPS), PhaseState.FAILED),
        (Failed(OOPS, final=True), PhaseState.FAILED),
        (TimedOut(HOUR, OOPS), PhaseState.FAILED),
        (Cancelled("not wanted"), PhaseState.CANCELLED),
        (Lost(), PhaseState.INTERRUPTED),
        (Released(), PhaseState.INTERRUPTED),
        (Snoozed(HOUR), PhaseState.INTERRUPTED),
    ],
)
def test_every_outcome_says_what_becomes_of_a_phase_that_was_running(
    outcome: Outcome, phase_to: PhaseState | None
) -> None:
    assert decided(outcome).phase_to is phase_to
    assert decided(outcome, attempt=5, crashes=9).phase_to is phase_to


OUTCOMES = st.one_of(
    st.builds(Done, st.none() | st.just("1")),
    st.builds(Partial, st.none(), st.just((OOPS,))),
    st.builds(
        Failed,
        st.just(OOPS),
        st.sampled_from([None, ValueError, KeyError]),
        st.none() | st.timedeltas(timedelta(0), timedelta(days=9)),
        st.booleans(),
    ),
    st.builds(Snoozed, st.timedeltas(timedelta(0), timedelta(days=9))),
    st.builds(Cancelled, st.text(max_size=5)),
    st.builds(TimedOut, st.just(HOUR), st.just(OOPS)),
    st.just(Lost()),
    st.just(Released()),
)


@given(OUTCOMES, st.integers(1, 9), st.integers(0, 4), st.integers(1, 9), st.booleans())
def test_whatever_came_of_it_the_change_is_legal_and_its_own(
    outcome: Outcome, attempt: int, crashes: int, max_attempts: int, retry_crashes: bool
) -> None:
    policy = Policy(Retry(backoff=Linear("1s")), 3, retry_crashes)
    change = decided(outcome, attempt=attempt, crashes=crashes, max_attempts=max_attempts, policy=policy)
    legal = {to for (state, _), targets in TABLE.items() for to in targets if state is State.RUNNING}
    assert (change.job_id, change.claim_id) == (JOB, 7) and change.to in legal
    assert (change.delay is not None) == (change.to is State.SCHEDULED)
    assert change.delay is None or change.delay > timedelta(0)
    assert attempt - 1 <= change.attempt <= attempt and crashes <= change.crashes <= crashes + 1
    assert change.to is not State.FAILED or change.errors
    if change.to is State.SCHEDULED and isinstance(outcome, Failed):
        assert attempt < max_attempts


@pytest.mark.parametrize(
    ("outcome", "ended", "recorded", "repeat"),
    [
        ("done", State.COMPLETED, (), True),
        ("done", State.CANCELLED, (), False),  # a person ended it meanwhile
        ("partial", State.FAILED, ("lost",), False),  # the rescuer did
        ("failed", State.FAILED, (), True),
        ("failed", None, ("failed",), True),
        ("failed", None, ("lost",), False),
        ("released", None, ("released",), True),
        ("released", None, ("lost",), False),
    ],
)
def test_an_outcome_without_its_claim_is_a_repeat_if_it_was_stored_before(
    outcome: str, ended: State | None, recorded: tuple[str, ...], repeat: bool
) -> None:
    assert is_repeat(outcome, ended, recorded) is repeat


def test_a_late_outcome_is_recorded_with_its_name() -> None:
    assert refused_error("done") == {"type": "ClaimLost", "message": "its outcome came after the claim was lost: done"}


class Raising(Fixed):
    """A backoff of a user's that has a bug."""

    def after(self, attempt: int, uniform: Any) -> timedelta:
        raise ZeroDivisionError("a bug in the policy")


def test_a_policy_that_raises_fails_its_job_for_good() -> None:
    policy = Policy(retry=Retry(backoff=Raising(1), max_attempts=5))
    change = decide_or_fail(held(), Failed(OOPS, ValueError), policy, 5, lambda low, high: low)
    assert (change.to, change.delay, change.errors[0]["type"]) == (State.FAILED, None, "ZeroDivisionError")
    assert (change.job_id, change.claim_id, change.attempt) == (JOB, 7, 1)


def test_a_policy_that_does_not_raise_decides() -> None:
    assert decide_or_fail(held(), Done("1"), Policy(), 5, lambda low, high: low) == decided(Done("1"))


def test_a_job_is_rejected_by_a_breaker_only_if_it_snoozes_because_of_it() -> None:
    because = {"type": "BreakerOpen", "message": "open", "breaker": "mail"}
    other = {**OOPS, "breaker": "other"}
    assert decided(Snoozed(timedelta(0), because)).rejected_by == "mail"
    assert decided(Snoozed(HOUR)).rejected_by is None
    assert decided(Failed(because, final=True)).rejected_by is None
    assert decided(Failed(because, final=True, more=(other,))).rejected_by is None
    assert not decided(Done(None)).keep_seq


def test_a_wait_in_steps_blocks_its_job_and_spends_no_attempt() -> None:
    change = decided(Snoozed(HOUR, wait=("paid", "rest")), attempt=4, max_attempts=4)
    assert (change.to, change.outcome, change.attempt) == (State.BLOCKED, "snoozed", 3)
    assert (change.wait, change.delay, change.errors) == (("paid", "rest"), None, ())
    assert decided(Snoozed(HOUR)).wait is None


def test_a_change_that_says_nothing_of_a_start_is_none() -> None:
    assert not Change(JOB, 7, State.READY, "released", 0, 0).began


@pytest.mark.parametrize(("state", "became"), [(State.FAILED, "failed"), (State.CANCELLED, "was cancelled")])
def test_a_job_that_ends_by_the_policy_of_an_edge_names_the_other(state: State, became: str) -> None:
    reason = dependency_reason(JOB, state)
    assert reason.startswith("job 0000000-") and reason.endswith(f", which it depends on, {became}")
    error = dependency_error(JOB, state)
    assert (error["type"], error["class"], error["message"]) == ("DependencyFailed", "non_retryable", reason)
    # All of them are similar errors, whichever job they name.
    assert error["fingerprint"] == dependency_error(WORKER, State.FAILED)["fingerprint"]
