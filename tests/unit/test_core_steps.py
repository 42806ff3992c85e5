"""Names, fingerprints and checks of steps and of events that jobs wait for."""

from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.errors import PayloadInvalid, StepMismatch
from dutiful.core.steps import (
    EVENT_LIMIT,
    STEP_LIMIT,
    StepKind,
    StepRecord,
    StepState,
    Waiting,
    check_event,
    check_same,
    check_step,
    event_gate,
    fingerprint,
    make_event,
    name_of,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def charge(order: int) -> None: ...


class Service:
    def __call__(self) -> None: ...

    def charge(self) -> None: ...


def record(**fields: Any) -> StepRecord:
    given: dict[str, Any] = {"name": "charge", "position": 0, "kind": StepKind.CALL, "state": StepState.DONE}
    return StepRecord(**given | {"code": "charge", "fingerprint": "f", "started_at": NOW} | fields)


def test_a_function_is_named_as_people_know_it() -> None:
    assert name_of(charge) == "charge"
    assert name_of(partial(partial(charge, 1))) == "charge"
    assert name_of(Service().charge) == "Service.charge"
    assert name_of(Service()) == "Service"
    long = partial(charge)
    long_named = type("X" * 300, (), {"__call__": lambda self: None})()
    assert len(name_of(long_named)) == 200 and name_of(long) == "charge"


def test_a_fingerprint_is_that_of_the_code_and_its_arguments() -> None:
    known = fingerprint("charge", (7,), {"fast": True, "to": {"b": 1, "a": 2}})

    assert known == fingerprint("charge", (7,), {"to": {"a": 2, "b": 1}, "fast": True})
    assert len(known) == 32
    others = [
        fingerprint("refund", (7,), {"fast": True, "to": {"b": 1, "a": 2}}),
        fingerprint("charge", (8,), {"fast": True, "to": {"b": 1, "a": 2}}),
        fingerprint("charge", (7,), {"fast": False, "to": {"b": 1, "a": 2}}),
        fingerprint("charge"),
    ]
    assert len({known, *others}) == 5
    assert fingerprint("charge") == fingerprint("charge", (), {})


def test_an_argument_that_is_no_data_counts_by_its_type() -> None:
    assert fingerprint("charge", (Service(),)) == fingerprint("charge", (Service(),))
    assert fingerprint("charge", (Service(),)) != fingerprint("charge", (object(),))
    endless: list[Any] = []
    endless.append(endless)
    assert fingerprint("charge", (endless,), {"n": 1}) == fingerprint("charge", (endless,), {"n": 2})
    assert fingerprint("charge", (endless,)) != fingerprint("charge", (endless,), {"n": 1})


def test_a_step_is_the_same_if_its_kind_and_fingerprint_are() -> None:
    stored = record()
    assert check_same(stored, StepKind.CALL, "charge", "f") is stored

    with pytest.raises(StepMismatch, match=r"was stored as charge with other arguments, and is now charge: .* rename"):
        check_same(stored, StepKind.CALL, "charge", "g")
    with pytest.raises(StepMismatch, match="was stored as charge, and is now refund"):
        check_same(stored, StepKind.CALL, "refund", "g")
    with pytest.raises(StepMismatch):
        check_same(stored, StepKind.SLEEP, "charge", "f")


def test_names_and_keys_are_texts() -> None:
    assert check_step("charge 7") == "charge 7"
    assert check_event("paid", "7") == ("paid", "7")
    for wrong in ("", " 7", "a\0b", "x" * 201):
        with pytest.raises(PayloadInvalid, match="step"):
            check_step(wrong)
        with pytest.raises(PayloadInvalid, match="event"):
            check_event(wrong, "7")
        with pytest.raises(PayloadInvalid, match="key"):
            check_event("paid", wrong)


def test_an_event_is_checked_and_encoded() -> None:
    event = make_event(UUID(int=1), "paid", "7", {"amount": 5}, 100, tenant="acme", by="ada")

    assert (event.id, event.name, event.key, event.data) == (UUID(int=1), "paid", "7", '{"amount":5}')
    assert (event.tenant, event.by) == ("acme", "ada")
    assert make_event(UUID(int=1), "paid", "7", None, 100).data is None
    assert event_gate(event.name, event.key) == "paid:7"
    with pytest.raises(PayloadInvalid, match=r"data of an event has .* more than the limit of 100"):
        make_event(UUID(int=1), "paid", "7", "x" * 100, 100)
    with pytest.raises(PayloadInvalid, match="more than the limit of 1,048,576"):
        make_event(UUID(int=1), "paid", "7", "x" * EVENT_LIMIT, 10 * EVENT_LIMIT)


def test_a_wait_is_no_error_that_a_handler_would_catch() -> None:
    waiting = Waiting([record(state=StepState.WAITING)], NOW)

    assert not isinstance(waiting, Exception)
    assert (waiting.steps[0].name, waiting.now) == ("charge", NOW)
    assert str(waiting) == "the job waits in its step charge"


def test_a_job_has_as_many_steps_as_the_guide_says() -> None:
    assert STEP_LIMIT == 10_000
