"""No suite is forgotten: each one runs for every store."""

import importlib
import inspect
import pkgutil

import pytest

import suite
from suite import all_suites, suites_in
from suite.encryption import EncryptionSuite
from suite.locks import LockSessionSuite


@pytest.mark.parametrize(
    ("module", "left_out"),
    [
        ("test_postgres", set[type]()),
        ("test_sqlite", {LockSessionSuite}),
        ("test_stores_agree", {EncryptionSuite, LockSessionSuite}),
    ],
)
def test_every_suite_is_run_for_each_store(module: str, left_out: set[type]) -> None:
    assert set(all_suites()) - set(suites_in(vars(importlib.import_module(module)))) == left_out


def test_every_class_with_tests_is_a_suite() -> None:
    classes = [
        name
        for module in pkgutil.iter_modules(suite.__path__, "suite.")
        for name, value in vars(importlib.import_module(module.name)).items()
        if inspect.isclass(value) and any(attribute.startswith("test_") for attribute in vars(value))
    ]

    assert len(classes) > 30
    assert [name for name in classes if not name.endswith("Suite")] == []
