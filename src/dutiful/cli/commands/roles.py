"""`roles`: groups of database roles, each with the rights that it needs."""

from typing import Annotated

import typer

from dutiful.cli.options import Reason
from dutiful.cli.output.printing import note, say
from dutiful.cli.target import run, target, this_user
from dutiful.client.client import Client
from dutiful.operator import Operator
from dutiful.operator.tenants import tenant_store


def register(cli: typer.Typer) -> None:
    cli.command(rich_help_panel="Set up")(roles)


def roles(
    ctx: typer.Context,
    sql: Annotated[bool, typer.Option("--sql", help="Print the script for a DBA; connect to nothing.")] = False,
    reason: Reason = None,
) -> None:
    """Make groups of login roles in Postgres, each with the rights that it needs.

    Here for the schema dutiful: dutiful_client for processes that enqueue, cancel and read, dutiful_operator for those
    that also act, dutiful_worker for workers, dutiful_sql_worker for workers in SQL, which touch no table,
    dutiful_reader for those who only read, dutiful_member for clients that see their own tenants, once `dutiful tenants
    on` separates them. Everyone else loses all rights but the owner: dutiful_owner, which cannot log in. Grant the
    groups to your login roles; it can be repeated.

    \b
    Examples:
      dutiful roles
      dutiful roles --sql | psql shop
    """
    if sql:
        typer.echo(tenant_store(target(ctx).any_app().make_store()).roles_sql(), nl=False)
        return

    async def session(client: Client) -> str | None:
        tenant_store(client.store)  # raises before the action is audited
        return await Operator(client, this_user()).tenants.make_roles(reason)

    owner = run(ctx, session)
    say("the groups have their rights: grant them to your login roles")
    if owner is not None:
        note(
            f"note: the schema still belongs to {owner}, which can log in, because this role may not let another "
            "create schemas: run it as the owner of the database, or let a DBA run what `dutiful roles --sql` prints"
        )
