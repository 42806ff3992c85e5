"""All commands in one tree."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import CommandInfo, OptionInfo

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
# What help calls the value of an option that does not name it itself; a flag has none.
VALUES = {str: "TEXT", int: "NUMBER", bool: ""}


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
    _name_values(_choose)
    for command in _commands(cli):
        assert command.callback is not None
        command.help = _unwrapped(command.callback.__doc__ or "")
        _name_values(command.callback)
    return cli


def _commands(cli: typer.Typer) -> Iterator[CommandInfo]:
    yield from cli.registered_commands
    for group in cli.registered_groups:
        if group.typer_instance is not None:
            yield from _commands(group.typer_instance)


def _unwrapped(help: str) -> str:
    """Joins the lines of each paragraph, because terminals have widths of their own."""
    paragraphs = inspect.cleandoc(help).split("\n\n")
    return "\n\n".join(one if "\b" in one else " ".join(one.split()) for one in paragraphs)


def _name_values(function: Callable[..., Any]) -> None:
    for hint in get_type_hints(function, include_extras=True).values():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, OptionInfo) and option.metavar is None:
                option.metavar = _value(hint.__origin__)


def _value(hint: Any) -> str | None:
    """None for a choice, whose values are shown."""
    named = (hint, *get_args(hint), *(arg for part in get_args(hint) for arg in get_args(part)))
    return next((word for kind, word in VALUES.items() if kind in named), None)


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
