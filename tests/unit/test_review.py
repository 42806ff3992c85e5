"""Reviews of dead letters, and the seals of audit events."""

import hashlib
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import dutiful
from dutiful.core.errors import IllegalTransition
from dutiful.core.ids import public
from dutiful.core.principal import Origin, Role
from dutiful.core.review.audit import (
    ADDRESS_LIMIT,
    PRINCIPAL_LIMIT,
    REASON_LIMIT,
    SHORTEST_KEEP,
    TARGET_LIMIT,
    VALUE_LIMIT,
    Anchor,
    AuditEvent,
    AuditOutcome,
    canonical,
    enum_or_text,
    seal,
)
from dutiful.core.review.state import OPEN, ReviewAct, ReviewState, check, from_states, resolution
from dutiful.core.states import State

NEW_JOB = UUID(int=7)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


# --- reviews


@pytest.mark.parametrize("state", sorted(OPEN))
@pytest.mark.parametrize(
    ("act", "to"),
    [
        (ReviewAct.REPROCESS, ReviewState.REPROCESSING),
        (ReviewAct.RESOLVE, ReviewState.RESOLVED),
        (ReviewAct.DISCARD, ReviewState.DISCARDED),
    ],
)
def test_an_open_dead_letter_can_be_decided(state: ReviewState, act: ReviewAct, to: ReviewState) -> None:
    assert check(state, act, "it") is to


@pytest.mark.parametrize("state", sorted(set(ReviewState) - OPEN))
@pytest.mark.parametrize("act", list(ReviewAct))
def test_a_closed_dead_letter_allows_nothing_and_says_so(state: ReviewState, act: ReviewAct) -> None:
    with pytest.raises(IllegalTransition) as refused:
        check(state, act, "the dead letter of job 1")
    assert str(refused.value) == (
        f"the dead letter of job 1 is {state}, so {act} is not allowed; allowed: nothing: it is closed"
    )


def test_a_dead_letter_is_acknowledged_once_and_the_refusal_names_what_is_allowed() -> None:
    assert check(ReviewState.PENDING_REVIEW, ReviewAct.ACKNOWLEDGE, "it") is ReviewState.ACKNOWLEDGED
    with pytest.raises(IllegalTransition, match=r"allowed: reprocess, resolve, discard$"):
        check(ReviewState.ACKNOWLEDGED, ReviewAct.ACKNOWLEDGE, "it")


def test_the_states_in_which_an_act_is_allowed_are_those_that_the_check_lets_pass() -> None:
    assert from_states(ReviewAct.ACKNOWLEDGE) == {ReviewState.PENDING_REVIEW}
    assert from_states(ReviewAct.REPROCESS) == from_states(ReviewAct.DISCARD) == from_states(ReviewAct.RESOLVE) == OPEN


@pytest.mark.parametrize(
    ("ended", "state", "reason"),
    [
        (None, ReviewState.RESOLVED, "its new job {} is gone"),
        (State.CANCELLED, ReviewState.PENDING_REVIEW, "its new job {} was cancelled"),
        (State.FAILED, ReviewState.RESOLVED, "failed again as {}, which has a dead letter of its own"),
        (State.COMPLETED, ReviewState.RESOLVED, "completed as {}"),
        (State.COMPLETED_WITH_ERRORS, ReviewState.RESOLVED, "completed with errors as {}"),
    ],
)
def test_the_end_of_the_new_job_resolves_the_dead_letter_unless_it_was_cancelled(
    ended: State | None, state: ReviewState, reason: str
) -> None:
    assert resolution(NEW_JOB, ended) == (state, reason.format(public(NEW_JOB)))


# --- seals


def event(number: int = 1, **fields: Any) -> AuditEvent:
    facts: dict[str, Any] = {
        "id": UUID(int=number),
        "act": UUID(int=100),
        "at": NOON,
        "principal": "ann",
        "role": Role.ADMIN,
        "origin": Origin.CLI,
        "action": "job.cancel",
        "outcome": AuditOutcome.SUCCEEDED,
    }
    return AuditEvent(**facts | fields)


def test_seals_count_from_one_and_each_covers_the_one_before() -> None:
    first = seal(event(1), None)
    second = seal(event(2), first)
    assert (first.seq, second.seq) == (1, 2)
    assert (first.event_id, second.event_id) == (UUID(int=1), UUID(int=2))
    assert first.hash == hashlib.sha256(f"\n{canonical(event(1))}".encode()).hexdigest()
    assert second.hash == hashlib.sha256(f"{first.hash}\n{canonical(event(2))}".encode()).hexdigest()


def test_what_retention_has_left_continues_the_chain_at_its_anchor() -> None:
    first = seal(event(1), None)
    anchor = Anchor(seq=1, hash=first.hash, at=NOON, keep=timedelta(days=1), trimmed_at=NOON + timedelta(days=2))
    assert seal(event(2), anchor) == seal(event(2), first)


@pytest.mark.parametrize(
    "changed",
    [
        {"principal": "bob"},
        {"reason": "none"},
        {"at": NOON + timedelta(microseconds=1)},
        {"after": {"state": "failed"}},
    ],
    ids=repr,
)
def test_a_changed_event_has_another_seal(changed: dict[str, Any]) -> None:
    assert seal(event(**changed), None).hash != seal(event(), None).hash


def test_the_seal_is_the_same_whichever_database_the_event_was_read_from() -> None:
    """One returns the time in its own zone, and each orders the keys of JSON as it likes."""
    east = NOON.astimezone(timezone(timedelta(hours=9)))
    one, other = event(before={"a": 1, "b": 2}), event(at=east, before={"b": 2, "a": 1})
    assert canonical(one) == canonical(other)
    assert '"at":"2026-01-01T12:00:00.000000+00:00"' in canonical(one)


def test_a_value_of_a_later_release_stays_text() -> None:
    assert enum_or_text(AuditOutcome, "refused") is AuditOutcome.REFUSED
    assert enum_or_text(AuditOutcome, "postponed") == "postponed"


@pytest.mark.parametrize("store", ["postgres/schema/tables", "sqlite/schema"])
def test_an_event_that_fits_the_limits_fits_the_tables(store: str) -> None:
    tables = (Path(dutiful.__file__).parent / "stores" / store / "0001_tables.sql").read_text().lower()
    table = tables.partition("audit_event (")[2]

    def most(column: str) -> list[int]:
        return [int(number) for number in re.findall(rf"length\((?:cast\()?{column}\b[^)]*\)+ <= (\d+)", table)]

    for column, limit in {
        "principal": PRINCIPAL_LIMIT,
        "target": TARGET_LIMIT,
        "reason": REASON_LIMIT,
        "address": ADDRESS_LIMIT,
    }.items():
        assert most(column)[0] == limit, column
    assert most("before")[0] == most("after")[0] == 2 * VALUE_LIMIT
    policy = tables.partition("audit_policy (")[2].partition(";")[0]
    day = {"'1 day'", str(SHORTEST_KEEP // timedelta(microseconds=1))}
    assert re.search(r"keep between ('[^']+'|\d+)", policy)[1] in day  # type: ignore[index]
    assert timedelta(days=1) == SHORTEST_KEEP
