"""`tenants`: separation of tenants by Postgres itself, and which login role sees which tenant."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import typer

from dutiful.cli.options import AsJson, Reason
from dutiful.cli.output.printing import note, print_json, print_table, say
from dutiful.cli.target import run, target, this_user
from dutiful.client.client import Client
from dutiful.operator import Operator
from dutiful.operator.tenants import Tenants, tenant_store

T = TypeVar("T")
tenants = typer.Typer(help="Let Postgres separate tenants, and bind its login roles to them.", no_args_is_help=True)

Role = Annotated[str, typer.Argument(metavar="ROLE", help="A login role of the database.")]


def register(cli: typer.Typer) -> None:
    cli.add_typer(tenants, name="tenants", rich_help_panel="Set up")


@tenants.command()
def on(
    ctx: typer.Context,
    sql: Annotated[bool, typer.Option("--sql", help="Print the script for a DBA; connect to nothing.")] = False,
    reason: Reason = None,
) -> None:
    """Protect every table by row-level security.

    It creates three groups, here for the schema dutiful: dutiful_operator for processes that enqueue and read,
    dutiful_worker for workers, dutiful_member for people and services that log in themselves and see only their own
    tenants. Grant them to your login roles; then restart servers and workers. It can be repeated.

    \b
    Examples:
      dutiful tenants on
      dutiful tenants on --sql | psql shop
    """
    if sql:
        typer.echo(tenant_store(target(ctx).any_app().make_store()).sql(), nl=False)
        return
    _set_up(ctx, lambda operator: operator.enable(reason))
    say("tenants are on: grant the groups to your login roles, then restart servers and workers")


@tenants.command()
def off(ctx: typer.Context, reason: Reason = None) -> None:
    """Remove the protection; members lose all their rights, because nothing would separate them.

    Groups and bindings stay.
    """
    _set_up(ctx, lambda operator: operator.disable(reason))
    say("tenants are off: restart servers and workers")


@tenants.command()
def status(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show whether tenants are on, and which roles see which."""
    found = _set_up(ctx, lambda operator: operator.status())
    if as_json:
        print_json(found)
        return
    say(f"tenants are {'on' if found.enabled else 'off'}; this is role {found.role}")
    if found.enabled:
        say(f"isolated: {', '.join(found.isolated)}")
    print_table(
        ("role", "group", "tenants"),
        ((m.role, m.group, ", ".join(m.tenants) if m.group == "member" else "all") for m in found.members),
        empty="no role is in any of the groups",
    )


@tenants.command()
def bind(
    ctx: typer.Context,
    role: Role,
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="The tenant that it may see.")],
    reason: Reason = None,
) -> None:
    """Let a login role see a tenant, besides those that it is bound to already.

    \b
    Examples:
      dutiful tenants bind acme_reports acme
    """
    if _set_up(ctx, lambda operator: operator.bind(role, tenant, reason)):
        say(f"role {role} sees tenant {tenant}")
    else:
        say(f"role {role} was bound to tenant {tenant} already")
    if not _set_up(ctx, lambda operator: operator.status()).enabled:
        note("note: tenants are off, so it cannot see anything yet: `dutiful tenants on`")


@tenants.command()
def unbind(
    ctx: typer.Context,
    role: Role,
    tenant: Annotated[str | None, typer.Argument(metavar="[TENANT]", help="All, unless one is named.")] = None,
    reason: Reason = None,
) -> None:
    """Hide a tenant, or all tenants, from a login role."""
    freed = _set_up(ctx, lambda operator: operator.unbind(role, tenant, reason))
    if freed:
        say(f"role {role} no longer sees {', '.join(freed)}")
    else:
        say(f"role {role} was not bound to {tenant or 'any tenant'}")


def _set_up(ctx: typer.Context, work: Callable[[Tenants], Coroutine[Any, Any, T]]) -> T:
    async def session(client: Client) -> T:
        tenant_store(client.store)  # raises before the action is audited
        return await work(Operator(client, this_user()).tenants)

    return run(ctx, session)
