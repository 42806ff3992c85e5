"""`migrate`: creates or updates the tables."""

import asyncio
from typing import Annotated

import typer

from dutiful.cli.target import sqlite_file, target


def register(cli: typer.Typer) -> None:
    cli.command(rich_help_panel="Set up")(migrate)


def migrate(
    ctx: typer.Context,
    sql: Annotated[bool, typer.Option("--sql", help="Print the script for a DBA; connect to nothing.")] = False,
) -> None:
    """Create or update Dutiful's tables.

    It can be repeated, and run by several processes at once. A SQLite file is also migrated when it is opened; Postgres
    only by this command.

    \b
    Examples:
      dutiful migrate
      dutiful migrate --sql --database-url postgresql://localhost/shop > dutiful.sql
    """
    store = target(ctx).any_app().make_store()
    if sql:
        typer.echo(store.migration_sql(), nl=False)
        return
    path = sqlite_file(store)
    if path is not None and not path.exists():
        typer.echo(f"creating {path}")
    for name in asyncio.run(store.migrate()):
        typer.echo(f"applied {name}")
    typer.echo(f"{store.url} is up to date")
