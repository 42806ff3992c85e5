"""`dlq`: jobs that failed for good, and what people decide about them."""

import sys
from typing import Annotated, Any
from uuid import UUID

import typer

from dutiful.cli.bulk import run_json, run_sentence, to_the_end
from dutiful.cli.letter_options import choosing
from dutiful.cli.letter_page import (
    group_json,
    letter_json,
    print_counts,
    print_groups,
    print_letter,
    print_letters,
    print_preview,
)
from dutiful.cli.output import AsJson, Tenant, both_ids, note, print_json
from dutiful.cli.payload import read_payload
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.errors import UsageError
from dutiful.core.review import ReviewAct
from dutiful.operator import Operator
from dutiful.reviewing import BulkRun, DeadLetter, DeadLetterFilter

MOST = 1_000
letters = typer.Typer(
    help="Look at dead letters: jobs that failed for good. Run them again, or close them.", no_args_is_help=True
)
LetterId = Annotated[str, typer.Argument(metavar="ID", help="The id of the job that died, in either spelling.")]
OneId = Annotated[str | None, typer.Argument(metavar="[ID]", help="One of them; or --all and options that choose.")]
All = Annotated[bool, typer.Option("--all", help="All that the other options choose, after a look at them.")]
Notes = Annotated[str | None, typer.Option(help="Why; it is kept with the dead letter and in the audit trail.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With --all: do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --all: only show which they are.")]


def register(cli: typer.Typer) -> None:
    cli.add_typer(letters, name="dlq", rich_help_panel="Jobs")


@letters.command("list")
@choosing
def list_letters(
    ctx: typer.Context,
    wanted: DeadLetterFilter,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=MOST, help="How many at most.")] = 50,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on after this one: the last of the page before.")
    ] = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest first.

    \b
    Examples:
      dutiful dlq list --status pending_review --since 1d
      dutiful dlq list --kind send_email --error-class transient --json
    """
    last = None if after is None else ids.parse_any(after)

    async def find(operator: Operator) -> list[DeadLetter]:
        place = None if last is None else (await operator.dead_letter(last)).place
        return await operator.dead_letters(wanted, after=place, limit=limit)

    found = operate(ctx, find, tenant)
    more = ids.public(found[-1].id) if len(found) == limit else None
    if as_json:
        print_json({"dead_letters": [letter_json(letter) for letter in found], "next_after": more})
        return
    print_letters(found)
    if more:
        note(f"there may be more: --after {more}")


@letters.command()
def show(
    ctx: typer.Context,
    letter_id: LetterId,
    full: Annotated[bool, typer.Option("--full", help="With tracebacks, and nothing cut.")] = False,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Tell everything about one dead letter."""
    wanted = ids.parse_any(letter_id)
    letter = operate(ctx, lambda operator: operator.dead_letter(wanted), tenant)
    if as_json:
        print_json(letter_json(letter))
    else:
        print_letter(letter, full=full)


