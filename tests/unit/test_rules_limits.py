"""How long and how many: the limits of rules and of what they find."""

from typing import Any

import pytest

from dutiful import Rules, Unique, UsageError
from dutiful.core.rules.violations import (
    column_limit,
    column_text,
    content_violations,
    field_violations,
    sensitive_fields,
)


def sensitive(payload: dict[str, Any]) -> list[str]:
    return [error.field for error in content_violations(Rules(), payload, 10)]


def wrong(rules: Rules, payload: dict[str, Any]) -> list[str]:
    return [error.field for error in field_violations(rules, payload)]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("x", "x"),
        ("x" * 200, "x" * 200),
        ("x" * 201, None),
        ("", None),
        (" x", None),
        ("x\0", None),
        (7, "7"),
        (0, "0"),
        (-7, "-7"),
        (2**63 - 1, "9223372036854775807"),
        (2**63, None),
        (-(2**63), None),
        (True, None),
        (1.5, None),
        (None, None),
    ],
)
def test_a_column_holds_a_whole_number_or_a_short_text_without_outer_spaces(value: Any, stored: str | None) -> None:
    assert column_text(value, 200) == stored


def test_a_key_may_be_longer_than_other_columns() -> None:
    rules = Rules(tenant="owner", correlation_id="trace", unique="key")
    assert [column_limit(field, rules) for field in ("owner", "trace", "key")] == [200, 200, 500]
    assert wrong(rules, {"owner": "x" * 200, "trace": "x" * 200, "key": "x" * 500}) == []
    assert set(wrong(rules, {"owner": "x" * 201, "trace": "x" * 201, "key": "x" * 501})) == {"owner", "trace", "key"}


@pytest.mark.parametrize("value", [1, 0, -1, "x", "x" * 200, [1, "x"]])
def test_a_reference_is_a_whole_number_or_a_text_of_up_to_200_characters_or_a_list_of_them(value: Any) -> None:
    assert wrong(Rules(references=["id"]), {"id": value}) == []


@pytest.mark.req("W9")
@pytest.mark.parametrize(
    "value",
    [
        "Dear Ada, see you",
        "a\nb",
        " a",
        "a\u2003b",
        "a\x00",
        "x" * 201,
        " ",
        1.5,
        True,
        [],
        [[1]],
        ["x", None],
        {"a": 1},
        ["x" * 201],
    ],
)
def test_anything_else_is_no_reference(value: Any) -> None:
    assert wrong(Rules(references=["id"]), {"id": value}) == ["id"]


def test_a_hundred_sensitive_fields_are_reported_and_no_more() -> None:
    payload = {"data": [{"password": "hunter2"}] * 101}
    assert len(sensitive(payload)) == len(list(sensitive_fields(Rules(), payload, "subject"))) == 100


@pytest.mark.parametrize("number", [4111111111111111, -4111111111111111, 4999999999999999993, 4111111111111111.0])
def test_a_card_number_may_be_written_as_a_number(number: float) -> None:
    assert sensitive({"card": number}) == ["card"]


@pytest.mark.parametrize("number", [0, 4111111111111112, float("inf"), 2**200, 1e300])
def test_other_numbers_are_no_cards(number: float) -> None:
    assert sensitive({"card": number}) == []


def test_the_least_limit_is_that_of_an_empty_object() -> None:
    assert Rules(limit=2).size_limit == 2
    with pytest.raises(UsageError, match="limit 1 must be a number of bytes, from 2"):
        Rules(limit=1)


def test_a_key_that_is_no_field_is_refused_with_both_ways_to_name_one() -> None:
    with pytest.raises(UsageError, match=r'unique 5 must be the name of a field, or Unique\("field", …\)'):
        Rules(unique=5)  # type: ignore[arg-type]
    assert Rules(unique=Unique("key")).unique_field == Rules(unique="key").unique_field == "key"
