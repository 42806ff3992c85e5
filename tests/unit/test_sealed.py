"""For whom a payload was sealed, and what readers without keys see of sealed records."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from dutiful.core.job import Progress
from dutiful.core.sealed import MESSAGE, ORIGIN, map_sealed, origin, origin_in, shown_record
from dutiful.core.steps import StepKind, StepRecord, StepState

JOB = UUID(int=7)
OWNER = [str(JOB), None, "pay", "payload"]
SEALED = {"$sealed": {"v": 1, "key": "k1", "of": OWNER, "text": "c2VjcmV0"}}
SHOWN = {"$sealed": {"key": "k1"}}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "job"),
    [
        (None, str(JOB)),
        ({}, str(JOB)),
        ({"timeout": 5}, str(JOB)),
        ({ORIGIN: 5}, str(JOB)),
        ({ORIGIN: "nightly"}, "nightly"),
        ({"note": ORIGIN}, str(JOB)),
    ],
)
def test_a_payload_was_sealed_for_its_job_unless_the_options_name_another(options: Any, job: str) -> None:
    assert origin(options, JOB) == job
    assert origin_in(None if options is None else msgspec.json.encode(options).decode(), JOB) == job


def test_a_text_that_only_begins_as_a_sealed_one_stays_as_it_is() -> None:
    text = '{"$sealed" is how it begins'
    assert map_sealed([text, 7], lambda envelope: envelope.key) == [text, 7]


def step(result: Any) -> StepRecord:
    return StepRecord(
        name="charge", position=0, kind=StepKind.CALL, state=StepState.DONE, code="f", fingerprint="x",
        started_at=NOW, result=result,
    )  # fmt: skip


def test_a_record_is_shown_without_ciphertext() -> None:
    assert shown_record(step(SEALED)) == step(SHOWN)
    progress = Progress(message=msgspec.json.encode(SEALED).decode(), items={"done": 1, **SEALED}, updated_at=NOW)
    assert shown_record(progress) == msgspec.structs.replace(progress, message=MESSAGE, items={"done": 1, **SHOWN})


@pytest.mark.parametrize("result", [None, {"a": 1}, [1, "x", {"a": 1}], "text"])
def test_a_record_without_a_sealed_value_is_the_record_itself(result: Any) -> None:
    record = step(result)
    assert shown_record(record) is record


def test_lists_are_shown_with_their_sealed_errors_replaced() -> None:
    assert shown_record(step([1, SEALED, {"a": 1}])).result == [1, SHOWN, {"a": 1}]
