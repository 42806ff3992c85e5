"""Everything that can be set: frozen, from a profile, a file, the environment, then arguments, the last one winning."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from dutiful.core.backoff import Exponential, Jitter
from dutiful.core.breaker import BreakerPolicy
from dutiful.core.duration import duration
from dutiful.core.endpoint import Network, read_network
from dutiful.core.errors import UsageError
from dutiful.core.profile import declare, joined, resolve
from dutiful.core.retry import Retry
from dutiful.core.webhook import key_of

DEFAULT_URL = "sqlite:///dutiful.db"
ANY = "*"
DEFAULT_QUEUE = "default"  # of kinds that name none


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """Slots in a worker and the queues they serve; ("*",) is any."""

    name: str
    slots: int
    queues: tuple[str, ...] = (ANY,)


DEFAULT_LANES = (LaneSettings("fast", 3, ("fast",)), LaneSettings("general", 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    app: str | None = None  # which app the command line works with, as in "jobs:app"
    database_url: str = DEFAULT_URL
    direct_url: str | None = None  # past a pooler, for LISTEN and named locks
    schema: str = "dutiful"
    profile: str | None = None  # a named set of settings, below all others
    sqlite_driver: str = "apsw"
    pool_size: int = 8
    lock_connections: int = 10  # for named locks, besides the pool; open only while they are needed
    lanes: tuple[LaneSettings, ...] = DEFAULT_LANES
    kinds: tuple[str, ...] = ()  # of those registered, the ones that a worker takes; none named: all
    claim_tenants: tuple[str, ...] = ()  # whose jobs a worker takes; none named: anybody's
    tenants: bool = False  # every job has a tenant: one without is refused
    lease: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=25)
    poll: timedelta = timedelta(seconds=2)
    heartbeat: timedelta = timedelta(seconds=10)
    watchdog: timedelta = timedelta(seconds=5)  # how long past its timeout a job may hold the event loop
    batch: int = 500  # the most jobs that a lane claims at once, or ahead of its slots
    retry_base: timedelta = timedelta(seconds=1)  # these three: of kinds that declare no retry of their own
    retry_max: timedelta = timedelta(minutes=5)
    retry_jitter: float = 0.1  # up to this share is added to each delay
    # By queue, of kinds that declare none; None: without limit.
    timeouts: Mapping[str, timedelta | None] = field(default_factory=dict, hash=False)
    cpu_processes: int = field(default_factory=lambda: max(1, (os.cpu_count() or 2) - 1))
    payload_limit: int = 256 * 1024
    result_limit: int = 1024 * 1024
    error_message_limit: int = 500  # characters kept of an error's message; its traceback is kept apart
    retention: timedelta | None = timedelta(days=7)  # how long a finished job is kept
    stale_after: timedelta | None = None  # mark finished jobs stale first; then only those are deleted
    notify_in_transaction: bool = True
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)  # messages are signed with each; newest first
    webhook_networks: tuple[Network, ...] = ()  # not public, and may be posted to all the same
    webhook_timeout: timedelta = timedelta(seconds=15)
    alert_interval: timedelta = timedelta(seconds=15)  # between two looks at what alerts watch
    alerts_off: tuple[str, ...] = ()  # names of alerts that are not watched
    runbook_url: str | None = None  # where the folder is that has docs/runbooks, for those who are told of alerts
    log_format: str = "text"  # of `dutiful worker` and `dutiful server`: text or json
    tracing: bool = False  # OpenTelemetry spans of enqueues and attempts
    metrics: bool = True  # count what attempts came to, how long they waited and ran
    breaker_failures: int = 5  # in a row, that open a breaker which says nothing else
    breaker_open_for: timedelta = timedelta(seconds=60)

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            if getattr(self, name) < 1:
                raise UsageError(f"setting {name} is {getattr(self, name)}: it must be at least 1")
        if self.lease < timedelta(seconds=1):
            raise UsageError(f"setting lease is {self.lease}: a lease shorter than 1s cannot be renewed reliably")
        if self.poll < timedelta(milliseconds=50):
            raise UsageError(f"setting poll is {self.poll}: less than 50ms would hammer the database")
        if not timedelta(milliseconds=1) <= self.retry_base <= self.retry_max:
            raise UsageError(
                f"setting retry_base is {self.retry_base}: it must be from 1ms to retry_max, which is {self.retry_max}"
            )
        if not 0 <= self.retry_jitter <= 1:
            raise UsageError(f"setting retry_jitter is {self.retry_jitter}: it must be from 0 to 1, as in 0.1 for 10 %")
        if briefest := [queue for queue, timeout in self.timeouts.items() if timeout == timedelta(0)]:
            raise UsageError(f"setting timeouts leaves jobs of queue {briefest[0]!r} no time: give them some, or none")
        if self.heartbeat < timedelta(milliseconds=100):
            raise UsageError(f"setting heartbeat is {self.heartbeat}: less than 100ms would hammer the database")
        if self.alert_interval < timedelta(milliseconds=100):
            raise UsageError(f"setting alert_interval is {self.alert_interval}: it must be at least 100ms")
        if self.runbook_url is not None and not self.runbook_url.startswith(("https://", "http://")):
            raise UsageError(f"setting runbook_url is {self.runbook_url!r}: it must begin with https:// or http://")
        if self.sqlite_driver not in ("apsw", "sqlite3"):
            raise UsageError(f'setting sqlite_driver is {self.sqlite_driver!r}: it must be "apsw" or "sqlite3"')
        if self.log_format not in ("text", "json"):
            raise UsageError(f'setting log_format is {self.log_format!r}: it must be "text" or "json"')
        if self.retention is not None and self.stale_after is not None and self.stale_after > self.retention:
            raise UsageError(
                f"setting stale_after is {self.stale_after}, longer than retention ({self.retention}): a job becomes "
                "stale first and is deleted then"
            )
        for secret in self.webhook_secrets:
            key_of(secret)
        if not timedelta(milliseconds=100) <= self.webhook_timeout <= timedelta(minutes=5):
            raise UsageError(f"setting webhook_timeout is {self.webhook_timeout}: it must be from 100ms to 5m")
        for name in ("failures", "open_for"):
            try:
                BreakerPolicy(**{name: getattr(self, f"breaker_{name}")})
            except UsageError as error:
                raise UsageError(f"setting breaker_{name}: {error}") from None
        if not self.lanes:
            raise UsageError("setting lanes is empty: a worker needs at least one lane")
        if idle := [lane.name for lane in self.lanes if lane.slots < 1]:
            raise UsageError(f"setting lanes gives lane {idle[0]!r} no slots: give it at least 1, or leave it out")
        names = [lane.name for lane in self.lanes]
        if len(set(names)) < len(names):
            raise UsageError(f"setting lanes names a lane twice: {', '.join(names)}")
        if ANY in names:
            raise UsageError(f"setting lanes names a lane {ANY!r}, which means all lanes in a pause; name it otherwise")

    @property
    def retry(self) -> Retry:
        """How kinds that do not say so themselves are retried."""
        jitter = Jitter(1.0, 1.0 + self.retry_jitter)
        return Retry(backoff=Exponential(self.retry_base, cap=self.retry_max, jitter=jitter))

    def timeout_of(self, queue: str) -> timedelta | None:
        """How long jobs of kinds that do not say so themselves may run; None: without limit."""
        return self.timeouts.get(queue, self.timeouts.get(ANY))


def load(
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    folder: Path | None = None,
    profiles: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """Settings from `dutiful.toml` (or [tool.dutiful] of pyproject.toml), DUTIFUL_* variables, and `overrides`.

    `profiles` are those that the app declares; the file may declare more, and add to these.
    """
    file = _from_file(folder or Path.cwd())
    declared = joined(profiles or {}, _profiles(file.pop("profiles", {})))
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    said: list[tuple[str, Mapping[str, Any]]] = [("file", file), ("environment", _from_environment(environ))]
    said.append(("argument", given))
    chosen = next((raw["profile"] for _, raw in reversed(said) if "profile" in raw), None)
    if chosen:
        said = [*((f"profile {name}", values) for name, values in resolve(str(chosen), declared)), *said]
    values: dict[str, Any] = {}
    for source, raw in said:
        for name in raw:
            value = _read(name, raw[name], source)
            # Who says something of one queue does not take their limits from all the others.
            values[name] = {**values.get(name, {}), **value} if name == "timeouts" else value
    return replace(Settings(), **values)


def named_app(*, environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> str | None:
    """Which app the command line works with; found before that is imported, and so before its profiles are known."""
    app = environ.get("DUTIFUL_APP") or _from_file(folder or Path.cwd()).get("app")
    return None if app is None else str(app)


def read_profile(name: str, base: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """What app.profile(…) declares."""
    return _checked(name, {"base": base, **values})


def _profiles(tables: Any) -> dict[str, dict[str, Any]]:
    """The tables [profiles.NAME] of the file."""
    if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
        raise UsageError("profiles in the settings file is no table of tables: write [profiles.staging], and below it")
    return {name: _checked(name, table) for name, table in tables.items()}


def _checked(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A profile whose settings can be read, each by itself, whether it is chosen or not."""
    declared = declare(name, values)
    for key, value in declared.items():
        if key != "base":
            _read(key, value, f"profile {name}")
    return declared


