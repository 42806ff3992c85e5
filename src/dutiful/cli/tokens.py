"""`token`: who may use the admin API."""

from typing import Annotated

import typer

from dutiful.access import ApiToken
from dutiful.cli.output import AsJson, Reason, ago, both_ids, note, now, print_json, print_table, when
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.duration import duration
from dutiful.core.errors import DutifulError
from dutiful.core.principal import Role
from dutiful.operator import Operator

tokens = typer.Typer(help="Make, list and revoke tokens for the admin API.", no_args_is_help=True)


def register(cli: typer.Typer) -> None:
    cli.add_typer(tokens, name="token", rich_help_panel="Operate")


@tokens.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Option(help="Who or what uses it: the principal in the audit trail.")],
    role: Annotated[Role, typer.Option(help="How far its word goes.")],
    tenant: Annotated[str | None, typer.Option(help="For this tenant only; otherwise for all.")] = None,
    expires: Annotated[str | None, typer.Option(metavar="TIME", help="Until when: 90d. Otherwise for good.")] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Make a token, and print its secret: now and never again, for only a hash of it is stored.

    \b
    Examples:
      dutiful token create --name ada --role manager --tenant acme --expires 90d
      dutiful token create --name nightly-report --role viewer --tenant acme
    """
    length = None if expires is None else duration(expires, "--expires")
    token, secret = operate(
        ctx, lambda operator: operator.create_token(name, role, tenant, length, reason), makes_file=True
    )
    if as_json:
        print_json({**_json(token), "secret": secret})
        return
    typer.echo(secret)
    until = "for good" if token.expires_at is None else f"until {when(token.expires_at)}"
    note(f"token {ids.public(token.id)} of {name}, {role}, valid {until}")
    note("keep the secret now: a SHA-256 of it is stored, so nobody can show it again")


@tokens.command("list")
def list_tokens(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List tokens, the newest first; never their secrets."""
    found = operate(ctx, lambda operator: operator.tokens())
    if as_json:
        print_json({"tokens": [_json(token) for token in found]})
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
    """End a token at once."""

    async def end(operator: Operator) -> ApiToken | None:
        token = await operator.find_token(token_id)
        return token if token is not None and await operator.revoke_token(token.id, reason) else None

    revoked = operate(ctx, end)
    if revoked is None:
        raise DutifulError("there is no such token, or it was revoked before; see `dutiful token list`")
    typer.echo(f"token {ids.public(revoked.id)} of {revoked.name} is revoked")


def _state(token: ApiToken) -> str:
    if token.revoked_at is not None:
        return f"revoked {ago(token.revoked_at)}"
    if token.expires_at is None:
        return "valid"
    return f"valid until {when(token.expires_at)}" if token.valid(now()) else f"expired {ago(token.expires_at)}"


def _json(token: ApiToken) -> dict[str, object]:
    return {
        **both_ids("id", token.id),
        "name": token.name,
        "role": token.role,
        "tenant": token.tenant,
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "last_used_at": token.last_used_at,
    }
