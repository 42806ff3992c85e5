"""`trace`: the jobs that belong together, as a tree."""

from collections.abc import Iterable, Iterator, Set
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
import typer

from dutiful.cli.output import LONGEST_CELL, STYLES, AsJson, Tenant, ago, both_ids, flat, print_json, show
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.family import Family, Member, Relation
from dutiful.core.transitions import State

if TYPE_CHECKING:
    from rich.text import Text

DEEPEST = 12  # levels that are drawn; below them the level is told as a number


def register(cli: typer.Typer) -> None:
    cli.command(rich_help_panel="Jobs")(trace)


def trace(
    ctx: typer.Context,
    reference: Annotated[
        str, typer.Argument(metavar="CORRELATION|JOB", help="A correlation id, or the id of a job that has one.")
    ],
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Show all jobs of one correlation id: who enqueued whom, what was run again, and how each fares.

    Jobs of one level stand in the order in which they were made. Of more than a thousand, the newest are shown.

    \b
    Examples:
      dutiful trace order-1042
      dutiful trace 01JCPZ5-… --json
    """
    family = operate(ctx, lambda operator: operator.trace(reference), tenant)
    if as_json:
        print_json(_json(family))
        return
    count = f"{len(family.members):,} job{'s' * (len(family.members) != 1)}"
    more = ", the newest and those that they come from; there are more" if family.cut else ""
    show(f"{flat(family.correlation_id)}: {count}{more}")
    here = {member.id for member in family.members}
    for member, branches in _drawn(family.tree()):
        show(_line(member, branches, here))


def _json(family: Family) -> dict[str, Any]:
    jobs = []
    for member in family.members:
        fields = msgspec.structs.asdict(member)
        for name in ("parent_id", "retry_of", "under"):
            fields |= both_ids(name, fields[name])
        jobs.append({**both_ids("id", member.id), **fields, **both_ids("id", member.id)})
    return {"correlation_id": family.correlation_id, "cut": family.cut, "jobs": jobs}


def _drawn(tree: list[Member]) -> Iterator[tuple[Member, str]]:
    """Each with the branches before it: whether more of a level follow is known from the end only."""
    lines: list[tuple[Member, str]] = []
    open_levels: set[int] = set()  # where somebody further down hangs on
    for member in reversed(tree):
        level = member.depth
        levels = range(1, min(level, DEEPEST))
        drawn = "".join("│  " if one in open_levels else "   " for one in levels)
        if level > DEEPEST:
            drawn += f"   ({level}) "
        elif level > 0:
            drawn += "├─ " if level in open_levels else "└─ "
        open_levels = {one for one in open_levels if one < level} | {level}
        lines.append((member, drawn))
    return reversed(lines)


def _line(member: Member, branches: str, here: Set[UUID]) -> "Text":
    from rich.text import Text

    said = "retry " if member.relation is Relation.RETRY else ""
    state = member.state.value
    line = Text(branches, style="dim", no_wrap=True, overflow="ignore")
    line.append(said, style="dim")
    line.append(ids.public(member.id), style="not dim")
    line.append(f"  {flat(member.kind)}  ", style="not dim")
    line.append(state, style=f"not dim {STYLES[state]}")
    line.append("  " + ", ".join(_facts(member, here)), style="not dim")
    if member.error is not None:
        line.append(f"  {_error(member.error)}", style="not dim red")
    return line


def _facts(member: Member, here: Set[UUID]) -> Iterable[str]:
    yield f"{member.attempt}/{member.max_attempts}"
    yield f"made {member.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if member.finished_at is not None and member.started_at is not None:
        yield f"ran {brief(member.finished_at - member.started_at)}"
    elif member.finished_at is not None:
        yield f"ended {ago(member.finished_at)}"
    elif member.state is State.RUNNING:
        yield f"started {ago(member.started_at)}"
    elif member.gate is not None:
        yield f"held by {flat(member.gate)}"
    elif member.run_at is not None:
        yield f"due {ago(member.run_at)}"
    if member.tenant is not None:
        yield f"of {flat(member.tenant)}"
    if member.under is None and (above := member.retry_of or member.parent_id) is not None:
        yield f"{'a retry' if member.retry_of else 'a child'} of {_missing(member, above, here)}"


def _missing(member: Member, above: UUID, here: Set[UUID]) -> str:
    """One that a root of the tree names as what it comes from."""
    if above == member.id:
        return "itself"
    # People may name any parent, so that two may come from each other; one of them has to stand first.
    return f"{ids.public(above)}, which {'comes from this one' if above in here else 'is not here'}"


def _error(error: dict[str, Any]) -> str:
    told = flat(" ".join(f"{error.get('type')}: {error.get('message')}".split()))
    return told if len(told) <= LONGEST_CELL else f"{told[:LONGEST_CELL]}…"
