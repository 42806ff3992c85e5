"""How a process that runs for long logs, as its options and settings say."""

import logging
from typing import Annotated

import typer

from dutiful.app import Dutiful
from dutiful.core.errors import UsageError
from dutiful.observe import logs
from dutiful.settings import load

LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option(help="text or json, one line a record.")]


def set_up(level: str, format: str | None) -> None:
    """Before the app is imported: what that logs by then is told as well."""
    found = logging.getLevelNamesMapping().get(level.upper())
    if found is None:
        raise UsageError(f"log level {level!r} must be one of: debug, info, warning, error")
    # Without a profile, for that may be one that only the app knows.
    logs.configure(found, load({"log_format": format, "profile": ""}).log_format)


def adopt(app: Dutiful, format: str | None) -> None:
    """The app may have its own mind, and the option wins over that."""
    app.configure(log_format=format)
    logs.reformat(app.settings.log_format)
