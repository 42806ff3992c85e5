"""Errors carry what a caller needs to act on them, and survive the way to another process."""

import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from dutiful.core.errors import (
    BreakerOpen,
    CannotOpen,
    DutifulError,
    FieldError,
    JobFailed,
    PayloadInvalid,
    QueueRefused,
    SchemaMismatch,
    UniqueConflict,
    UnknownDependency,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Made = Callable[[], DutifulError]
CARRIED: list[tuple[Made, str, dict[str, object]]] = [
    (lambda: UniqueConflict("the key is taken", UUID(int=1)), "the key is taken", {"existing": UUID(int=1)}),
    (lambda: UnknownDependency("job 1 is unknown", UUID(int=1)), "job 1 is unknown", {"job_id": UUID(int=1)}),
    (lambda: CannotOpen("its key is not known", "k1"), "its key is not known", {"key": "k1"}),
    (
        lambda: QueueRefused(["mail"], "another key has its name", "rename that"),
        "another key has its name; rename that",
        {"queues": frozenset({"mail"})},
    ),
    (
        lambda: SchemaMismatch("the schema is old", "wait for the deploy"),
        "the schema is old; wait for the deploy",
        {"problem": "the schema is old", "remedy": "wait for the deploy"},
    ),
    (
        lambda: BreakerOpen("mail", NOON, timedelta(seconds=5)),
        "the breaker mail is open: no call is made before 2026-01-01 12:00:00 UTC",
        {"name": "mail", "until": NOON, "wait": timedelta(seconds=5)},
    ),
    (
        lambda: JobFailed("job 1 failed", "failed", {"type": "ValueError"}),
        "job 1 failed",
        {"state": "failed", "error": {"type": "ValueError"}},
    ),
    (
        lambda: PayloadInvalid("age must be a number", "age"),
        "age must be a number",
        {"field": "age", "errors": (FieldError("age", "age must be a number"),)},
    ),
]
every_error = pytest.mark.parametrize(
    ("made", "message", "carried"), CARRIED, ids=[message for _, message, _ in CARRIED]
)


@every_error
def test_an_error_says_what_happened_and_carries_the_facts(
    made: Made, message: str, carried: dict[str, object]
) -> None:
    error = made()
    assert str(error) == message
    assert vars(error) == carried


@every_error
def test_an_error_is_the_same_after_the_way_to_another_process(
    made: Made, message: str, carried: dict[str, object]
) -> None:
    copy = pickle.loads(pickle.dumps(made()))
    assert (type(copy), str(copy), vars(copy)) == (type(made()), message, carried)


def test_a_payload_that_is_wrong_as_a_whole_has_one_error_of_the_whole() -> None:
    whole = PayloadInvalid("it is no object")
    assert (whole.field, whole.errors) == (None, (FieldError("payload", "it is no object"),))
    both = [FieldError("age", "is missing"), FieldError("name", "is too long")]
    assert PayloadInvalid("two fields are wrong", errors=both).errors == tuple(both)


def test_the_error_of_a_field_reads_as_a_sentence() -> None:
    assert str(FieldError("items[3]", "is missing")) == "items[3] is missing"
