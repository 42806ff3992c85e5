"""`dead-letters`: jobs that failed permanently, and what people decide about them."""

import sys
from typing import Annotated, Any
from uuid import UUID

import typer

from dutiful.cli.commands.bulk import finish, run_json, run_sentence
from dutiful.cli.dead_letter_options import filtered
from dutiful.cli.options import AsJson, Details, Tenant, read_payload
from dutiful.cli.output.dead_letter_details import (
    group_json,
    letter_json,
    print_counts,
    print_groups,
    print_letter,
    print_letters,
    print_preview,
)
from dutiful.cli.output.printing import both_ids, note, print_json, say
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.errors import UsageError
from dutiful.core.review.state import ReviewAct
from dutiful.operator import Operator
from dutiful.store.dead_letters import BulkRun, DeadLetter, DeadLetterFilter

MOST = 1_000
letters = typer.Typer(
    help="Review dead letters, which are jobs that failed permanently: run them again, or close them.",
    no_args_is_help=True,
)
LetterId = Annotated[str, typer.Argument(metavar="ID", help="The id of the failed job, in either spelling.")]
OneId = Annotated[str | None, typer.Argument(metavar="[ID]", help="One dead letter; or --all and options that filter.")]
All = Annotated[bool, typer.Option("--all", help="All that the other options select, after a preview.")]
Notes = Annotated[str | None, typer.Option(help="Why; kept with the dead letter and in the audit trail.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With --all: do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --all: only show the preview.")]


def register(cli: typer.Typer) -> None:
    cli.add_typer(letters, name="dead-letters", rich_help_panel="Jobs")


@letters.command("list")
@filtered
def list_letters(
    ctx: typer.Context,
    wanted: DeadLetterFilter,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=MOST, help="How many at most.")] = 50,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Continue after this one: the last of the previous page.")
    ] = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
    details: Details = False,
) -> None:
    """List dead letters, the newest first.

    \b
    Examples:
      dutiful dead-letters list --status pending_review --since 1d
      dutiful dead-letters list --kind send_email --error-class transient --json
    """
    last = None if after is None else ids.parse_any(after)

    async def find(operator: Operator) -> list[DeadLetter]:
        cursor = None if last is None else (await operator.dead_letters.get(last)).cursor
        return await operator.dead_letters.search(wanted, after=cursor, limit=limit, details=as_json and details)

    found = operate(ctx, find, tenant)
    more = ids.public(found[-1].id) if len(found) == limit else None
    if as_json:
        print_json({"dead_letters": [letter_json(letter, details=details) for letter in found], "next_after": more})
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
    """Show everything about one dead letter."""
    wanted = ids.parse_any(letter_id)
    letter = operate(ctx, lambda operator: operator.dead_letters.get(wanted), tenant)
    if as_json:
        print_json(letter_json(letter))
    else:
        print_letter(letter, full=full)


@letters.command()
@filtered
def groups(
    ctx: typer.Context,
    wanted: DeadLetterFilter,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=MOST, help="How many at most.")] = 50,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Group dead letters by similar errors, the largest group first.

    \b
    Examples:
      dutiful dead-letters groups --since 1d
    """
    found = operate(ctx, lambda operator: operator.dead_letters.groups(wanted, limit), tenant)
    if as_json:
        print_json({"groups": [group_json(group) for group in found]})
    else:
        print_groups(found)


@letters.command()
@filtered
def stats(ctx: typer.Context, wanted: DeadLetterFilter, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """Count dead letters by status, kind and error class."""
    found = operate(ctx, lambda operator: operator.dead_letters.counts(wanted), tenant)
    if as_json:
        print_json(found)
    else:
        print_counts(found)


@letters.command()
@filtered
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
    """Run a dead letter again as a new job, and print that job's id; or many, with --all.

    The new job is the same except for its unique key, to which the time is added.

    \b
    Examples:
      dutiful dead-letters reprocess 01JCPZ5-… --notes "the mail server is back"
      dutiful dead-letters reprocess 01JCPZ5-… --payload '{"to": "ada@example.org"}'
      dutiful dead-letters reprocess --all --kind send_email --since 2h
    """
    one = _one(letter_id, all_)
    if one is None:
        if payload is not None:
            raise UsageError("--payload is for one dead letter: name it instead of --all")
        _act_on_all(ctx, ReviewAct.REPROCESS, wanted, notes, tenant, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    body = None if payload is None else read_payload(payload)
    made = operate(ctx, lambda operator: operator.dead_letters.reprocess(one, notes, body), tenant)
    if as_json:
        letter, job = both_ids("dead_letter_id", made.dead_letter_id), both_ids("new_job_id", made.new_job_id)
        print_json({**letter, **job, "new_unique_key": made.new_unique_key})
    else:
        say(ids.public(made.new_job_id))


def _decision(act: ReviewAct, help: str) -> None:
    """Adds the command of a decision that changes nothing but the review status."""

    def decide(
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
        if (one := _one(letter_id, all_)) is None:
            _act_on_all(ctx, act, wanted, notes, tenant, yes=yes, dry_run=dry_run, as_json=as_json)
            return
        letter = operate(ctx, lambda operator: getattr(operator.dead_letters, act)(one, notes), tenant)
        if as_json:
            print_json(letter_json(letter))
        else:
            say(f"{ids.public(letter.id)}  {letter.status}")

    decide.__doc__ = help
    letters.command(act.value)(filtered(decide))


_decision(ReviewAct.ACKNOWLEDGE, "Mark it as seen; it stays open.")
_decision(ReviewAct.RESOLVE, "Close it as fixed by hand.")
_decision(
    ReviewAct.DISCARD,
    """Close it without running it again.

    \b
    Examples:
      dutiful dead-letters discard 01JCPZ5-… --notes "a duplicate"
      dutiful dead-letters discard --all --fingerprint 5f0c… --dry-run
    """,
)


def _one(letter_id: str | None, all_: bool) -> UUID | None:
    """The id of the one that is named; None for --all."""
    if (letter_id is None) != all_:
        raise UsageError("name one dead letter by its id, or give --all and options that filter, not both")
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
    preview = operate(ctx, lambda operator: operator.bulk.preview(act, wanted), tenant)
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

    async def start(operator: Operator) -> BulkRun:
        run = await operator.bulk.start(act, wanted, notes)
        public = ids.public(run.id)
        note(f"bulk run {public}; if this is interrupted, a worker continues it, or `dutiful bulk resume {public}`")
        return await finish(operator, run)

    run = operate(ctx, start, tenant)
    if as_json:
        print_json(run_json(run))
    else:
        say(run_sentence(run))


def _agreed(count: int, act: ReviewAct) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            f"{act} {count:,} dead letters? There is no terminal to ask: give --yes, or --dry-run for a preview"
        )
    return typer.confirm(f"{act} {count:,} dead letters?", default=False)
