"""The type that a step's function declares for its result."""

from datetime import date
from functools import partial
from typing import Any

from dutiful.worker.executor.steps import _HINTS, _return_hint


class Ledger:
    def closed_on(self, year: int) -> date:
        return date(year, 12, 31)


class Adder:
    __slots__ = ()

    def __call__(self, n: int) -> int:
        return n + 1


def test_a_method_has_the_same_type_for_each_object() -> None:
    assert _return_hint(Ledger().closed_on) is date
    assert _return_hint(partial(partial(Ledger().closed_on, 2026))) is date
    assert Ledger.closed_on in _HINTS


def test_without_a_type_or_with_one_that_is_not_known_here_the_value_stays_as_it_is() -> None:
    def untyped(n):  # type: ignore[no-untyped-def]
        return n

    def unknown(n: int) -> "NotHere":  # type: ignore[name-defined]  # noqa: F821
        return n

    assert _return_hint(untyped) is Any
    assert _return_hint(unknown) is Any
    assert _return_hint(Adder()) is Any, "it cannot be remembered, which is no error"


def test_a_function_made_in_one_attempt_is_not_kept() -> None:
    def once() -> int:
        return 1

    before = len(_HINTS)
    assert _return_hint(once) is int
    assert len(_HINTS) == before + 1
    del once
    assert len(_HINTS) == before
