"""The contract of sealed values: where they are stored, and how rotation reads and replaces them.

A store has no keys. It returns values that may be sealed, in pages along a table's key, and stores others instead.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

Key = tuple[Any, ...]  # of a row, as its table has it


class SealedPlace(msgspec.Struct, frozen=True):
    """A column in which sealed values are stored."""

    table: str
    key: tuple[str, ...]
    column: str

    @property
    def name(self) -> str:
        return f"{self.table}.{self.column}"

    @property
    def is_text(self) -> bool:
        """Whether a sealed value is text with an envelope; else the column has JSON."""
        return self.column == "message"


def places(of_table: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> tuple[SealedPlace, ...]:
    """All places, given the key and the columns of each table."""
    return tuple(SealedPlace(table, key, one) for table, (key, columns) in of_table.items() for one in columns)


_JOB = ("job_id",)
# What a copy is made of comes last, so that a value that is copied meanwhile is found in its new place.
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "schedule": (("name",), ("job",)),
    "job": (("id",), ("payload",)),
    "sent_event": (("seq",), ("data",)),
    "step": (("job_id", "name"), ("result",)),
    "phase": (("job_id", "name"), ("result", "error", "progress")),
    "progress": (_JOB, ("message", "items")),
    "attempt": (("id",), ("error",)),
    "finished": (_JOB, ("result", "errors")),
    "webhook_post": (("id",), ("data",)),
    "dead_letter": (_JOB, ("job", "errors", "history")),
    "tombstone": (_JOB, ("job",)),
}


class SealedRow(msgspec.Struct, frozen=True):
    key: Key
    value: str  # as it is stored


class SealedPage(msgspec.Struct, frozen=True):
    """The rows of one page that may be sealed; `next` is where the following page begins, None after the last."""

    rows: Sequence[SealedRow]
    next: Key | None


class EncryptionStore(Protocol):
    @property
    def places(self) -> Sequence[SealedPlace]: ...

    async def page(self, place: SealedPlace, after: Key | None, size: int) -> SealedPage:
        """Reads `size` rows of the table after a key, and returns those whose value may be sealed."""

    async def replace(self, place: SealedPlace, changes: Sequence[tuple[SealedRow, str]]) -> int:
        """Stores other values where the old ones are still there; returns in how many rows, which may be fewer."""
