"""`webhooks`: endpoints that are notified of finished jobs or alerts, and the messages to them."""

import secrets
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

import typer

from dutiful.cli.options import AsJson, Reason
from dutiful.cli.output.printing import note, print_json, print_table, record_json, say, when
from dutiful.cli.target import operate, target
from dutiful.core import ids
from dutiful.core.errors import DutifulError, UsageError
from dutiful.core.webhooks.message import new_secret
from dutiful.operator import Operator
from dutiful.store.webhooks import PostState, WebhookPost

KEY_BYTES = 32
webhooks = typer.Typer(help="List webhooks and their messages, redeliver one, create a secret.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The webhook's name.")]


def register(cli: typer.Typer) -> None:
    cli.add_typer(webhooks, name="webhooks", rich_help_panel="Operate")


@webhooks.command("list")
def list_webhooks(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the webhooks that the code declares, and whether they are enabled."""
    found = operate(ctx, lambda operator: operator.webhooks.all())
    if as_json:
        print_json({"webhooks": found})
        return
    print_table(
        ("webhook", "url", "kinds", "states", "alerts", "enabled", "reason"),
        (
            (
                w.name,
                w.url,
                None if not w.states else "all" if w.kinds is None else ", ".join(w.kinds),
                ", ".join(w.states),
                "yes" if w.alerts else "no",
                "yes" if w.enabled else f"no, since {when(w.disabled_at)}",
                w.reason,
            )
            for w in found
        ),
        empty="no webhooks",
    )
    stored = {webhook.name for webhook in found}
    waiting = [name for name in target(ctx).any_app().webhooks if name not in stored]
    if waiting:
        note(f"declared in the code; stored when a worker starts: {', '.join(waiting)}")


@webhooks.command()
def posts(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Option(metavar="ID", help="Only messages about this job.")] = None,
    state: Annotated[
        PostState | None, typer.Option(metavar="STATE", help="Only these: pending, delivered or failed.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=1_000, help="How many at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List messages to webhooks, newest first, and whether they were delivered.

    \b
    Examples:
      dutiful webhooks posts --state failed
    """
    job_id = None if job is None else ids.parse_any(job)
    found = operate(ctx, lambda operator: operator.webhooks.posts(job_id=job_id, state=state, limit=limit))
    if as_json:
        print_json({"posts": [post_json(post) for post in found]})
        return
    print_posts(found)


@webhooks.command()
def redeliver(
    ctx: typer.Context,
    post: Annotated[str, typer.Argument(metavar="POST", help="Its id, as `dutiful webhooks posts` shows it.")],
    reason: Reason = None,
) -> None:
    """Send a message again that was delivered or given up; its id stays the same.

    \b
    Examples:
      dutiful webhooks redeliver 0193f2c8-5d0e-7c4e-9d0a-3f1b2c4d5e6f --reason "the receiver lost it"
    """
    post_id = _post_id(post)
    if not operate(ctx, lambda operator: operator.webhooks.redeliver(post_id, reason)):
        raise DutifulError(f"there is no message {post_id} that has ended; see `dutiful webhooks posts`")
    say(f"message {post_id} is sent again")


@webhooks.command()
def enable(ctx: typer.Context, name: Name, reason: Reason = None) -> None:
    """Enable a webhook: it gets messages about jobs that end from now on."""
    say(operate(ctx, lambda operator: _enable(operator, name, True, reason)))


@webhooks.command()
def disable(ctx: typer.Context, name: Name, reason: Reason = None) -> None:
    """Disable a webhook, and give up its pending messages."""
    say(operate(ctx, lambda operator: _enable(operator, name, False, reason)))


@webhooks.command()
def remove(ctx: typer.Context, name: Name, reason: Reason = None) -> None:
    """Remove a webhook that the code no longer declares, and give up its pending messages."""
    if name in target(ctx).any_app().webhooks:
        raise UsageError(f"webhook {name!r} is declared in the code, so a worker would store it again; disable it")
    if not operate(ctx, lambda operator: operator.webhooks.remove(name, reason)):
        known = ", ".join(w.name for w in operate(ctx, lambda operator: operator.webhooks.all())) or "none"
        raise DutifulError(f"there is no webhook {name!r}; there are: {known}")
    say(f"webhook {name} is removed")


@webhooks.command()
def secret() -> None:
    """Create a secret to sign messages with; it is printed and not stored.

    To change secrets, set webhook_secrets to the new one, a comma and the old one; give the new one to receivers; then
    remove the old one.
    """
    typer.echo(new_secret(secrets.token_bytes(KEY_BYTES)))


def print_posts(found: Sequence[WebhookPost], title: str | None = None, *, whole: bool = False) -> None:
    print_table(
        ("message", "event", "job", "to", "state", "attempts#", "when", "status#", "error"),
        (
            (
                str(p.id),
                p.event,
                None if p.job_id is None else ids.public(p.job_id),
                p.webhook or p.url,
                p.state.value,
                p.attempts,
                when(p.ended_at) or f"next {when(p.next_at)}",
                p.status,
                p.error,
            )
            for p in found
        ),
        empty="no messages",
        title=title,
        whole=whole,
    )


def post_json(post: WebhookPost) -> dict[str, Any]:
    return record_json(post, "job_id")


async def _enable(operator: Operator, name: str, enabled: bool, reason: str | None) -> str:
    known = {webhook.name: webhook for webhook in await operator.webhooks.all()}
    if name not in known:
        raise DutifulError(f"there is no webhook {name!r}; there are: {', '.join(known) or 'none'}")
    changed = await operator.webhooks.enable(name, enabled, reason)
    return f"webhook {name} {'is' if changed else 'was'} {'enabled' if enabled else 'disabled'}"


def _post_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise UsageError(f"{text!r:.80} is not a message's id; see `dutiful webhooks posts`") from None
