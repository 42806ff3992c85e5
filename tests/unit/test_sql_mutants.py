"""The list of SQL mutants keeps up with the sources: each still applies, and its tests still exist."""

import re

import pytest

from mutants.sql.__main__ import ROOT, Mutant, listed

MUTANTS = listed()


def test_there_are_mutants_of_both_stores() -> None:
    files = [mutant.file.split("/")[1] for mutant in MUTANTS if mutant.file.startswith("stores/")]

    assert files.count("postgres") >= 25 and files.count("sqlite") >= 10


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_its_tests_exist(mutant: Mutant) -> None:
    assert mutant.applied_to((ROOT / "src" / "dutiful" / mutant.file).read_text()) is not None
    suites = "".join(file.read_text() for file in (ROOT / "tests" / "conformance" / "suite").glob("*.py"))
    assert mutant.tests != []
    for test in mutant.tests:
        path, *_, name = test.split("::")
        text = (ROOT / path).read_text() + (suites if "conformance" in path else "")
        assert re.search(rf"def {name.partition('[')[0]}\b", text), test


def test_a_mutant_whose_text_is_not_there_exactly_once_does_not_apply() -> None:
    def mutated(text: str, nth: int | None = None) -> str | None:
        return Mutant("m", "f.sql", "skip locked", "", ["t"], "why", nth).applied_to(text)

    twice = "for update skip locked; for update skip locked;"
    assert mutated("for update skip locked;") == "for update ;"
    assert mutated("for update;") is None and mutated(twice) is None
    assert mutated(twice, 2) == "for update skip locked; for update ;"
    assert mutated(twice, 3) is None
