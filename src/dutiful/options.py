"""Options: how one job differs from its kind's defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeVar
from uuid import UUID

from dutiful.core import ids
from dutiful.core.duration import LONGEST, Duration, duration
from dutiful.core.errors import UsageError
from dutiful.core.job import OnConflict, OnFailure, Scope, Unique
from dutiful.core.json import check_name
from dutiful.core.retry.policy import Retry
from dutiful.core.settle import Policy
from dutiful.core.webhooks.message import Receiver, read_receiver

E = TypeVar("E", bound=Enum)
MAX_INT = 2_147_483_647
# Placeholders of a kind that declares nothing; the settings have the real values.
DEFAULT_RETRY = Retry()
NO_TIMEOUT = LONGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one job; those that are None keep the kind's default."""

    priority: int | None = None
    queue: str | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None
    unique: Unique | None = None
    tenant: str | None = None
    correlation_id: str | None = None
    parent_id: UUID | None = None
    retry_of: UUID | None = None
    subject: Mapping[str, Any] | None = None
    max_attempts: int | None = None
    depends_on: tuple[UUID, ...] = ()
    on_failure: OnFailure | None = None  # of those that it depends on; None: cancel
    created_by: str | None = None
    id: UUID | None = None
    within: Any = None
    webhook: Receiver | None = None  # posted to when the job ends


def read_options(base: Options, changes: dict[str, Any]) -> Options:
    """Checks `changes` one by one; each error names the option and the remedy."""
    unknown = set(changes) - set(Options.__slots__)
    if unknown:
        raise UsageError(f"there is no option {sorted(unknown)[0]!r}; there are: {', '.join(Options.__slots__)}")
    read: dict[str, Any] = {}
    for name, value in changes.items():
        read[name] = value if value is None or name not in _READERS else _READERS[name](value)
    if read.get("depends_on", ()) is None:
        del read["depends_on"]
    options = replace(base, **read)
    if options.run_at is not None and options.delay is not None:
        raise UsageError("give run_at or delay, not both")
    return options


def read_policy(retry: Any, max_crashes: Any, on_crash: Any) -> Policy:
    """The policy that a kind declares for failures and crashes."""
    whole_number(max_crashes, "max_crashes", 1)
    if on_crash not in ("retry", "fail"):
        raise UsageError(f'on_crash {on_crash!r} must be "retry" or "fail"')
    return Policy(read_retry(retry) or DEFAULT_RETRY, max_crashes, on_crash == "retry")


def read_retry(value: Any) -> Retry | None:
    if isinstance(value, str):
        return Retry.named(value)
    if isinstance(value, type):
        raise UsageError(f"retry is the class {value.__name__}: give one of it, with parentheses, as in retry=Retry()")
    if value is not None and not isinstance(value, Retry):
        raise UsageError(f"retry {value!r} must be a Retry, as in retry=Retry(max_attempts=3), or the name of one")
    return value


def read_timeout(value: Duration | None) -> timedelta | None:
    """Reads a timeout; None: as in the settings; NO_TIMEOUT: no limit, whatever the settings are."""
    if value is None:
        return None
    if value == "never":
        return NO_TIMEOUT
    timeout = duration(value, "timeout")
    if not timeout:
        raise UsageError('timeout 0 leaves a job no time: give it some, or "never" for no limit')
    return timeout


def whole_number(value: Any, name: str, least: int, most: int = MAX_INT, hint: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        bound = f" to {most:,}" if most == MAX_INT and isinstance(value, int) and value > most else ""
        raise UsageError(f"{name} {value!r:.80} must be a whole number from {least}{bound}{hint}")
    return value


def check_priority(value: Any) -> int:
    return whole_number(value, "priority", 0, hint=", where lower runs first; the default is 100")


def _read_run_at(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise UsageError(f"run_at {value!r} must be a datetime; for a span of time use delay")
    if value.tzinfo is None or value.utcoffset() is None:
        raise UsageError(f"run_at {value} has no time zone; give one, as in datetime.now(UTC) + timedelta(hours=1)")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise UsageError(f"run_at {value} is no date in UTC; give one within the calendar") from None


def _read_unique(value: Any) -> Unique:
    if isinstance(value, str):
        value = Unique(value)
    if not isinstance(value, Unique):
        raise UsageError(f"unique {value!r} must be a text or a Unique(…)")
    check_name(value.key, "unique", limit=500)
    scope = one_of(Scope, value.scope, "unique.scope")
    action = one_of(OnConflict, value.on_conflict, "unique.on_conflict")
    if (scope is Scope.WINDOW) != (value.window is not None):
        raise UsageError("unique: give a window with scope window, and only then, as in window=timedelta(hours=1)")
    window = None if value.window is None else duration(value.window, "unique.window")
    return Unique(value.key, scope, action, window, value.across_kinds)


def one_of(choices: type[E], value: Any, name: str) -> E:
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(choice.value for choice in choices)
        raise UsageError(f"{name} {value!r:.80} must be one of: {known}") from None


def read_id(value: Any, name: str = "job_id") -> UUID:
    """A job's id, given as itself, as text, or by the handle or record of the job."""
    value = getattr(value, "id", value)
    if not isinstance(value, UUID | str):
        raise UsageError(f"{name} {value!r:.80} must be a job's id: a UUID, or its text")
    return value if isinstance(value, UUID) else ids.parse_any(value)


def _read_own_id(value: Any) -> UUID:
    job_id = read_id(value, "id")
    if job_id.version != 7:
        raise UsageError(f"id {job_id} must be a version 7 UUID, as app.new_id() makes: retention goes by its time")
    return job_id


def _read_needs(value: Any) -> tuple[UUID, ...]:
    items = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
    return tuple(dict.fromkeys(read_id(item, "depends_on") for item in items))


def _read_subject(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise UsageError(f'subject {value!r} must be a small object of references, as in {{"order": 42}}')
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "priority": check_priority,
    "queue": lambda v: check_name(v, "queue"),
    "run_at": _read_run_at,
    "delay": lambda v: duration(v, "delay"),
    "unique": _read_unique,
    "tenant": lambda v: check_name(v, "tenant"),
    "correlation_id": lambda v: check_name(str(v), "correlation_id"),
    "created_by": lambda v: check_name(v, "created_by"),
    "parent_id": lambda v: read_id(v, "parent_id"),
    "retry_of": lambda v: read_id(v, "retry_of"),
    "id": _read_own_id,
    "max_attempts": lambda v: whole_number(v, "max_attempts", 1, hint=", the first run included"),
    "depends_on": _read_needs,
    "on_failure": lambda v: one_of(OnFailure, v, "on_failure"),
    "subject": _read_subject,
    "webhook": read_receiver,
}
