"""Log lines that say which job they are about, and that nobody can forge."""

import json
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, NamedTuple, TextIO

from dutiful.context import CURRENT
from dutiful.core import ids
from dutiful.core.error_info import message_of
from dutiful.core.job import Claim, Lapsed

FIELDS = ("job", "kind", "attempt", "tenant", "correlation_id", "worker")
_SHOWN = ("job", "kind", "attempt", "tenant", "correlation_id")  # in text, where the worker is a matter of the place
_WIDER = ("tenant", "correlation_id")
# What is not of the caller's making; the last is uvicorn's, the message once more with colours.
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}
_INDENT = "    "

WORKER: ContextVar[str | None] = ContextVar("dutiful_worker", default=None)
"""The worker whose code is running, by its id."""

ABOUT: ContextVar[Mapping[str, Any] | None] = ContextVar("dutiful_about", default=None)
"""The fields of the job that runs where there is no context: in a process of its handler's own."""


def about(job: Claim | Lapsed) -> dict[str, Any]:
    """The fields of a line about a job that is not running here: `log.warning(…, extra=about(claim))`."""
    fields = {"job": ids.public(job.job_id), "kind": job.kind, "attempt": job.attempt}
    if isinstance(job, Claim):
        fields |= {"tenant": job.tenant, "correlation_id": job.correlation}
    return fields


def running() -> Mapping[str, Any]:
    """The fields of the job whose handler runs here and now; none if there is none."""
    context = CURRENT.get()
    if context is None:
        return ABOUT.get() or {}
    return {
        "job": context.public_id,
        "kind": context.kind,
        "attempt": context.attempt,
        "tenant": context.tenant,
        "correlation_id": context.correlation_id,
    }


class JobFields(logging.Filter):
    """Gives every record the fields above, None where there is nothing to say; for a handler, not for a logger.

    Those of the running job win over what a caller gives as `extra`: whoever looks for a job finds all its lines.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        fields = vars(record)
        fields.update(running())
        for name in FIELDS:
            fields.setdefault(name, None)
        if fields["worker"] is None:
            fields["worker"] = WORKER.get()
        return True


class TextLines(logging.Formatter):
    """One line a record; what follows it, such as a traceback, is indented, so that no message passes for a line."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        head = f"{self.formatTime(record)} {record.levelname} {record.name} {message}"
        # A message that names its job says the rest of it as well.
        names = _WIDER if str(getattr(record, "job", None)) in message else _SHOWN
        told = " ".join(f"{name}={_word(value)}" for name in names if (value := getattr(record, name, None)))
        more = [line for text in _more(self, record) for line in text.splitlines()]
        return "\n".join([_one_line(f"{head} [{told}]" if told else head), *(_INDENT + _one_line(one) for one in more)])


class JsonLines(logging.Formatter):
    """One JSON object a record, in ASCII: there is no way to break the line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info and (error := record.exc_info[1]) is not None:
            line["exception"] = {
                "type": type(error).__qualname__,
                "message": message_of(error),
                "traceback": self.formatException(record.exc_info),
            }
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in FIELDS}
        if not extra:
            return json.dumps(line, default=_text)
        try:
            return json.dumps({**line, "extra": extra}, default=_text, allow_nan=False)
        except (TypeError, ValueError, RecursionError):  # whatever callers put there, the line is not lost
            return json.dumps({**line, "extra": _text(extra)}, default=_text)


FORMATTERS: Mapping[str, type[logging.Formatter]] = {"text": TextLines, "json": JsonLines}


class Shape(NamedTuple):
    """How a process of ours logs, so that its children do the same."""

    level: int
    format: str


class _Output(logging.StreamHandler[TextIO]):
    """What we ourselves put on the root logger: lines on stderr."""

    def __init__(self, format: str) -> None:
        super().__init__()
        self.addFilter(JobFields())
        self.reformat(format)

    def reformat(self, format: str) -> None:
        self.shape = format
        self.setFormatter(FORMATTERS[format]())


def configure(level: int, format: str) -> None:
    """Log to stderr; if the process has a configuration of its own already, that is left alone."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_Output(format))
        root.setLevel(level)


def reformat(format: str) -> None:
    """Another format for what `configure` has set up, if that still stands."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Output):
            handler.reformat(format)


def shape() -> Shape | None:
    """What `configure` has set up here; None if it was not asked, or somebody else has taken over."""
    root = logging.getLogger()
    own = next((handler for handler in root.handlers if isinstance(handler, _Output)), None)
    return None if own is None else Shape(root.level, own.shape)


def _more(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    told = []
    if record.exc_info and record.exc_info[1] is not None:
        told.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        told.append(formatter.formatStack(record.stack_info))
    return told


def _word(value: object) -> str:
    text = str(value)
    return text if text and not any(c.isspace() or c in '"[]=' for c in text) else json.dumps(text)


def _one_line(text: str) -> str:
    """A terminal obeys control characters, and a line break would begin a line that nobody logged."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"(it could not be shown: {type(error).__name__})"
