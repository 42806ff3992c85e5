from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful import UsageError
from dutiful.core.items import LARGEST, NAME_LIMIT, REASON_LIMIT, ItemCounts, item_errors, plain


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.req("D38")
def test_every_item_begins_in_progress() -> None:
    shape = ItemCounts(["a", "b", 3]).as_dict()
    assert shape == {"total": 3, "in_progress": ["a", "b", 3], "completed": [], "skipped": [], "failed": []}


@pytest.mark.req("D41", "D42", "D43")
def test_each_mark_moves_one_item_out_of_progress() -> None:
    ledger = ItemCounts(["a", "b", "c", "d"])
    ledger.complete("b")
    ledger.skip("c", "superseded by build 7")
    ledger.fail("a", ValueError("boom"))
    assert ledger.as_dict() == {
        "total": 4,
        "in_progress": ["d"],
        "completed": ["b"],
        "skipped": [{"item": "c", "reason": "superseded by build 7"}],
        "failed": [{"item": "a", "error": "ValueError: boom"}],
    }
    assert ledger.ended == 3


def test_an_item_is_marked_once() -> None:
    ledger = ItemCounts(["a"])
    ledger.complete("a")
    with pytest.raises(UsageError, match="'a' cannot be marked: it has been completed already"):
        ledger.fail("a", "late")
    with pytest.raises(UsageError, match="'b' cannot be marked: there is no such item"):
        ledger.skip("b", "unknown")
    assert ledger.as_dict()["completed"] == ["a"]


@pytest.mark.parametrize("name", ["a", 1])
def test_two_items_of_one_name_are_refused(name: Any) -> None:
    ledger = ItemCounts([name])
    with pytest.raises(UsageError, match="already"):
        ledger.start(name)
    ledger.complete(name)
    with pytest.raises(UsageError, match="already"):
        ledger.start(name)
    assert ledger.total == 1


def test_a_number_and_its_spelling_are_two_items() -> None:
    ledger = ItemCounts([7, "7"])
    ledger.complete("7")
    assert ledger.as_dict()["in_progress"] == [7]


@pytest.mark.parametrize("name", [True, None, 1.5, "", "x" * 201, "nul\0", "\ud800", 2**63])
def test_a_name_that_cannot_be_stored_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="must be a number, or a text of 1 to 200 characters"):
        ItemCounts([name])


def test_truth_marks_no_item_though_it_equals_one() -> None:
    with pytest.raises(UsageError):
        ItemCounts([1]).complete(True)


def test_whatever_an_error_says_can_be_stored() -> None:
    ledger = ItemCounts(["rude", "silent", "long", "named"])
    ledger.fail("rude", Rude())
    ledger.fail("silent", ValueError())
    ledger.fail("long", ValueError("nul\0" + "x" * 10_000))
    ledger.fail("named", "by its name")
    errors = ledger.errors()
    assert errors["rude"] == "Rude: (its message could not be read: RuntimeError)"
    assert errors["silent"] == "ValueError"
    assert "\0" not in errors["long"] and len(errors["long"]) < 600
    assert errors["named"] == "by its name"


def test_the_first_errors_of_all_are_kept_with_their_items() -> None:
    first, second = ItemCounts(["a", "b"]), ItemCounts([1, 2])
    first.fail("b", ValueError("boom"))
    for name in (1, 2):
        second.fail(name, "no")
    assert item_errors([first, second], 2) == [
        {"type": "ValueError", "message": "boom", "item": "b"},
        {"type": "ItemFailed", "message": "no", "item": 1},
    ]


@given(st.lists(st.tuples(st.sampled_from(["complete", "skip", "fail", "start"]), st.integers(0, 9))))
def test_whatever_is_marked_every_item_is_in_exactly_one_list(marks: list[tuple[str, int]]) -> None:
    ledger = ItemCounts(range(5))
    for act, name in marks:
        arguments: tuple[Any, ...] = (name,) if act in ("complete", "start") else (name, "why")
        with suppress(UsageError):
            getattr(ledger, act)(*arguments)
        shape = ledger.as_dict()
        listed = [*shape["in_progress"], *shape["completed"], *(i["item"] for i in shape["skipped"] + shape["failed"])]
        assert len(listed) == len(set(listed)) == shape["total"]


@pytest.mark.parametrize("name", [-LARGEST, LARGEST - 1, "x", "x" * NAME_LIMIT])
def test_the_longest_and_largest_names_are_allowed(name: Any) -> None:
    assert list(ItemCounts([name]).in_progress) == [name]


@pytest.mark.parametrize("name", [-LARGEST - 1, LARGEST, "", "x" * (NAME_LIMIT + 1)])
def test_what_a_column_cannot_hold_is_no_name(name: Any) -> None:
    with pytest.raises(UsageError):
        ItemCounts([name])


def test_what_is_stored_of_an_item_has_the_limits_of_its_columns() -> None:
    assert (LARGEST, REASON_LIMIT) == (9_223_372_036_854_775_808, 500)


def test_a_name_that_is_neither_text_nor_number_stays_what_it_is() -> None:
    odd: Any = 1.5
    assert plain(True) is True and plain(odd) is odd
