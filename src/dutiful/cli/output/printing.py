"""Prints tables for people, or one JSON document for programs."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.job import JobRecord
from dutiful.core.redaction.invisible import FILLERS, UNSEEN
from dutiful.store.queries import DETAILS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

STYLES = {
    "completed": "green",
    "completed_with_errors": "yellow",
    "failed": "red",
    "cancelled": "dim",
    "running": "cyan",
    "ready": "bold",
    "blocked": "yellow",
    "scheduled": "blue",
}
PIPE_WIDTH = 1_000  # without a terminal, lines are neither wrapped nor cut, so that they can be searched
LONGEST_CELL = 200
NOTHING = "-"
# Prose and lists of names, of which the beginning is enough; other cells are copied or compared, so they are not cut.
TEXT = frozenset(
    {
        "error",
        "fires when",
        "kinds",
        "lanes (busy/slots: queues)",
        "reason",
        "result",
        "states",
        "summary",
        "target",
        "tenants",
        "url",
    }
)
GAP = 2  # between two columns
ENOUGH, LEAST = 24, 10  # characters of a text, before and after other columns are left out for it


def print_json(value: Any) -> None:
    """Prints one document; times are ISO 8601 in UTC, and no key is left out."""
    data = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
    sys.stdout.write(f"{_escaped(data.decode())}\n")


def json_line(value: Any) -> str:
    """The same on one line."""
    return _escaped(msgspec.json.encode(value, enc_hook=str).decode())


def _escaped(document: str) -> str:
    """JSON whose texts have no character that a terminal obeys or hides; it reads as the same value."""
    if document.isascii() and "\x7f" not in document:
        return document  # JSON escapes the control characters below DEL itself
    return "".join(c if c == "\n" or (c.isprintable() and c not in UNSEEN) else json.dumps(c)[1:-1] for c in document)


def job_json(job: JobRecord, *, details: bool = True) -> dict[str, Any]:
    fields = record_json(job, "id", "parent_id", "retry_of")
    return fields if details else {name: value for name, value in fields.items() if name not in DETAILS}


def record_json(record: msgspec.Struct, *id_names: str) -> dict[str, Any]:
    """A record's fields; those named by `id_names` in both spellings of ids."""
    fields: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(record).items():
        fields |= both_ids(name, value) if name in id_names else {name: value}
    return fields


def both_ids(name: str, job_id: UUID | None) -> dict[str, str | None]:
    """{"id": "01JC…", "uuid": "0193…"}; other names keep their own in front: parent_id, parent_uuid."""
    uuid_name = "uuid" if name == "id" else f"{name.removesuffix('_id')}_uuid"
    if job_id is None:
        return {name: None, uuid_name: None}
    return {name: ids.public(job_id), uuid_name: str(job_id)}


def plain(text: str) -> str:
    """Escapes control characters, which a terminal would obey, and invisible ones, which would deceive a reader."""
    if text.isprintable() and FILLERS.isdisjoint(text):
        return text
    return "".join(
        c if c in "\n\t" or (c.isprintable() and c not in FILLERS) else c.encode("unicode_escape").decode()
        for c in text
    )


