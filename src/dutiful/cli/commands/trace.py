"""`trace`: the jobs of one correlation id, as a tree."""

from collections.abc import Iterable, Iterator, Set
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
import typer

from dutiful.cli.options import AsJson, Tenant
from dutiful.cli.output.printing import LONGEST_CELL, STYLES, ago, both_ids, flat, print_json, record_json, show
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.correlation_tree import CorrelationTree, Member, Relation
from dutiful.core.duration import brief
from dutiful.core.job import OnFailure
from dutiful.core.states import State
from dutiful.operator import Operator
from dutiful.store.trees import TreeProgress

if TYPE_CHECKING:
    from rich.text import Text

DEEPEST = 12  # levels that are drawn; deeper ones are numbered


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
    """Show all jobs of one correlation id: which job enqueued which, what was retried, and the state of each.

    Jobs of one level are in the order of their creation. Of more than a thousand, some are shown: the first that failed
    with those above them, the oldest, and the newest.

    \b
    Examples:
      dutiful trace order-1042
      dutiful trace 01JCPZ5-… --json
    """
    tree, progress = operate(ctx, lambda operator: _look(operator, reference), tenant)
    if as_json:
        print_json(_json(tree, progress))
        return
    total, shown = max(progress.total, len(tree.members)), len(tree.members)
    count = f"{total:,} job{'s' * (total != 1)}"
    more = f", of which {shown:,} are shown: what failed and is above it, the oldest, the newest" if tree.cut else ""
    show(f"{flat(tree.correlation_id)}: {count}{more}")
    states = ", ".join(f"{number:,} {state}" for state, number in progress.states.items())
    show(f"{progress.percent} % ended: {states}{_took(progress)}")
    here = {member.id for member in tree.members}
    lost = "is not shown" if tree.cut else "is missing"
    for member, branches in _drawn(tree.tree()):
        show(_line(member, branches, here, lost))


async def _look(operator: Operator, reference: str) -> tuple[CorrelationTree, TreeProgress]:
    tree = await operator.trace.find(reference)
    return tree, await operator.trees.progress(tree.correlation_id)


def _took(progress: TreeProgress) -> str:
    if progress.created_at is None or progress.finished_at is None:
        return ""
    return f"; took {brief(progress.finished_at - progress.created_at)}"


def _json(tree: CorrelationTree, progress: TreeProgress) -> dict[str, Any]:
    jobs = [
        record_json(member, "id", "parent_id", "retry_of", "under")
        | {"needs": [{**both_ids("id", need.id), "on_failure": need.on_failure} for need in member.needs]}
        for member in tree.members
    ]
    states = {**msgspec.structs.asdict(progress), "total": progress.total, "percent": progress.percent}
    return {"correlation_id": tree.correlation_id, "cut": tree.cut, "progress": states, "jobs": jobs}


def _drawn(tree: list[Member]) -> Iterator[tuple[Member, str]]:
    """Each member with its branches; from the end, because a branch depends on what follows it."""
    lines: list[tuple[Member, str]] = []
    open_levels: set[int] = set()  # levels that continue further down
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


def _line(member: Member, branches: str, here: Set[UUID], lost: str) -> "Text":
    from rich.text import Text

    prefix = f"{member.relation} " if member.relation in (Relation.RETRY, Relation.AFTER) else ""
    state = member.state.value
    line = Text(branches, style="dim", no_wrap=True, overflow="ignore")
    line.append(prefix, style="dim")
    line.append(ids.public(member.id), style="not dim")
    line.append(f"  {flat(member.kind)}  ", style="not dim")
    line.append(state, style=f"not dim {STYLES[state]}")
    line.append("  " + ", ".join(_facts(member, here, lost)), style="not dim")
    if member.error is not None:
        line.append(f"  {_error(member.error)}", style="not dim red")
    return line


def _facts(member: Member, here: Set[UUID], lost: str) -> Iterable[str]:
    yield f"{member.attempt}/{member.max_attempts}"
    yield f"made {member.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if member.finished_at is not None and member.started_at is not None:
        yield f"ran {brief(member.finished_at - member.started_at)}"
    elif member.finished_at is not None:
        yield f"ended {ago(member.finished_at)}"
    elif member.state is State.RUNNING:
        yield f"started {ago(member.started_at)}"
    elif member.gate is not None:
        yield f"blocked by {flat(member.gate)}"
    elif member.run_at is not None:
        yield f"due {ago(member.run_at)}"
    if others := [need for need in member.needs if need.id != member.under]:
        also = "also " if len(others) < len(member.needs) else ""
        more = max(member.needs_total, len(member.needs)) - (len(member.needs) - len(others)) - 1
        yield f"{also}after {ids.public(others[0].id)}" + (f" and {more:,} more" if more else "")
    if odd := sorted({need.on_failure for need in member.needs} - {OnFailure.CANCEL}):
        yield f"{' or '.join(f'{policy}s' for policy in odd)} if one fails"
    if member.tenant is not None:
        yield f"of {flat(member.tenant)}"
    if member.under is None and (above := member.retry_of or member.parent_id) is not None:
        yield f"{'a retry' if member.retry_of else 'a child'} of {_missing(member, above, here, lost)}"


def _missing(member: Member, above: UUID, here: Set[UUID], lost: str) -> str:
    """The parent that a root of the tree names."""
    if above == member.id:
        return "itself"
    # Callers may name any parent, so two jobs may be parents of each other; one of them has to come first.
    return f"{ids.public(above)}, which {'is below this one' if above in here else lost}"


def _error(error: dict[str, Any]) -> str:
    text = flat(" ".join(f"{error.get('type')}: {error.get('message')}".split()))
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"
