"""Named SQL statements, read from the `.sql` files of a store.

A file holds one or more statements, each under a line `-- name: verb_object`.
"""

import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

_HEADER = re.compile(r"^-- name: (\w+)[ \t]*$", re.MULTILINE)


class Statements(dict[str, str]):
    """Statements by name; the error for an unknown name lists the known ones."""

    def __missing__(self, name: str) -> str:
        raise LookupError(f"no statement is named {name!r}; there are: {', '.join(sorted(self))}")


def load(package: str, folder: str = "statements") -> Statements:
    """Reads every statement in `folder` of `package`; rejects a name that is used twice."""
    found = Statements()
    # Not by importlib.resources, which takes 0.7 MB; a driver in C needs real files in any case.
    for file in sorted(Path(import_module(package).__path__[0], folder).glob("*.sql")):
        preamble, *parts = _HEADER.split(file.read_text(encoding="utf-8"))
        if re.sub(r"--.*", "", preamble).strip():
            raise LookupError(f"{file.name} has SQL before its first `-- name:` line")
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise LookupError(f"{file.name} names {name!r} a second time")
            found[name] = text.strip().removesuffix(";")
    return found


def texts(values: Iterable[str]) -> str:
    """These words as a list of SQL literals."""
    return ", ".join(f"'{value}'" for value in sorted(values))
