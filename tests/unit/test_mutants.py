"""The mutants of `make mutants`: which there are, and that each changes what it says."""

import ast

from mutants import suites, trial
from mutants.mutations import mutants
from mutants.trial import called_by_import, of_module

SOURCE = '''
LIMIT = 10
def more(a: int = 1, *, strict: bool = False) -> "int | None":
    """A docstring with 1 and 2."""
    log.warning("%d", 3)
    if a < LIMIT and not strict:
        return a + 1
    while a:
        raise ValueError(a)
'''


def names() -> list[str]:
    return [mutant.name for mutant in mutants(ast.parse(SOURCE))]


def test_comparisons_operators_constants_conditions_and_statements_are_changed() -> None:
    found = names()
    for name in (
        ": LIMIT = 10 → LIMIT = 11",
        "more: a < LIMIT → a <= LIMIT",
        "more: a < LIMIT and (not strict) → a < LIMIT or not strict",
        "more: not strict → strict",
        "more: a + 1 → a - 1",
        "more: a + 1 → a + 2",
        "more: return a + 1 → return None",
        "more: a → not a",
        "more: raise ValueError(a) → (nothing)",
    ):
        assert name in found, found


def test_texts_and_logging_are_left_as_they_are() -> None:
    assert not [name for name in names() if "docstring" in name or "warning" in name or "int | None" in name]


def test_each_mutant_changes_the_tree_once_and_looking_changes_nothing() -> None:
    original = ast.unparse(ast.parse(SOURCE))
    for index in range(len(names())):
        tree = ast.parse(SOURCE)
        found = mutants(tree)
        assert ast.unparse(tree) == original
        found[index].apply()
        assert ast.unparse(ast.fix_missing_locations(tree)) != original, found[index].name


IMPORTED = """
LIMIT = outer(1)
class Table:
    rows = listed()
    def read(self):
        return never()
later = lambda: never()
def outer(n):
    return inner(n)
def inner(n): ...
def listed(): ...
def never(): ...
"""


def test_what_the_import_calls_is_known_because_a_change_of_it_later_would_not_be_seen() -> None:
    assert called_by_import(ast.parse(IMPORTED)) == {"outer", "inner", "listed"}


def test_every_module_of_the_core_has_a_suite_and_every_suite_its_tests() -> None:
    modules = [str(path.relative_to(trial.SOURCE)) for path in (trial.SOURCE / "core").rglob("*.py")]
    assert [one for one in modules if one not in suites.SUITES and of_module(one)[1]] == []
    tests = [test for one in suites.SUITES for test in suites.tests_of(one)]
    assert [test for test in tests if not (trial.TESTS.parent / test).exists()] == []


def test_every_mutant_that_is_called_equivalent_exists() -> None:
    for module, reasons in suites.EQUIVALENT.items():
        assert set(reasons) <= {mutant.name for mutant in of_module(module)[1]}, module
