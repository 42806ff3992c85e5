"""`tenants`: let Postgres itself keep tenants apart, and say which of its roles sees which."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import typer

from dutiful.cli.output import AsJson, Reason, note, print_json, print_table
from dutiful.cli.target import run, target
from dutiful.client import Client
from dutiful.core.principal import Origin, Principal
from dutiful.operator.door import os_user
from dutiful.operator.tenants import Tenants, guarding

T = TypeVar("T")
tenants = typer.Typer(help="Let Postgres keep tenants apart, and bind its roles to them.", no_args_is_help=True)

Role = Annotated[str, typer.Argument(metavar="ROLE", help="A login role of the database.")]


def register(cli: typer.Typer) -> None:
    cli.add_typer(tenants, name="tenants", rich_help_panel="Set up")


@tenants.command()
def on(
    ctx: typer.Context,
    sql: Annotated[bool, typer.Option("--sql", help="Print the script for a DBA; connect to nothing.")] = False,
    reason: Reason = None,
) -> None:
    """Guard every table by row-level security.

    It makes three groups, here for the schema dutiful: dutiful_application for processes that enqueue and look,
    dutiful_worker for workers, dutiful_member for people and services that log in themselves and see but their own
    tenants. Grant them to your login roles; then restart servers and workers. It can be run again and again.

    \b
    Examples:
      dutiful tenants on
      dutiful tenants on --sql | psql shop
    """
    if sql:
        typer.echo(guarding(target(ctx).any_app().make_store()).tenants_sql(), nl=False)
        return
    _set_up(ctx, lambda operator: operator.enable(reason))
    typer.echo("tenants are on: grant the groups to your login roles, then restart servers and workers")


@tenants.command()
def off(ctx: typer.Context, reason: Reason = None) -> None:
    """Take the guard away again; members lose all their rights, for nothing would keep them apart.

    Groups and bindings stay, for the next time.
    """
    _set_up(ctx, lambda operator: operator.disable(reason))
    typer.echo("tenants are off: restart servers and workers")


@tenants.command()
def status(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Say whether tenants are on, and which roles see which."""
    found = _set_up(ctx, lambda operator: operator.status())
    if as_json:
        print_json(found)
        return
    typer.echo(f"tenants are {'on' if found.enabled else 'off'}; this is role {found.role}")
    if found.enabled:
        typer.echo(f"guarded: {', '.join(found.guarded)}")
    print_table(
        ("role", "group", "tenants"),
        ((m.role, m.group, ", ".join(m.tenants) if m.group == "member" else "all") for m in found.members),
        empty="no role is in any of the groups",
    )


@tenants.command()
def bind(
    ctx: typer.Context,
    role: Role,
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="What it is to see.")],
    reason: Reason = None,
) -> None:
    """Let a login role see a tenant, and no other but those it is bound to already.

    \b
    Examples:
      dutiful tenants bind acme_reports acme
    """
    if _set_up(ctx, lambda operator: operator.bind(role, tenant, reason)):
        typer.echo(f"role {role} sees tenant {tenant}")
    else:
        typer.echo(f"role {role} was bound to tenant {tenant} already")
    if not _set_up(ctx, lambda operator: operator.status()).enabled:
        note("note: tenants are off, so it cannot see anything yet: `dutiful tenants on`")


@tenants.command()
def unbind(
    ctx: typer.Context,
    role: Role,
    tenant: Annotated[str | None, typer.Argument(metavar="[TENANT]", help="All, unless one is named.")] = None,
    reason: Reason = None,
) -> None:
    """Let a login role see a tenant no more, or none at all."""
    freed = _set_up(ctx, lambda operator: operator.unbind(role, tenant, reason))
    if freed:
        typer.echo(f"role {role} no longer sees {', '.join(freed)}")
    else:
        typer.echo(f"role {role} was not bound to {tenant or 'any tenant'}")


def _set_up(ctx: typer.Context, work: Callable[[Tenants], Coroutine[Any, Any, T]]) -> T:
    async def session(client: Client) -> T:
        guarding(client.store)  # refused before anything is put on record
        return await work(Tenants(client, Principal(name=os_user(), origin=Origin.CLI)))

    return run(ctx, session)
