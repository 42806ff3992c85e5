"""All commands in one tree."""

import importlib
from typing import Annotated

import typer

from dutiful import __version__
from dutiful.cli.target import Target

# Which module registers which command: only that one is imported, so that it starts quickly.
VERBS = {
    "init": "init",
    "worker": "worker",
    "sql-worker": "sql_worker",
    "server": "server",
    "demo": "demo",
    "migrate": "migrate",
    "doctor": "doctor",
    "roles": "roles",
    "tenants": "tenants",
    "supervisor": "supervisors",
    "enqueue": "enqueue",
    "jobs": "jobs",
    "trace": "trace",
    "events": "events",
    "send-event": "send_event",
    "dead-letters": "dead_letters",
    "bulk": "bulk",
    "queues": "queues",
    "workers": "fleet",
    "stats": "queues",
    "metrics": "metrics",
    "alerts": "alerts",
    "pause": "fleet",
    "resume": "fleet",
    "drain": "fleet",
    "redeliver": "redeliver",
    "breakers": "breakers",
    "limits": "limits",
    "shares": "shares",
    "schedules": "schedules",
    "webhooks": "webhooks",
    "encryption": "encryption",
    "audit": "audit",
    "tokens": "tokens",
}


def build(verb: str | None) -> typer.Typer:
    """The command line with all commands, or with one if `verb` names it."""
    cli = typer.Typer(
        name="dutiful",
        help="Durable background jobs on the database you already have.",
        epilog="--app and --database-url may stand anywhere. Each command has its own help: dutiful jobs --help",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    cli.callback()(_choose)
    for module in [VERBS[verb]] if verb in VERBS else dict.fromkeys(VERBS.values()):
        importlib.import_module(f"dutiful.cli.commands.{module}").register(cli)
    return cli


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dutiful {__version__}")
        raise typer.Exit


def _choose(
    ctx: typer.Context,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Your app, as in jobs:app. Otherwise from DUTIFUL_APP, or from `app` in dutiful.toml.",
        ),
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The database; without --app, no app is imported then. Otherwise the app's own, or from "
            "DUTIFUL_DATABASE_URL, DATABASE_URL or dutiful.toml; by default sqlite:///dutiful.db.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    ctx.obj = Target(app, database_url)
