"""Which declaration of a kind's breaker counts: that of any live worker that runs the kind."""

import pytest

from dutiful.store.workers import LaneRecord
from dutiful.worker.breakers.client import orphaned_kinds

Lanes = dict[str, LaneRecord]


def entering(**breakers: str) -> Lanes:
    return {"general": LaneRecord(slots=1, queues=("*",), breakers=breakers)}


@pytest.mark.parametrize("ours", [None, "new"])
def test_what_none_of_the_living_declares_is_declared_anew(ours: str | None) -> None:
    living = [(entering() if ours is None else entering(mail=ours), ["mail"])]
    assert orphaned_kinds({"mail": ours}, {"mail": "old"}, living) == {"mail": ours}


def test_what_one_of_them_declares_is_left_alone() -> None:
    living = [(entering(), ["mail", "post"]), (entering(mail="old"), ["mail"])]
    assert orphaned_kinds({"mail": None, "post": None}, {"mail": "old", "post": "old"}, living) == {"post": None}


def test_that_one_of_them_declares_none_is_left_alone_too() -> None:
    assert orphaned_kinds({"mail": "new"}, {}, [(entering(), ["mail"])]) == {}
    assert orphaned_kinds({"mail": "new"}, {}, [(entering(), ["post"])]) == {
        "mail": "new"
    }  # which does not run the kind


def test_a_worker_that_records_no_breakers_may_use_any() -> None:
    older: Lanes = {"general": LaneRecord(slots=1, queues=("*",))}
    assert orphaned_kinds({"mail": None, "post": None}, {"mail": "old", "post": "old"}, [(older, ["mail"])]) == {
        "post": None
    }


def test_what_is_stored_as_we_declare_it_is_not_declared_again() -> None:
    assert orphaned_kinds({"mail": "new", "post": None}, {"mail": "new"}, []) == {}
