"""Whose word on a kind's breaker stands: that of any worker alive that runs the kind."""

from typing import Any

import pytest

from dutiful.worker.declaration import disowned

Lanes = dict[str, dict[str, Any]]


def heeding(**breakers: str) -> Lanes:
    return {"general": {"queues": ["*"], "breakers": breakers}}


@pytest.mark.parametrize("ours", [None, "new"])
def test_what_none_of_the_living_declares_is_declared_anew(ours: str | None) -> None:
    living = [(heeding() if ours is None else heeding(mail=ours), ["mail"])]
    assert disowned({"mail": ours}, {"mail": "old"}, living) == {"mail": ours}


def test_what_one_of_them_declares_is_left_alone() -> None:
    living = [(heeding(), ["mail", "post"]), (heeding(mail="old"), ["mail"])]
    assert disowned({"mail": None, "post": None}, {"mail": "old", "post": "old"}, living) == {"post": None}


def test_that_one_of_them_declares_none_is_left_alone_too() -> None:
    assert disowned({"mail": "new"}, {}, [(heeding(), ["mail"])]) == {}
    assert disowned({"mail": "new"}, {}, [(heeding(), ["post"])]) == {"mail": "new"}  # which does not run the kind


def test_who_does_not_say_what_it_heeds_may_heed_anything() -> None:
    older: Lanes = {"general": {"queues": ["*"]}}
    assert disowned({"mail": None, "post": None}, {"mail": "old", "post": "old"}, [(older, ["mail"])]) == {"post": None}


def test_what_is_stored_as_we_declare_it_is_not_declared_again() -> None:
    assert disowned({"mail": "new", "post": None}, {"mail": "new"}, []) == {}
