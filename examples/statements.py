"""Loads SQL statements by name: each is below a line `-- name: verb_object`."""

import re
from pathlib import Path

_HEADER = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def load(file: Path) -> dict[str, str]:
    _, *parts = _HEADER.split(file.read_text())
    return {name: text.strip().removesuffix(";") for name, text in zip(parts[::2], parts[1::2], strict=True)}
