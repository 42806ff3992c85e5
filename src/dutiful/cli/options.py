"""Options that several commands share, and how their values are read."""

import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dutiful.app import Dutiful
from dutiful.core.duration import duration
from dutiful.core.errors import UsageError
from dutiful.observe import logs
from dutiful.settings import load

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
Details = Annotated[
    bool, typer.Option("--details", help="With --json: payloads, and all else that a list leaves out, however large.")
]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; kept in the audit trail.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Act as this tenant, who sees nothing of others.")]
# Of a command whose argument may be a number: -1 is no option, so that the error names the argument.
NEGATIVE = {"ignore_unknown_options": True}
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option(help="text or json, one line a record.")]


def set_up_logging(level: str, format: str | None) -> None:
    """Configures logging before the app is imported, so that its log records are shown, too."""
    found = logging.getLevelNamesMapping().get(level.upper())
    if found is None:
        raise UsageError(f"log level {level!r} must be one of: debug, info, warning, error")
    # Without a profile, because only the app may know it.
    logs.configure(found, load({"log_format": format, "profile": ""}).log_format)


def adopt_log_format(app: Dutiful, format: str | None) -> None:
    """Switches to the app's log format, unless the option sets one."""
    app.configure(log_format=format)
    logs.reformat(app.settings.log_format)


def read_moment(text: str | None, option: str) -> datetime | None:
    """ "2h" is two hours ago; "2030-01-31T09:00+02:00" is that time, which needs a time zone."""
    if text is None:
        return None
    try:
        return read_time(text, option)
    except ValueError:
        try:
            return datetime.now(UTC) - duration(text, option)
        except UsageError:
            raise UsageError(
                f"{option} {text!r:.80} is neither a length of time like 2h nor a time like 2030-01-31T09:00Z"
            ) from None


def read_time(text: str, option: str) -> datetime:
    """An ISO 8601 time with a time zone; ValueError if it is no time."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise UsageError(f"{option} {text!r:.80} has no time zone; add one, as in {found.isoformat()}+02:00 or …Z")
    return found


def read_payload(given: str) -> dict[str, Any]:
    """The value of --payload: JSON, @FILE, or - for stdin."""
    source, text = _read(given)
    try:
        payload = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError(
            f'the payload ({source}) is not JSON: {error}; it has to be an object like {{"n": 1}}'
        ) from error
    if not isinstance(payload, dict):
        raise UsageError(f'the payload ({source}) is not an object; write it like {{"n": 1}}')
    return payload


def _read(given: str) -> tuple[str, bytes]:
    if given == "-":
        return "from stdin", sys.stdin.buffer.read()
    if not given.startswith("@"):
        return "from --payload", given.encode("utf-8", "surrogateescape")
    try:
        return f"from {given[1:]}", Path(given[1:]).read_bytes()
    except OSError as error:
        raise UsageError(f"--payload {given}: the file cannot be read: {error.strerror}") from error