@letters.command()
@choosing
def groups(
    ctx: typer.Context,
    wanted: DeadLetterFilter,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=MOST, help="How many at most.")] = 50,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Group dead letters whose errors are alike, the largest group first.

    \b
    Examples:
      dutiful dlq groups --since 1d
    """
    found = operate(ctx, lambda operator: operator.dead_letter_groups(wanted, limit), tenant)
    if as_json:
        print_json({"groups": [group_json(group) for group in found]})
    else:
        print_groups(found)


@letters.command()
@choosing
def stats(ctx: typer.Context, wanted: DeadLetterFilter, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """Count dead letters by status, kind and class of error."""
    found = operate(ctx, lambda operator: operator.dead_letter_counts(wanted), tenant)
    if as_json:
        print_json(found)
    else:
        print_counts(found)


@letters.command()
@choosing
def reprocess(
    ctx: typer.Context,
    wanted: DeadLetterFilter,
    letter_id: OneId = None,
    all_: All = False,
    notes: Notes = None,
    payload: Annotated[
        str | None,
        typer.Option(metavar="JSON|@FILE|-", help="Run it with this payload; the dead letter keeps its own."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Run a dead letter again as a new job, and print that job's id; or many, by --all.

    The new job is the same but for its unique key, which gets the time added to it.

    \b
    Examples:
      dutiful dlq reprocess 01JCPZ5-… --notes "the mail server is back"
      dutiful dlq reprocess 01JCPZ5-… --payload '{"to": "ada@example.org"}'
      dutiful dlq reprocess --all --kind send_email --since 2h
    """
    one = _one(letter_id, all_)
    if one is None:
        if payload is not None:
            raise UsageError("--payload is for one dead letter: name it instead of --all")
        _act_on_all(ctx, ReviewAct.REPROCESS, wanted, notes, tenant, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    body = None if payload is None else read_payload(payload)
    made = operate(ctx, lambda operator: operator.reprocess(one, notes, body), tenant)
    if as_json:
        letter, job = both_ids("dead_letter_id", made.dead_letter_id), both_ids("new_job_id", made.new_job_id)
        print_json({**letter, **job, "new_unique_key": made.new_unique_key})
    else:
        typer.echo(ids.public(made.new_job_id))


@letters.command()
@choosing
def acknowledge(
    ctx: typer.Context,
    wanted: DeadLetterFilter,
    letter_id: OneId = None,
    all_: All = False,
    notes: Notes = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Say that somebody has seen it; it stays open."""
    _decide(ctx, ReviewAct.ACKNOWLEDGE, letter_id, all_, wanted, notes, tenant, yes, dry_run, as_json)


@letters.command()
@choosing
def resolve(
    ctx: typer.Context,
    wanted: DeadLetterFilter,
    letter_id: OneId = None,
    all_: All = False,
    notes: Notes = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Close it, for it has been mended by hand."""
    _decide(ctx, ReviewAct.RESOLVE, letter_id, all_, wanted, notes, tenant, yes, dry_run, as_json)


@letters.command()
@choosing
def discard(
    ctx: typer.Context,
    wanted: DeadLetterFilter,
    letter_id: OneId = None,
    all_: All = False,
    notes: Notes = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Close it without running it again.

    \b
    Examples:
      dutiful dlq discard 01JCPZ5-… --notes "a duplicate"
      dutiful dlq discard --all --fingerprint 5f0c… --dry-run
    """
    _decide(ctx, ReviewAct.DISCARD, letter_id, all_, wanted, notes, tenant, yes, dry_run, as_json)


def _decide(
    ctx: typer.Context,
    act: ReviewAct,
    letter_id: str | None,
    all_: bool,
    wanted: DeadLetterFilter,
    notes: str | None,
    tenant: str | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    one = _one(letter_id, all_)
    if one is None:
        _act_on_all(ctx, act, wanted, notes, tenant, yes=yes, dry_run=dry_run, as_json=as_json)
        return

    async def decide(operator: Operator) -> DeadLetter:
        match act:
            case ReviewAct.ACKNOWLEDGE:
                return await operator.acknowledge(one, notes)
            case ReviewAct.RESOLVE:
                return await operator.resolve(one, notes)
            case _:
                return await operator.discard(one, notes)

    letter = operate(ctx, decide, tenant)
    if as_json:
        print_json(letter_json(letter))
    else:
        typer.echo(f"{ids.public(letter.id)}  {letter.status}")


def _one(letter_id: str | None, all_: bool) -> UUID | None:
    """Which one is meant; None for --all."""
    if (letter_id is None) != all_:
        raise UsageError("name one dead letter by its id, or give --all and options that choose, not both")
    return None if letter_id is None else ids.parse_any(letter_id)


def _act_on_all(
    ctx: typer.Context,
    act: ReviewAct,
    wanted: DeadLetterFilter,
    notes: str | None,
    tenant: str | None,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    preview = operate(ctx, lambda operator: operator.preview(act, wanted), tenant)
    if as_json and dry_run:
        shown: dict[str, Any] = {"act": act, "count": preview.count}
        shown["groups"] = [group_json(group) for group in preview.groups]
        print_json({**shown, "sample": [letter_json(letter) for letter in preview.sample]})
        return
    if not as_json:
        print_preview(preview)
    if dry_run or not (preview.count or as_json):
        return
    if not yes and not _agreed(preview.count, act):
        note("nothing was changed")
        return

    async def begin(operator: Operator) -> BulkRun:
        run = await operator.start_bulk(act, wanted, notes)
        public = ids.public(run.id)
        note(f"bulk run {public}; if this is interrupted, a worker goes on with it, or `dutiful bulk resume {public}`")
        return await to_the_end(operator, run)

    run = operate(ctx, begin, tenant)
    if as_json:
        print_json(run_json(run))
    else:
        typer.echo(run_sentence(run))


def _agreed(count: int, act: ReviewAct) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            f"{act} {count:,} dead letters? Nobody is here to answer: give --yes, or --dry-run to look only"
        )
    return typer.confirm(f"{act} {count:,} dead letters?", default=False)
