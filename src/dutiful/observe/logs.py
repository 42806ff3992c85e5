"""Log lines that name their job, and that no message can forge."""

import json
import logging
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, NamedTuple, TextIO

from dutiful.context import CURRENT, Context
from dutiful.core import ids
from dutiful.core.job import Claim, HeldClaim, JobRecord
from dutiful.core.redaction.redact import redact
from dutiful.core.retry.error_info import message_of

FIELDS = ("job", "kind", "attempt", "tenant", "correlation_id", "worker")
_SHOWN = ("job", "kind", "attempt", "tenant", "correlation_id")  # in text; the worker is known from the process
SPAN = ("trace_id", "span_id")  # of OpenTelemetry, where tracing is on
# Not given by the caller; the last is uvicorn's, the message with colours.
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}
_NOT_EXTRA = {*_STANDARD, *FIELDS, *SPAN}
_NO_JSON = (TypeError, ValueError, RecursionError)
_INDENT = "    "
# The first group is kept: an escaped backslash, and whole surrogate pairs.
_REFUSED = re.compile(r"(\\\\|\\ud[89ab]..\\ud[c-f]..)|\\ud[89a-f]..|\\u0000")

WORKER: ContextVar[str | None] = ContextVar("dutiful_worker", default=None)
"""The id of the worker whose code is running."""

PROCESS_JOB: ContextVar[Mapping[str, Any] | None] = ContextVar("dutiful_process_job", default=None)
"""The fields of the running job where there is no context: in a child process that runs a handler."""


def job_fields(job: Claim | HeldClaim | JobRecord) -> dict[str, Any]:
    """The fields of a line about a job that is not running here: `log.warning(…, extra=job_fields(claim))`."""
    if isinstance(job, JobRecord):
        return _fields(ids.public(job.id), job.correlation_id, job)
    return _fields(ids.public(job.job_id), job.correlation, job)


def _fields(public_id: str, correlation: str, job: Claim | HeldClaim | JobRecord | Context) -> dict[str, Any]:
    return dict(zip(_SHOWN, (public_id, job.kind, job.attempt, job.tenant, correlation), strict=True))


def running_job_fields() -> Mapping[str, Any]:
    """The log fields of the job whose handler is running; empty if there is none."""
    context = CURRENT.get()
    if context is None:
        return PROCESS_JOB.get() or {}
    return _fields(context.public_id, context.correlation_id, context)


_current_span: Callable[[], Mapping[str, str]] = dict


def set_span_reader(current_span: Callable[[], Mapping[str, str]]) -> None:
    """Adds the ids of the current span to all log lines of this process."""
    global _current_span
    _current_span = current_span


class JobFields(logging.Filter):
    """Gives every record the fields above, None where unknown; for a handler, not for a logger.

    Those of the running job win over `extra` of a caller, so that a search for a job finds all its lines.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        fields, job = vars(record), running_job_fields()
        fields.update(job)
        fields.update(_current_span())
        worker = job.get("worker") or WORKER.get()
        if job or worker is not None:
            fields["worker"] = worker
        for name in (*FIELDS, *SPAN):
            fields.setdefault(name, None)
        return True


class TextLines(logging.Formatter):
    """One line a record; a traceback after it is indented, so that no message passes for a log line."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{self.formatTime(record)} {record.levelname} {record.name} {_message(record)}"
        # All of them, even if the message names the job, because a message may be forged.
        fields = {name: value for name in _SHOWN if (value := getattr(record, name, None)) is not None}
        shown = " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())
        more = [line for text in _traces(self, record) for line in text.splitlines()]
        return "\n".join(
            [_one_line(f"{head} [{shown}]" if shown else head), *(_INDENT + _one_line(one) for one in more)]
        )


class JsonLines(logging.Formatter):
    """One JSON object a record, in ASCII, so that no value can break the line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
        }
        line |= {name: value for name in (*FIELDS, *SPAN) if (value := getattr(record, name, None)) is not None}
        if record.exc_info and (error := record.exc_info[1]) is not None:
            line["exception"] = {
                "type": type(error).__qualname__,
                "message": _clean(record, message_of(error)),
                "traceback": _clean(record, self.formatException(record.exc_info)),
            }
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        if extra := {name: value for name, value in vars(record).items() if name not in _NOT_EXTRA}:
            line["extra"] = extra
        try:
            return _readable(json.dumps(line, default=_text, allow_nan=False))
        except _NO_JSON:  # no value of a caller may lose the line
            if extra:
                line["extra"] = {_text(name): _shown(value) for name, value in extra.items()}
            return _readable(json.dumps({name: _shown(value) for name, value in line.items()}, default=_text))


FORMATTERS: Mapping[str, type[logging.Formatter]] = {"text": TextLines, "json": JsonLines}


class LogConfig(NamedTuple):
    """How a process logs, so that its children do the same."""

    level: int
    format: str


class StderrHandler(logging.StreamHandler[TextIO]):
    """The handler that `configure` adds to the root logger."""

    def __init__(self, format: str) -> None:
        super().__init__()
        self.addFilter(JobFields())
        self.reformat(format)

    def reformat(self, format: str) -> None:
        self.format_name = format
        self.setFormatter(FORMATTERS[format]())


def configure(level: int, format: str) -> None:
    """Logs to stderr, unless the process has configured logging already."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(StderrHandler(format))
        root.setLevel(level)
        logging.captureWarnings(True)  # otherwise Python writes them between our lines, in another format


def reformat(format: str) -> None:
    """Changes the format of what `configure` has set up, if that is still in place."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, StderrHandler):
            handler.reformat(format)


def current_config() -> LogConfig | None:
    """Returns what `configure` has set up; None if logging is configured otherwise."""
    root = logging.getLogger()
    own = next((handler for handler in root.handlers if isinstance(handler, StderrHandler)), None)
    return None if own is None else LogConfig(root.level, own.format_name)


def _traces(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    error = record.exc_info if record.exc_info and record.exc_info[1] is not None else None
    traces = [_clean(record, formatter.formatException(error))] if error else []
    return [*traces, formatter.formatStack(record.stack_info)] if record.stack_info else traces


def _message(record: logging.LogRecord) -> str:
    try:
        message = record.getMessage()
    except Exception as error:  # logging itself would write a traceback where a line should be
        message = f"{_text(record.msg)} (its arguments could not be put in: {type(error).__name__})"
    return _clean(record, message)


def _clean(record: logging.LogRecord, text: str) -> str:
    """Redacts secrets from lines of Dutiful, which may quote errors of others."""
    return redact(text) if str(record.name).startswith("dutiful.") else text


def _quoted(value: object) -> str:
    text = _text(value)
    return text if text and not any(c.isspace() or c in '"[]=' for c in text) else json.dumps(text)


def _one_line(text: str) -> str:
    """Escapes control characters, which a terminal obeys, and line breaks, which would forge a line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _readable(line: str) -> str:
    """Replaces lone surrogates and NUL, which Python writes, but many readers and databases refuse."""
    if "\\ud" not in line and "\\u0000" not in line:
        return line
    return _REFUSED.sub(lambda found: found[1] or r"\ufffd", line)


def _shown(value: object) -> object:
    """Returns the value if it can be written as JSON, else its text."""
    try:
        json.dumps(value, default=_text, allow_nan=False)
    except _NO_JSON:
        return _text(value)
    return value


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"(it could not be shown: {type(error).__name__})"
