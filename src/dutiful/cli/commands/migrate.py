"""`migrate`: creates or updates the tables."""

import asyncio
from typing import Annotated

import typer

from dutiful.cli.output.printing import say
from dutiful.cli.target import sqlite_file, target
from dutiful.core.duration import duration


def register(cli: typer.Typer) -> None:
    cli.command(rich_help_panel="Set up")(migrate)


def migrate(
    ctx: typer.Context,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="DURATION", help="How long to wait for others' locks [1m]."),
    ] = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the script for a DBA; connect to nothing.")] = False,
) -> None:
    """Create or update Dutiful's tables, and store the payload rules of the app.

    With an app, its rules are in the database from then on: jobs enqueued by SQL follow them before any worker has
    started. It can be repeated, and run by several processes at once. If another session keeps a lock that it needs,
    it says which one, and gives up. A SQLite file is also migrated when it is opened; Postgres
    only by this command.

    \b
    Examples:
      dutiful migrate
      dutiful migrate --wait 10m
      dutiful migrate --sql --database-url postgresql://localhost/shop > dutiful.sql
    """
    app = target(ctx).any_app()
    store = app.make_store()
    if sql:
        typer.echo(store.migration_sql(), nl=False)
        return
    path = sqlite_file(store)
    if path is not None and not path.exists():
        say(f"creating {path}")
    for name in asyncio.run(app.migrate("1m" if wait is None else duration(wait, "--wait"))):
        say(f"applied {name}")
    say(f"{store.url} is up to date")
