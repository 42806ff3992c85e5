"""`audit`: what people did, and whether the audit trail is intact."""

from datetime import timedelta
from typing import Annotated
from uuid import UUID

import msgspec
import typer

from dutiful.cli import FAILURE, UNKNOWN
from dutiful.cli.options import AsJson, Tenant, read_moment
from dutiful.cli.output.printing import note, print_json, print_table, say, when
from dutiful.cli.target import operate
from dutiful.core.duration import brief, duration
from dutiful.core.errors import UsageError
from dutiful.core.review.audit import AuditEvent, AuditOutcome, Seal
from dutiful.operator import Verified
from dutiful.operator.audit import MOST_UNSEALED
from dutiful.store.audit import AuditFilter

audit = typer.Typer(help="Read the audit trail, and verify that it is intact.", no_args_is_help=True)


def register(cli: typer.Typer) -> None:
    cli.add_typer(audit, name="audit", rich_help_panel="Operate")


@audit.command("list")
def list_events(
    ctx: typer.Context,
    principal: Annotated[str | None, typer.Option(help="Only actions of this principal.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this action, as in job.cancel; job. matches all that begin with it.")
    ] = None,
    outcome: Annotated[AuditOutcome | None, typer.Option(help="Only this outcome.")] = None,
    target: Annotated[str | None, typer.Option(help="Only actions on this id or name.")] = None,
    act: Annotated[str | None, typer.Option(metavar="UUID", help="Only the events of one action or bulk run.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Then or later: 2h (ago), 2030-01-31T09:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Before then.")] = None,
    before: Annotated[
        str | None, typer.Option(metavar="UUID", help="Only events before this one: the last of the page before.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=1_000, help="How many at most.")] = 50,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """List what people did, the newest first; an action has an event when it was requested, and one when it ended.

    \b
    Examples:
      dutiful audit list --since 1d --action dead_letter.
      dutiful audit list --principal ada --outcome refused --json
    """
    wanted = AuditFilter(
        principal=principal,
        action=action,
        outcome=outcome,
        target=target,
        act=_uuid(act, "--act"),
        since=read_moment(since, "--since"),
        until=read_moment(until, "--until"),
        before=_uuid(before, "--before"),
        limit=limit,
    )
    found = operate(ctx, lambda operator: operator.audit.search(wanted), tenant)
    more = str(found[-1].id) if len(found) == limit else None
    if as_json:
        print_json({"events": found, "next_before": more})
        return
    print_table(
        ("when", "who", "from", "action", "outcome", "target", "tenant", "reason", "result"),
        (
            (
                when(e.at),
                e.principal,
                str(e.origin),
                e.action,
                str(e.outcome),
                e.target,
                e.tenant,
                e.reason,
                _after(e),
            )
            for e in found
        ),
        empty="no events",
    )
    if more:
        note(f"there may be more: --before {more}")


@audit.command()
def verify(
    ctx: typer.Context,
    expect: Annotated[
        str | None,
        typer.Option(metavar="SEQ:HASH", help="A head that was printed before, and has to be in the chain still."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every seal; exit code 1 if an event was changed, deleted or inserted.

    Exit code 3: the chain is intact, but retention has deleted the seal that --expect names.

    Store the printed head elsewhere, and give it to --expect next time: only so is a chain detected whose end was cut
    off.

    \b
    Examples:
      dutiful audit verify
      dutiful audit verify --expect 4711:9f86d0…
    """
    seal = _seal(expect)
    found = operate(ctx, lambda operator: operator.audit.verify(seal))
    if as_json:
        print_json({"intact": found.broken is None, **msgspec.structs.asdict(found)})
    else:
        _print(found)
    if found.broken is not None:
        raise typer.Exit(FAILURE)
    if found.gone:
        raise typer.Exit(UNKNOWN)


@audit.command()
def keep(
    ctx: typer.Context,
    span: Annotated[str, typer.Argument(metavar="SPAN|forever", help="How long: 400d, 9000h, or forever.")],
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; kept in the audit trail.")] = None,
) -> None:
    """Set how long audit events are kept; older ones are deleted from the beginning of the trail.

    The default is forever. The setting is stored in the database, where only the owner of its tables may change it;
    `audit verify` shows it.

    \b
    Examples:
      dutiful audit keep 400d --reason "data protection, section 4"
      dutiful audit keep forever
    """
    length = None if span == "forever" else duration(span, "SPAN")
    operate(ctx, lambda operator: operator.audit.set_retention(length, reason))
    say(f"audit events are kept {_kept(length)}")


def _kept(length: timedelta | None) -> str:
    return "forever" if length is None else f"for {brief(length)}"


def _print(found: Verified) -> None:
    if found.anchor is not None:
        say(f"retention has deleted the events up to seal {found.anchor.seq} ({when(found.anchor.at)})")
    if found.broken is not None:
        event = "" if found.broken.event_id is None else f" (event {found.broken.event_id})"
        where = "beside the chain" if found.broken.seq is None else f"at seal {found.broken.seq}"
        say(f"BROKEN {where}{event}: {found.broken.problem}")
        say(f"the {found.checked:,} seals {'of it' if found.broken.seq is None else 'before it'} are intact")
    else:
        say(f"intact: {found.checked:,} sealed events")
        if found.head is not None:
            say(f"head {found.head.seq}:{found.head.hash}")
    note(f"events are kept {_kept(found.keep)}")
    if found.gone:
        note("the expected seal cannot be checked any more: retention has deleted it; keep a newer head")
    if found.unsealed:
        many = f"{found.unsealed:,}{' or more' if found.unsealed == MOST_UNSEALED else ''}"
        note(f"{many} events wait for their seal since {when(found.oldest_unsealed_at)}; a worker's services seal them")


def _after(event: AuditEvent) -> str | None:
    return None if event.after is None else msgspec.json.encode(event.after).decode()


def _uuid(text: str | None, option: str) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        raise UsageError(f"{option} {text!r:.80} is not a UUID, as `dutiful audit list --json` shows them") from None


def _seal(text: str | None) -> Seal | None:
    if text is None:
        return None
    seq, _, digest = text.partition(":")
    if not seq.isdecimal() or len(digest) != 64:
        raise UsageError(f"--expect {text!r:.80} is not a head as `dutiful audit verify` prints it, like 4711:9f86d0…")
    return Seal(seq=int(seq), event_id=UUID(int=0), hash=digest)
