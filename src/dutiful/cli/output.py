"""How the command line prints: tables for people, one JSON document for programs."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
import typer

from dutiful.cli.columns import Column, fit
from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.job import JobRecord

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; it is kept with the act.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="As this tenant: nothing of another one exists.")]
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
PIPE_WIDTH = 1_000  # no terminal: nothing is folded or cut, so that lines can be searched
LONGEST_CELL = 200
NOTHING = "-"


def print_json(value: Any) -> None:
    """One document: times in UTC as ISO 8601, keys always there."""
    data = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
    sys.stdout.write(data.decode() + "\n")


def job_json(job: JobRecord) -> dict[str, Any]:
    """A job for programs; each job's id in both spellings."""
    fields: dict[str, Any] = {**both_ids("id", job.id), **msgspec.structs.asdict(job)}
    for name in ("parent_id", "retry_of"):
        fields |= both_ids(name, fields[name])
    return fields | both_ids("id", job.id)  # once more, over the record's own id


def both_ids(name: str, job_id: UUID | None) -> dict[str, str | None]:
    """{"id": "01JC…", "uuid": "0193…"}; other names keep their own in front: parent_id, parent_uuid."""
    uuid_name = "uuid" if name == "id" else f"{name.removesuffix('_id')}_uuid"
    if job_id is None:
        return {name: None, uuid_name: None}
    return {name: ids.public(job_id), uuid_name: str(job_id)}


def plain(text: str) -> str:
    """Text from outside made harmless: a terminal obeys control characters."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def flat(text: str) -> str:
    """The same for where each line stands for something of its own: rows of a table, branches of a tree."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


def console() -> "Console":
    from rich.console import Console

    tty = sys.stdout.isatty()
    return Console(highlight=False, markup=False, emoji=False, width=None if tty else PIPE_WIDTH)


def show(*parts: "RenderableType") -> None:
    out = console()
    for part in parts:
        out.print(part, soft_wrap=isinstance(part, str))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    empty: str,
    title: str | None = None,
    whole: bool = False,
) -> None:
    """A table, or the sentence `empty`. Columns whose name ends in # hold numbers.

    A terminal gets a line a row: long text is cut, and what has no room is left out. On a page about one thing, text is
    `whole`, on as many lines as it needs.
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


def _measured(name: str, place: int, rows: Sequence[Sequence["Text"]]) -> Column:
    shown = [row[place] for row in rows]
    heading = name.removesuffix("#")
    width = max(len(heading), *(one.cell_len for one in shown))
    return Column(heading, width, empty=all(one.plain == NOTHING for one in shown))


def print_facts(facts: Mapping[str, str | None]) -> None:
    """Names and what they stand for, one a line; what is None is left out."""
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


def note(text: str) -> None:
    """Something a person should know that is not the answer; on stderr, so that it stays out of pipes."""
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
    """The moment itself and how far away it is."""
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({ago(moment)})"
