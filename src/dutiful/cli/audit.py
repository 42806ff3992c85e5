"""`audit`: what people did, and whether the trail is whole."""

from datetime import timedelta
from typing import Annotated
from uuid import UUID

import msgspec
import typer

from dutiful.auditing import AuditFilter
from dutiful.cli import FAILURE, UNKNOWN
from dutiful.cli.moment import moment
from dutiful.cli.output import AsJson, Tenant, note, print_json, print_table, when
from dutiful.cli.target import operate
from dutiful.core.audit import AuditEvent, AuditOutcome, Seal
from dutiful.core.duration import brief, duration
from dutiful.core.errors import UsageError
from dutiful.operator import Verified
from dutiful.operator.trail import MOST_UNSEALED

audit = typer.Typer(help="Read the audit trail, and verify that nobody has changed it.", no_args_is_help=True)


def register(cli: typer.Typer) -> None:
    cli.add_typer(audit, name="audit", rich_help_panel="Operate")


@audit.command("list")
def list_events(
    ctx: typer.Context,
    principal: Annotated[str | None, typer.Option(help="Only what they did.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this, as in job.cancel; job. is all that begins with it.")
    ] = None,
    outcome: Annotated[AuditOutcome | None, typer.Option(help="Only what came to this.")] = None,
    target: Annotated[str | None, typer.Option(help="Only what was done to it: an id, a name.")] = None,
    act: Annotated[str | None, typer.Option(metavar="UUID", help="Only the events of one act or bulk run.")] = None,
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
    """List what people did, the newest first; an act has one event when it was asked for, and one when it had ended.

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
        since=moment(since, "--since"),
        until=moment(until, "--until"),
        before=_uuid(before, "--before"),
        limit=limit,
    )
    found = operate(ctx, lambda operator: operator.audit_events(wanted), tenant)
    more = str(found[-1].id) if len(found) == limit else None
    if as_json:
        print_json({"events": found, "next_before": more})
        return
    print_table(
        ("when", "who", "from", "action", "outcome", "to what", "tenant", "reason", "what came of it"),
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
        typer.Option(metavar="SEQ:HASH", help="A head that was printed before: it has to be in the chain still."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute every seal again; exit code 1 if an event was changed, deleted or put in between.

    Exit code 3: nothing is wrong with what is there, but retention has deleted what --expect names.

    Keep the head that is printed somewhere else, and give it to --expect next time: only that can tell if the end of
    the chain was cut off.

    \b
    Examples:
      dutiful audit verify
      dutiful audit verify --expect 4711:9f86d0…
    """
    seal = _seal(expect)
    found = operate(ctx, lambda operator: operator.verify_audit(seal))
    if as_json:
        print_json({"intact": found.broken is None, **msgspec.structs.asdict(found)})
    else:
        _tell(found)
    if found.broken is not None:
        raise typer.Exit(FAILURE)
    if found.gone:
        raise typer.Exit(UNKNOWN)


@audit.command()
def keep(
    ctx: typer.Context,
    span: Annotated[str, typer.Argument(metavar="SPAN|forever", help="How long: 400d, 9000h, or forever.")],
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; it is on record.")] = None,
) -> None:
    """Say how long audit events are kept; older ones are deleted from the beginning of the trail.

    It is kept in the database, where only the owner of its tables may change it: forever, unless somebody says
    otherwise. `audit verify` tells it.

    \b
    Examples:
      dutiful audit keep 400d --reason "data protection, section 4"
      dutiful audit keep forever
    """
    length = None if span == "forever" else duration(span, "SPAN")
    operate(ctx, lambda operator: operator.keep_audit(length, reason))
    typer.echo(f"audit events are kept {_kept(length)}")


def _kept(length: timedelta | None) -> str:
    return "forever" if length is None else f"for {brief(length)}"


def _tell(found: Verified) -> None:
    if found.anchor is not None:
        typer.echo(f"retention has deleted what was up to seal {found.anchor.seq} ({when(found.anchor.at)})")
    if found.broken is not None:
        event = "" if found.broken.event_id is None else f" (event {found.broken.event_id})"
        where = "beside the chain" if found.broken.seq is None else f"at seal {found.broken.seq}"
        typer.echo(f"BROKEN {where}{event}: {found.broken.problem}")
        typer.echo(f"the {found.checked:,} seals {'of it' if found.broken.seq is None else 'before it'} are intact")
    else:
        typer.echo(f"intact: {found.checked:,} sealed events")
        if found.head is not None:
            typer.echo(f"head {found.head.seq}:{found.head.hash}")
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
