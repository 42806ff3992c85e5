"""`tokens`: tokens of the admin API."""

from typing import Annotated

import typer

from dutiful.cli.options import AsJson, Reason
from dutiful.cli.output.printing import ago, note, now, print_json, print_table, record_json, say, when
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.duration import duration
from dutiful.core.errors import DutifulError
from dutiful.core.principal import Role
from dutiful.operator import Operator
from dutiful.store.tokens import ApiToken

tokens = typer.Typer(help="Create, list and revoke tokens of the admin API.", no_args_is_help=True)


def register(cli: typer.Typer) -> None:
    cli.add_typer(tokens, name="tokens", rich_help_panel="Operate")


@tokens.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Option(help="Who or what uses it: the principal in the audit trail.")],
    role: Annotated[Role, typer.Option(help="What it may do.")],
    tenant: Annotated[str | None, typer.Option(help="For this tenant only; otherwise for all.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it is valid, as in 90d; by default forever.")
    ] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Create a token, and print its secret once: only a hash of it is stored.

    \b
    Examples:
      dutiful tokens create --name ada --role manager --tenant acme --expires 90d
      dutiful tokens create --name nightly-report --role viewer --tenant acme
    """
    length = None if expires is None else duration(expires, "--expires")
    token, secret = operate(
        ctx, lambda operator: operator.tokens.create(name, role, tenant, length, reason), makes_file=True
    )
    if as_json:
        print_json({**record_json(token, "id"), "secret": secret})
        return
    typer.echo(secret)
    until = "forever" if token.expires_at is None else f"until {when(token.expires_at)}"
    note(f"token {ids.public(token.id)} of {name}, {role}, valid {until}")
    note("store the secret now: only its SHA-256 is kept, so it cannot be shown again")


@tokens.command("list")
def list_tokens(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List tokens, the newest first; never their secrets."""
    found = operate(ctx, lambda operator: operator.tokens.all())
    if as_json:
        print_json({"tokens": [record_json(token, "id") for token in found]})
        return
    print_table(
        ("id", "name", "role", "tenant", "state", "made", "by", "last used"),
        (
            (
                ids.public(t.id),
                t.name,
                t.role.value,
                t.tenant or "all",
                _state(t),
                ago(t.created_at),
                t.created_by,
                ago(t.last_used_at),
            )
            for t in found
        ),
        empty="no tokens",
    )


@tokens.command()
def revoke(
    ctx: typer.Context,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, in either spelling, or its secret.")],
    reason: Reason = None,
) -> None:
    """Revoke a token at once."""

    async def end(operator: Operator) -> ApiToken | None:
        token = await operator.tokens.find(token_id)
        return token if token is not None and await operator.tokens.revoke(token.id, reason) else None

    revoked = operate(ctx, end)
    if revoked is None:
        raise DutifulError("there is no such token, or it was revoked before; see `dutiful tokens list`")
    say(f"token {ids.public(revoked.id)} of {revoked.name} is revoked")


def _state(token: ApiToken) -> str:
    if token.revoked_at is not None:
        return f"revoked {ago(token.revoked_at)}"
    if token.expires_at is None:
        return "valid"
    return f"valid until {when(token.expires_at)}" if token.valid(now()) else f"expired {ago(token.expires_at)}"
