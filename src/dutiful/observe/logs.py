"""Log lines that say which job they are about, and that nobody can forge."""

import json
import logging
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, NamedTuple, TextIO

from dutiful.context import CURRENT
from dutiful.core import ids
from dutiful.core.error_info import message_of
from dutiful.core.job import Claim, JobRecord, Lapsed
from dutiful.core.sensitive import redact

FIELDS = ("job", "kind", "attempt", "tenant", "correlation_id", "worker")
_SHOWN = ("job", "kind", "attempt", "tenant", "correlation_id")  # in text, where the worker is a matter of the place
SPAN = ("trace_id", "span_id")  # of OpenTelemetry, where tracing is on
# What is not of the caller's making; the last is uvicorn's, the message once more with colours.
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}
_NOT_EXTRA = {*_STANDARD, *FIELDS, *SPAN}
_NO_JSON = (TypeError, ValueError, RecursionError)
_INDENT = "    "
# What is kept comes first: a backslash of the text's own, and both halves of a pair.
_REFUSED = re.compile(r"(\\\\|\\ud[89ab]..\\ud[c-f]..)|\\ud[89a-f]..|\\u0000")

WORKER: ContextVar[str | None] = ContextVar("dutiful_worker", default=None)
"""The worker whose code is running, by its id."""

ABOUT: ContextVar[Mapping[str, Any] | None] = ContextVar("dutiful_about", default=None)
"""The fields of the job that runs where there is no context: in a process of its handler's own."""


def about(job: Claim | Lapsed | JobRecord) -> dict[str, Any]:
    """The fields of a line about a job that is not running here: `log.warning(…, extra=about(claim))`."""
    job_id, correlation = (job.id, job.correlation_id) if isinstance(job, JobRecord) else (job.job_id, job.correlation)
    return {
        "job": ids.public(job_id),
        "kind": job.kind,
        "attempt": job.attempt,
        "tenant": job.tenant,
        "correlation_id": correlation,
    }


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


_current_span: Callable[[], Mapping[str, str]] = dict


def follow(current_span: Callable[[], Mapping[str, str]]) -> None:
    """Tracing is on in this process: from now on its lines name the span that is current, with the fields of SPAN."""
    global _current_span
    _current_span = current_span


class JobFields(logging.Filter):
    """Gives every record the fields above, None where there is nothing to say; for a handler, not for a logger.

    Those of the running job win over what a caller gives as `extra`: whoever looks for a job finds all its lines.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        fields, job = vars(record), running()
        fields.update(job)
        fields.update(_current_span())
        worker = job.get("worker") or WORKER.get()
        if job or worker is not None:
            fields["worker"] = worker
        for name in (*FIELDS, *SPAN):
            fields.setdefault(name, None)
        return True


class TextLines(logging.Formatter):
    """One line a record; what follows it, such as a traceback, is indented, so that no message passes for a line."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{self.formatTime(record)} {record.levelname} {record.name} {_message(record)}"
        # All of them, also where the message names the job: what it says of itself may be somebody's invention.
        fields = {name: value for name in _SHOWN if (value := getattr(record, name, None)) is not None}
        told = " ".join(f"{name}={_word(value)}" for name, value in fields.items())
        more = [line for text in _more(self, record) for line in text.splitlines()]
        return "\n".join([_one_line(f"{head} [{told}]" if told else head), *(_INDENT + _one_line(one) for one in more)])


class JsonLines(logging.Formatter):
    """One JSON object a record, in ASCII: there is no way to break the line, and every reader of JSON takes it."""

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
        except _NO_JSON:  # whatever callers put there, the line is not lost
            if extra:
                line["extra"] = {_text(name): _shown(value) for name, value in extra.items()}
            return _readable(json.dumps({name: _shown(value) for name, value in line.items()}, default=_text))


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
        logging.captureWarnings(True)  # Python would write them between our lines, in a shape of its own


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
        told.append(_clean(record, formatter.formatException(record.exc_info)))
    if record.stack_info:
        told.append(formatter.formatStack(record.stack_info))
    return told


def _message(record: logging.LogRecord) -> str:
    try:
        message = record.getMessage()
    except Exception as error:  # logging itself would write a traceback where a line should be
        message = f"{_text(record.msg)} (its arguments could not be put in: {type(error).__name__})"
    return _clean(record, message)


def _clean(record: logging.LogRecord, text: str) -> str:
    """Without secrets, if the line is ours: it may quote what others have told us."""
    return redact(text) if str(record.name).startswith("dutiful.") else text


def _word(value: object) -> str:
    text = _text(value)
    return text if text and not any(c.isspace() or c in '"[]=' for c in text) else json.dumps(text)


def _one_line(text: str) -> str:
    """A terminal obeys control characters, and a line break would begin a line that nobody logged."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _readable(line: str) -> str:
    """Python writes half of a surrogate pair, and NUL, as any other character; readers and databases refuse them."""
    if "\\ud" not in line and "\\u0000" not in line:
        return line
    return _REFUSED.sub(lambda found: found[1] or r"\ufffd", line)


def _shown(value: object) -> object:
    """As it is, if JSON knows it, or else as text."""
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
