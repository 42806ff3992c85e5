"""The store's named statements, and conditions that are added to them.

`{name}` in a statement stands for the statement of that name, or for one of the lists. Other braces are filled
in by the verb that runs the statement. One that begins with a line `-- each: a b` stands for two, with `a` and with `b`
for `{each}` in its text and for `each` in its name.
"""

import re
from collections.abc import Mapping
from typing import Any

from dutiful.store.metrics import ENDS, FAILURES
from dutiful.stores.sqlite.engine.columns import COLUMN_LISTS
from dutiful.stores.statements import Statements, load, texts

_LISTS = {**COLUMN_LISTS, "ends": texts(ENDS), "failures": texts(FAILURES)}


def _expanded(statements: Statements) -> Statements:
    for name, text in [*statements.items()]:
        if listed := re.match(r"-- each: (.*)\n", text):
            del statements[name]
            for each in listed[1].split():
                statements[name.replace("each", each)] = text[listed.end() :].replace("{each}", each)
    for known in (_LISTS, statements):
        for name, text in statements.items():
            statements[name] = _filled(text, known)
    return statements


def _filled(text: str, known: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], found[0]), text)


SQL = _expanded(load("dutiful.stores.sqlite"))


class Conditions:
    """The conditions of a statement, and the values that they name."""

    def __init__(self, **bindings: Any) -> None:
        self.tests: list[str] = []
        self.bindings = bindings

    def add(self, test: str, **values: Any) -> None:
        """Adds a test, unless one of its values is None, which means that the filter is not set."""
        if None not in values.values():
            self.tests.append(test)
            self.bindings |= values

    def equal(self, filter: object, *columns: str, table: str = "") -> None:
        """Adds a test for each of these columns that is set in the filter."""
        for column in columns:
            if (value := getattr(filter, column)) is not None:
                self.add(f"{table}{column} = :{column}", **{column: str(value)})

    @property
    def where(self) -> str:
        return f"WHERE {' AND '.join(self.tests)}" if self.tests else ""
