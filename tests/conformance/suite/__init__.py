"""The store suite: tests that every store passes, a file for each subject of `dutiful.store`.

A test module of a store defines the fixture `store`, which yields one that is open, migrated and empty, and runs the
suites with pytest-asyncio in auto mode:

    class TestLeadership(LeadershipSuite):  # a suite that has settings for each store
        one_leader = False

    add_tests(globals())  # all others
"""

import importlib
import pkgutil
from collections.abc import Collection, Iterator
from typing import Any

import pytest


def all_suites() -> list[type]:
    """Every class of this package whose name ends in Suite, by file."""
    return [
        value
        for module in pkgutil.iter_modules(__path__, f"{__name__}.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, type) and value.__module__ == module.name and value.__name__.endswith("Suite")
    ]


def add_tests(
    module: dict[str, Any],
    suites: Collection[type] | None = None,
    *marks: pytest.MarkDecorator,
    without: Collection[type] = (),
) -> None:
    """Adds a test class for each of `suites` (all, if not given) that the module has no class for."""
    present = {*suites_in(module), *without}
    for suite in all_suites() if suites is None else suites:
        if suite not in present:
            name = f"Test{suite.__name__.removesuffix('Suite')}"
            added = type(name, (suite,), {"__module__": module["__name__"], "__doc__": suite.__doc__})
            for mark in marks:
                added = mark(added)
            module[name] = added


def suites_in(module: dict[str, Any]) -> Iterator[type]:
    """The suites that the test classes of a module run."""
    for name, value in module.items():
        if isinstance(value, type) and name.startswith("Test"):
            yield from value.__bases__