def _from_file(folder: Path) -> dict[str, Any]:
    try:
        own = folder / "dutiful.toml"
        if own.is_file():
            return tomllib.loads(own.read_text())
        project = folder / "pyproject.toml"
        if project.is_file():
            table: dict[str, Any] = tomllib.loads(project.read_text()).get("tool", {}).get("dutiful", {})
            return table
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the settings file in {folder} is not valid TOML: {error}") from error
    return {}


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    values = {name: environ[f"DUTIFUL_{name.upper()}"] for name in _NAMES if environ.get(f"DUTIFUL_{name.upper()}")}
    if "database_url" not in values and environ.get("DATABASE_URL"):
        values["database_url"] = environ["DATABASE_URL"]
    return values


_NAMES = tuple(f.name for f in fields(Settings))
_DURATIONS = (
    "lease",
    "grace",
    "poll",
    "heartbeat",
    "watchdog",
    "retention",
    "stale_after",
    "webhook_timeout",
    "alert_interval",
    "breaker_open_for",
    "retry_base",
    "retry_max",
)
_TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_NUMBERS = (
    "pool_size",
    "lock_connections",
    "batch",
    "cpu_processes",
    "payload_limit",
    "result_limit",
    "error_message_limit",
    "breaker_failures",
)


def _read(name: str, value: Any, source: str) -> Any:
    if name not in _NAMES:
        raise UsageError(f"there is no setting {name!r} ({source}); there are: {', '.join(_NAMES)}")
    if name in ("retention", "stale_after") and value in ("never", "off"):
        return None
    if name in _DURATIONS:
        return duration(value, name)
    if name in _NUMBERS:
        if isinstance(value, int | str) and not isinstance(value, bool) and str(value).strip().isdecimal():
            return int(value)
        raise UsageError(f"setting {name} is {value!r} ({source}): it must be a whole number")
    if name == "retry_jitter":
        return _share(name, value, source)
    if name == "lanes":
        return _lanes(value)
    if name == "timeouts":
        return _timeouts(value)
    if name in ("kinds", "claim_tenants", "webhook_secrets", "webhook_networks", "alerts_off"):
        listed = value.split(",") if isinstance(value, str) else value
        texts = tuple(str(text).strip() for text in listed if str(text).strip())
        return tuple(map(read_network, texts)) if name == "webhook_networks" else texts
    if name in ("metrics", "notify_in_transaction", "tenants", "tracing"):
        word = str(value).lower()
        if word not in _TRUTHS:
            raise UsageError(f"setting {name} is {value!r} ({source}): it must be true or false")
        return _TRUTHS[word]
    if name in ("profile", "runbook_url"):
        return str(value) or None
    return str(value)