def flat(text: str) -> str:
    """The same on one line, for rows of a table and branches of a tree."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


def console() -> "Console":
    from rich.console import Console

    tty = sys.stdout.isatty()
    return Console(highlight=False, markup=False, emoji=False, width=None if tty else PIPE_WIDTH)


def show(*parts: "RenderableType") -> None:
    out = console()
    for part in parts:
        out.print(part, soft_wrap=isinstance(part, str))


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    width: int  # of its widest cell or its heading
    empty: bool = False

    @property
    def text(self) -> bool:
        return self.name in TEXT


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    empty: str,
    title: str | None = None,
    whole: bool = False,
) -> None:
    """Prints a table, or the sentence `empty`. Columns whose name ends in # hold numbers.

    A terminal gets one line a row: long text is cut, and columns that do not fit are left out. With `whole`, text
    takes as many lines as it needs.
    """
    from rich import box
    from rich.table import Table

    cells = [[cell(value) for value in row] for row in rows]
    if not cells:
        show(empty)
        return
    tty = sys.stdout.isatty()
    table = Table(
        box=box.SIMPLE_HEAD if tty else None,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
        title=title,
        title_justify="left",
    )
    measured = [_measured(name, n, cells) for n, name in enumerate(columns)]
    widths = fit(measured, console().width) if tty else {column.name: None for column in measured}
    for name, column in zip(columns, measured, strict=True):
        if column.name in widths:
            cut = tty and column.text and not whole
            table.add_column(
                column.name,
                justify="right" if name.endswith("#") else "left",
                no_wrap=cut,
                overflow="ellipsis" if cut else "fold",
                width=widths[column.name],
            )
    for row in cells:
        table.add_row(*(one for one, column in zip(row, measured, strict=True) if column.name in widths))
    show(table)
    if left_out := [one.name for one in measured if one.name not in widths and not one.empty]:
        note(f"left out: {', '.join(left_out)} (a wider terminal or --json shows more)")


def _measured(name: str, column: int, rows: Sequence[Sequence["Text"]]) -> TableColumn:
    shown = [row[column] for row in rows]
    heading = name.removesuffix("#")
    width = max(len(heading), *(one.cell_len for one in shown))
    return TableColumn(heading, width, empty=all(one.plain == NOTHING for one in shown))


def fit(columns: Sequence[TableColumn], room: int) -> dict[str, int]:
    """The columns that fit, each with its width; the first one always does."""
    for kept, least in _layouts(columns):
        spare = room - GAP * (len(kept) - 1) - sum(_floor(column, least) for column in kept)
        if spare >= 0:
            break
    widths: dict[str, int] = {}
    for column in kept:
        floor = _floor(column, least)
        widths[column.name] = min(column.width, floor + spare) if column.text else column.width
        spare -= widths[column.name] - floor
    return widths


def _layouts(columns: Sequence[TableColumn]) -> Iterator[tuple[list[TableColumn], int]]:
    """Layouts from the widest to the narrowest: empty columns are left out first, then others from the right.

    The first two columns, state and error stay longest, because they are what people look for.
    """
    kept = list(columns)
    yield kept, ENOUGH
    spared = [column for column in reversed(columns[2:]) if column.name not in ("state", "error")]
    for column in sorted(spared, key=lambda column: not column.empty):
        kept = [other for other in kept if other is not column]
        yield kept, ENOUGH
    while len(kept) > 1:
        yield kept, LEAST
        kept = kept[:-1]
    yield kept, LEAST


def _floor(column: TableColumn, least: int) -> int:
    return min(column.width, least) if column.text else column.width


def print_facts(facts: Mapping[str, str | None]) -> None:
    """Prints names and values, one a line, without those that are None."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        if value is not None:
            grid.add_row(name, plain(value))
    show(grid)


def cell(value: Any) -> "Text":
    from rich.text import Text

    if value is None or value == "":
        return Text(NOTHING, style="dim")
    if isinstance(value, Text):
        return value
    text = value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else str(value)
    text = flat(text)
    return Text(text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…", style=STYLES.get(text, ""))


def error_text(error: Mapping[str, Any] | None) -> str | None:
    return None if error is None else f"{error.get('type', 'error')}: {error.get('message', '')}"


def say(text: str) -> None:
    """Prints an answer to stdout at once, because a command may wait for long after it."""
    print(plain(text), flush=True)


def note(text: str) -> None:
    """Prints a remark to stderr, so that it stays out of pipes."""
    print(plain(text), file=sys.stderr)


def now() -> datetime:
    return datetime.now(UTC)


def ago(moment: datetime | None) -> str | None:
    """ "5m ago", "in 2h", or None."""
    if moment is None:
        return None
    length = now() - moment
    return f"{brief(length)} ago" if length.total_seconds() >= 0 else f"in {brief(length)}"


def when(moment: datetime | None) -> str | None:
    """The time and how far away it is."""
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({ago(moment)})"
