"""How one job may differ from its kind's defaults, each option checked as it is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from dutiful.core import ids
from dutiful.core.duration import LONGEST, Duration, duration
from dutiful.core.errors import UsageError
from dutiful.core.job import OnConflict, Scope, Unique
from dutiful.core.payload import check_name
from dutiful.core.retry import Retry
from dutiful.core.settle import Policy
from dutiful.core.webhook import Receiver, read_receiver

E = TypeVar("E", Scope, OnConflict)
MAX_INT = 2_147_483_647
# What a kind that declares nothing has; what stands for these is in the settings.
USUAL_RETRY = Retry()
NEVER = LONGEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one job differs from its kind's defaults."""

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
    created_by: str | None = None
    id: UUID | None = None
    within: Any = None
    webhook: Receiver | None = None  # who is told when the job ends


def read_options(base: Options, changes: dict[str, Any]) -> Options:
    """`changes` checked one by one; each error names the option and the remedy."""
    unknown = set(changes) - set(Options.__slots__)
    if unknown:
        raise UsageError(f"there is no option {sorted(unknown)[0]!r}; there are: {', '.join(Options.__slots__)}")
    read: dict[str, Any] = {}
    for name, value in changes.items():
        read[name] = None if value is None else _READERS.get(name, _as_it_is)(value)
    options = replace(base, **{n: v for n, v in read.items() if v is not None or n not in ("depends_on",)})
    if options.run_at is not None and options.delay is not None:
        raise UsageError("give run_at or delay, not both")
    return options


def read_policy(retry: Any, max_crashes: Any, on_crash: Any) -> Policy:
    """What a kind declares about its failures and crashes."""
    if isinstance(max_crashes, bool) or not isinstance(max_crashes, int) or max_crashes < 1:
        raise UsageError(f"max_crashes {max_crashes!r} must be a whole number from 1")
    if on_crash not in ("retry", "fail"):
        raise UsageError(f'on_crash {on_crash!r} must be "retry" or "fail"')
    return Policy(read_retry(retry) or USUAL_RETRY, max_crashes, on_crash == "retry")


def read_retry(value: Any) -> Retry | None:
    if isinstance(value, str):
        return Retry.named(value)
    if isinstance(value, type):
        raise UsageError(f"retry is the class {value.__name__}: give one of it, with parentheses, as in retry=Retry()")
    if value is not None and not isinstance(value, Retry):
        raise UsageError(f"retry {value!r} must be a Retry, as in retry=Retry(max_attempts=3), or the name of one")
    return value


def read_timeout(value: Duration | None) -> timedelta | None:
    """None: as the settings say; NEVER: without limit, whatever they say."""
    if value is None:
        return None
    if value == "never":
        return NEVER
    timeout = duration(value, "timeout")
    if not timeout:
        raise UsageError('timeout 0 leaves a job no time: give it some, or "never" for no limit')
    return timeout


def _as_it_is(value: Any) -> Any:
    return value


def check_priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INT:
        raise UsageError(
            f"priority {value!r} must be a whole number from 0, where lower runs first; the default is 100"
        )
    return value


def _read_run_at(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise UsageError(f"run_at {value!r} must be a datetime; for a span of time use delay")
    if value.tzinfo is None or value.utcoffset() is None:
        raise UsageError(f"run_at {value} has no time zone; give one, as in datetime.now(UTC) + timedelta(hours=1)")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise UsageError(f"run_at {value} is no date in UTC; give one within the calendar") from None


def _read_attempts(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_INT:
        raise UsageError(f"max_attempts {value!r} must be a whole number from 1, the first run included")
    return value


def _read_unique(value: Any) -> Unique:
    if isinstance(value, str):
        value = Unique(value)
    if not isinstance(value, Unique):
        raise UsageError(f"unique {value!r} must be a text or a Unique(…)")
    check_name(value.key, "unique", limit=500)
    scope = _one_of(Scope, value.scope, "unique.scope")
    action = _one_of(OnConflict, value.on_conflict, "unique.on_conflict")
    if (scope is Scope.WINDOW) != (value.window is not None):
        raise UsageError("unique: give a window with scope window, and only then, as in window=timedelta(hours=1)")
    window = None if value.window is None else duration(value.window, "unique.window")
    return Unique(value.key, scope, action, window, value.across_kinds)


def _one_of(choices: type[E], value: Any, name: str) -> E:
    try:
        return choices(value)
    except ValueError:
        raise UsageError(f"{name} {value!r} must be one of: {', '.join(choices)}") from None


def _read_uuid(name: str) -> Callable[[Any], UUID]:
    def read(value: Any) -> UUID:
        if isinstance(value, UUID):
            return value
        if isinstance(value, str):
            return ids.parse_any(value)
        raise UsageError(f"{name} {value!r} must be a job's id")

    return read


def _read_v7(value: UUID) -> UUID:
    if value.version != 7:
        raise UsageError(f"id {value} must be a version 7 UUID, as app.new_id() makes: retention goes by its time")
    return value


def _read_needs(value: Any) -> tuple[UUID, ...]:
    items = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
    read = _read_uuid("depends_on")
    return tuple(
        dict.fromkeys(read(getattr(item, "id", item) if not isinstance(item, UUID) else item) for item in items)
    )


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
    "parent_id": _read_uuid("parent_id"),
    "retry_of": _read_uuid("retry_of"),
    "id": lambda v: _read_v7(_read_uuid("id")(v)),
    "max_attempts": _read_attempts,
    "depends_on": _read_needs,
    "subject": _read_subject,
    "webhook": read_receiver,
}