def _share(name: str, value: Any, source: str) -> float:
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise UsageError(f"setting {name} is {value!r} ({source}): it must be a number, as in 0.1")


def _timeouts(value: Any) -> dict[str, timedelta | None]:
    """`"fast=2m; *=20m"`, or a table {fast = "2m"}; "*" stands for all other queues, "none" for no limit."""
    if isinstance(value, str):
        pairs = [text.partition("=") for text in value.split(";") if text.strip()]
        value = {queue.strip(): timeout.strip() for queue, _, timeout in pairs}
    if not isinstance(value, Mapping) or not all(isinstance(queue, str) and queue for queue in value):
        raise UsageError(f'setting timeouts is {value!r}: write it as "fast=2m; *=20m"')
    return {
        queue: None if timeout in (None, "none") else duration(timeout, f"timeouts of queue {queue}")
        for queue, timeout in value.items()
    }


def _lanes(value: Any) -> tuple[LaneSettings, ...]:
    """`"fast=3:fast; general=5:*"`, a table {fast = {slots = 3, queues = ["fast"]}}, or LaneSettings themselves."""
    if isinstance(value, str):
        return tuple(_lane_from_text(part) for part in value.split(";") if part.strip())
    if isinstance(value, Mapping):
        return tuple(_lane_from_table(name, lane) for name, lane in value.items())
    if not isinstance(value, list | tuple) or not all(isinstance(lane, LaneSettings) for lane in value):
        raise UsageError(f'setting lanes is {value!r}: write it as "fast=3:fast; general=5:*"')
    return tuple(value)


def _lane_from_table(name: str, lane: Any) -> LaneSettings:
    match lane:
        case {"slots": int(slots), "queues": [*queues], **rest} if not rest and all(isinstance(q, str) for q in queues):
            return LaneSettings(name, slots, tuple(queues) or (ANY,))
        case {"slots": int(slots), **rest} if not rest:
            return LaneSettings(name, slots)
        case _:
            raise UsageError(f'setting lanes: lane {name!r} is {lane!r}; write {{slots = 3, queues = ["fast"]}}')


def _lane_from_text(text: str) -> LaneSettings:
    name, _, rest = text.strip().partition("=")
    slots, _, queues = rest.partition(":")
    if not name or not slots.strip().isdecimal():
        raise UsageError(f'lane {text.strip()!r} is not of the form name=slots:queue,queue, as in "fast=3:fast"')
    if int(slots) < 1:
        raise UsageError(f"lane {text.strip()!r} has no slots: give it 1 or more, or leave it out")
    named = tuple(q.strip() for q in queues.split(",") if q.strip())
    return LaneSettings(name.strip(), int(slots), named or (ANY,))
