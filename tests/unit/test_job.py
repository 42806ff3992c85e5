"""Jobs as values: which may share a batch, which error is shown, which phase is over."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dutiful import Dutiful
from dutiful.core.errors import JobNotFound, PayloadInvalid
from dutiful.core.ids import public
from dutiful.core.job import Claim, HeldClaim, JobRecord, NewJob, PhaseState, Scope, Unique, job_not_found
from dutiful.core.states import State

JOB = UUID(int=1)


def new_job(**fields: Any) -> NewJob:
    return NewJob(JOB, "greet", "default", "{}", **fields)


def claim(**fields: Any) -> Claim:
    facts = {name: None for name in Claim.__struct_fields__ if name != "waited"}
    return Claim(**facts | {"job_id": JOB} | fields)


def held(correlation_id: str | None) -> HeldClaim:
    return HeldClaim(JOB, 1, 1, 0, "greet", UUID(int=9), cancel_requested=False, correlation_id=correlation_id)


def record(**fields: Any) -> JobRecord:
    facts: dict[str, Any] = {"id": JOB, "kind": "greet", "queue": "default", "state": State.FAILED, "payload": {}}
    counts = {"priority": 100, "attempt": 1, "crashes": 0, "max_attempts": 5}
    return JobRecord(**facts | counts | {"created_at": datetime(2026, 1, 1, tzinfo=UTC), "run_at": None} | fields)


def test_a_job_shares_a_batch_if_it_has_neither_a_key_nor_dependencies() -> None:
    assert new_job().plain is True
    assert new_job(unique=Unique("key")).plain is False
    assert new_job(depends_on=(UUID(int=2),)).plain is False
    assert new_job(unique=Unique("key"), depends_on=(UUID(int=2),)).plain is False


def test_a_job_has_the_documented_priority_and_attempts_unless_it_is_told() -> None:
    assert (new_job().priority, new_job().max_attempts) == (100, 5)


def test_a_key_is_of_one_kind_unless_it_is_told() -> None:
    assert Unique("key").across_kinds is False


def test_a_claim_has_not_waited_unless_the_store_says_so() -> None:
    assert claim().waited == 0.0


def test_a_job_without_a_correlation_id_is_known_by_its_own() -> None:
    assert claim(correlation_id="order 7").correlation == held("order 7").correlation == "order 7"
    assert claim().correlation == held(None).correlation == str(JOB)


def test_a_retry_skips_the_phases_that_are_over() -> None:
    assert {state for state in PhaseState if state.over} == {PhaseState.COMPLETED, PhaseState.SKIPPED}
    assert PhaseState.RUNNING.over is False


def test_the_error_of_a_job_is_the_first_of_its_end_or_that_of_an_earlier_attempt() -> None:
    first, second, earlier = {"type": "A"}, {"type": "B"}, {"type": "C"}
    assert record(errors=[first, second], last_error=earlier).error == first
    assert record(errors=None, last_error=earlier).error == record(errors=[], last_error=earlier).error == earlier
    assert record().error is None


def test_who_asks_for_a_job_that_is_gone_reads_its_public_id() -> None:
    gone = job_not_found(JOB)
    assert isinstance(gone, JobNotFound)
    assert public(JOB) in str(gone)


def test_the_subject_of_a_job_may_have_8_kib() -> None:
    app = Dutiful()

    @app.job
    async def greet() -> None: ...

    around = len('{"about":""}')
    most = {"about": "x" * (8 * 1024 - around)}
    assert len(greet.options(subject=most)._prepare((), {}).subject or "") == 8 * 1024
    with pytest.raises(PayloadInvalid) as refused:
        greet.options(subject={"about": most["about"] + "x"})._prepare((), {})
    assert refused.value.field == "subject"


@pytest.mark.parametrize(
    ("unique", "held"),
    [
        (Unique("key", Scope.FOREVER), {"scope": "forever"}),
        (Unique("key", Scope.WINDOW, window=timedelta(hours=1)), {"scope": "window", "window_ms": 3_600_000}),
        (Unique("key", across_kinds=True), {"across_kinds": True}),
    ],
)
def test_options_keep_a_unique_key_as_it_was(unique: Unique, held: dict[str, Any]) -> None:
    assert unique.as_options() == {"unique": "key", "unique_as": held}
    assert Unique.of_options("key", unique.as_options()) == unique


def test_options_of_a_plain_key_keep_the_key_alone() -> None:
    assert Unique("key").as_options() == {"unique": "key"}
    assert Unique.of_options("key", {"unique": "key"}) is None
    assert Unique.of_options("key", {"unique_as": "by hand"}) is None
