"""All settings, frozen: from a profile, a file, the environment, then arguments; the last one wins."""

import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints

from dutiful.core.breaker.state import BreakerPolicy
from dutiful.core.duration import duration
from dutiful.core.errors import UsageError
from dutiful.core.retry.backoff import Exponential, Jitter
from dutiful.core.retry.policy import Retry
from dutiful.core.webhooks.endpoint import Network, read_network
from dutiful.core.webhooks.message import key_of, new_secret
from dutiful.declare.lane import ANY, DEFAULT_LANES, LaneSettings, check_lanes, read_lanes
from dutiful.declare.profile import check_profile, merge_profiles, resolve
from dutiful.payload.key_ring import read_keys

DEFAULT_URL = "sqlite:///dutiful.db"
DEFAULT_QUEUE = "default"  # of kinds that name none
WITHHELD = "withheld:"  # stands for an address
# Secrets, and what stands for them in a process that is not to know them: an app that it imports may read them.
_SECRETS = {
    "database_url": WITHHELD,
    "direct_url": WITHHELD,
    "redis_url": WITHHELD,
    "encryption_keys": WITHHELD,
    "webhook_secrets": new_secret(b"withheld from this process"),
    "smtp_url": WITHHELD,
    "sms_url": WITHHELD,
    "sms_token": WITHHELD,
    "files_url": WITHHELD,
    "files_token": WITHHELD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    app: str | None = None  # the app of the command line, as in "jobs:app"
    database_url: str = field(default=DEFAULT_URL, repr=False)  # it may have a password, as the next
    direct_url: str | None = field(default=None, repr=False)  # without a pooler, for LISTEN and named locks
    schema: str = "dutiful"
    redis_url: str | None = field(default=None, repr=False)  # jobs are delivered through it to Arq workers
    redis_prefix: str = "dutiful"  # of the keys there; each fleet on one Redis needs its own
    profile: str | None = None  # a named set of settings; all others override it
    sqlite_driver: str = "apsw"
    pool_size: int = 8
    lock_connections: int = 10  # for named locks, in addition to the pool; open only while needed
    # By namespace: the first number of its advisory locks, if other programs are to know it.
    lock_classes: Mapping[str, int] = field(default_factory=dict, hash=False)
    lanes: tuple[LaneSettings, ...] = DEFAULT_LANES
    kinds: tuple[str, ...] = ()  # the registered kinds that a worker runs; empty: all
    claim_tenants: tuple[str, ...] = ()  # the tenants whose jobs a worker takes; empty: all
    tenants: bool = False  # whether a job without a tenant is refused
    lease: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=25)
    poll: timedelta = timedelta(seconds=2)
    heartbeat: timedelta = timedelta(seconds=10)
    startup_timeout: timedelta | None = timedelta(minutes=5)  # how long `dutiful worker` waits for the database
    timeout_grace: timedelta = timedelta(seconds=1)  # these two: how long a handler that was asked to stop may take
    cancel_grace: timedelta = timedelta(seconds=10)  # by a timeout, by a cancellation; then its job ends without it
    lingering_limit: int = 10  # how many handlers may run on without their jobs before the worker is replaced
    watchdog: timedelta = timedelta(seconds=5)  # how long past its timeout a job may hold the event loop
    batch: int = 3_000  # the most jobs that a lane claims at once or ahead of its slots
    retry_attempts: int = 5  # these four: for kinds that declare no retry; the first run is included
    retry_base: timedelta = timedelta(seconds=1)
    retry_max: timedelta = timedelta(minutes=5)
    retry_jitter: float = 0.1  # up to this share is added to each delay
    # By queue, for kinds that declare none; None: no limit.
    timeouts: Mapping[str, timedelta | None] = field(default_factory=dict, hash=False)
    cpu_processes: int = field(default_factory=lambda: max(1, (os.cpu_count() or 2) - 1))
    payload_limit: int = 256 * 1024
    result_limit: int = 1024 * 1024
    error_message_limit: int = 500  # characters stored of an error's message; the traceback is stored separately
    retention: timedelta | None = timedelta(days=7)  # how long finished jobs are kept
    event_retention: timedelta = timedelta(days=7)  # how long events are kept for jobs that wait later
    stale_after: timedelta | None = None  # mark finished jobs stale first; then only stale ones are deleted
    notify_in_transaction: bool = True
    encrypted: bool = False  # whether kinds are encrypted that do not say it themselves
    encryption_keys: tuple[str, ...] = field(default=(), repr=False)  # ID:KEY, the one that seals first
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)  # messages are signed with each, newest first
    webhook_networks: tuple[Network, ...] = ()  # private networks that may be posted to
    webhook_timeout: timedelta = timedelta(seconds=15)
    smtp_url: str | None = field(default=None, repr=False)  # of the channel email; it may have a password
    sms_url: str | None = field(default=None, repr=False)  # of the channel sms
    sms_token: str | None = field(default=None, repr=False)
    files_url: str | None = field(default=None, repr=False)  # of the channel file_delete
    files_token: str | None = field(default=None, repr=False)
    alert_interval: timedelta = timedelta(seconds=15)  # between two evaluations of all alerts
    alerts_off: tuple[str, ...] = ()  # names of alerts that are turned off
    runbook_url: str | None = None  # the base URL of docs/runbooks, for links in alerts
    log_format: str = "text"  # of `dutiful worker` and `dutiful server`: text or json
    tracing: bool = False  # OpenTelemetry spans of enqueues and attempts
    metrics: bool = True  # count attempts by outcome, waiting time and run time
    breaker_failures: int = 5  # in a row that open a breaker, unless it declares otherwise
    breaker_open_for: timedelta = timedelta(seconds=60)

    def __post_init__(self) -> None:
        for name, hint in _TYPES.items():
            if hint is int and getattr(self, name) < 1:
                raise UsageError(f"setting {name} is {getattr(self, name)}: it must be at least 1")
        for name, (least, problem) in _LEAST.items():
            if getattr(self, name) < least:
                raise UsageError(f"setting {name} is {getattr(self, name)}: {problem}")
        for name, (one, other) in _CHOICES.items():
            if (choice := getattr(self, name)) not in (one, other):
                raise UsageError(f'setting {name} is {choice!r}: it must be "{one}" or "{other}"')
        if not timedelta(milliseconds=1) <= self.retry_base <= self.retry_max:
            raise UsageError(
                f"setting retry_base is {self.retry_base}: it must be from 1ms to retry_max, which is {self.retry_max}"
            )
        if not 0 <= self.retry_jitter <= 1:
            raise UsageError(f"setting retry_jitter is {self.retry_jitter}: it must be from 0 to 1, as in 0.1 for 10 %")
        if briefest := [queue for queue, timeout in self.timeouts.items() if timeout == timedelta(0)]:
            raise UsageError(f"setting timeouts leaves jobs of queue {briefest[0]!r} no time: give them some, or none")
        if self.runbook_url is not None and not self.runbook_url.startswith(("https://", "http://")):
            raise UsageError(f"setting runbook_url is {self.runbook_url!r}: it must begin with https:// or http://")
        if self.retention is not None and self.stale_after is not None and self.stale_after > self.retention:
            raise UsageError(
                f"setting stale_after is {self.stale_after}, longer than retention ({self.retention}): a job becomes "
                "stale first and is deleted then"
            )
        for secret in self.webhook_secrets:
            key_of(secret)
        if self.encryption_keys not in ((), (WITHHELD,)):
            read_keys(self.encryption_keys)
        if not timedelta(milliseconds=100) <= self.webhook_timeout <= timedelta(minutes=5):
            raise UsageError(f"setting webhook_timeout is {self.webhook_timeout}: it must be from 100ms to 5m")
        for name in ("failures", "open_for"):
            try:
                BreakerPolicy(**{name: getattr(self, f"breaker_{name}")})
            except UsageError as error:
                raise UsageError(f"setting breaker_{name}: {error}") from None
        check_lanes(self.lanes)

    @property
    def retry(self) -> Retry:
        """The retry policy of kinds that declare none."""
        jitter = Jitter(1.0, 1.0 + self.retry_jitter)
        return Retry(
            max_attempts=self.retry_attempts, backoff=Exponential(self.retry_base, cap=self.retry_max, jitter=jitter)
        )

    def timeout_of(self, queue: str) -> timedelta | None:
        """The timeout of kinds that declare none; None: no limit."""
        return self.timeouts.get(queue, self.timeouts.get(ANY))


def load(
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    folder: Path | None = None,
    profiles: Mapping[str, Mapping[str, Any]] | None = None,
) -> Settings:
    """Settings from `dutiful.toml` (or [tool.dutiful] of pyproject.toml), DUTIFUL_* variables, and `overrides`.

    `profiles` are those that the app declares; the file may declare more, and extend these.
    """
    file = _from_file(folder or Path.cwd())
    declared = merge_profiles(profiles or {}, _profiles(file.pop("profiles", {})))
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    sources: list[tuple[str, Mapping[str, Any]]] = [("file", file), ("environment", _from_environment(environ))]
    sources.append(("argument", given))
    chosen = next((raw["profile"] for _, raw in reversed(sources) if "profile" in raw), None)
    if chosen:
        sources = [*((f"profile {name}", values) for name, values in resolve(str(chosen), declared)), *sources]
    values: dict[str, Any] = {}
    for source, raw in sources:
        for name in raw:
            value = _read(name, raw[name], source)
            # Timeouts are merged by queue: a source that sets one queue keeps the limits of the others.
            values[name] = {**values.get(name, {}), **value} if name == "timeouts" else value
    return replace(Settings(), **values)


def check_given(values: Mapping[str, Any]) -> None:
    """Checks settings that code gives, where it gives them; those that depend on others only as far as their type."""
    for name, value in values.items():
        if value is not None:
            read = _read(name, value, "argument")
            if name not in _TOGETHER:
                replace(Settings(), **{name: read})


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which something else stands for each secret of Dutiful."""
    named = {f"DUTIFUL_{name.upper()}": stand_in for name, stand_in in _SECRETS.items()}
    return {name: named.get(name, value) if value else value for name, value in environ.items()}


def named_app(*, environ: Mapping[str, str] = os.environ, folder: Path | None = None) -> str | None:
    """The app of the command line; read before the app is imported, and so before its profiles are known."""
    app = environ.get("DUTIFUL_APP") or _from_file(folder or Path.cwd()).get("app")
    return None if app is None else str(app)


def read_profile(name: str, base: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Checks what app.profile(…) declares."""
    return _checked(name, {"base": base, **values})


def _profiles(tables: Any) -> dict[str, dict[str, Any]]:
    """The tables [profiles.NAME] of the file."""
    if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
        raise UsageError("profiles in the settings file is no table of tables: write [profiles.staging], and below it")
    return {name: _checked(name, table) for name, table in tables.items()}


def _checked(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Checks each setting of a profile, whether the profile is chosen or not."""
    declared = check_profile(name, values)
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
    values = {name: environ[f"DUTIFUL_{name.upper()}"] for name in _TYPES if environ.get(f"DUTIFUL_{name.upper()}")}
    if "database_url" not in values and environ.get("DATABASE_URL"):
        values["database_url"] = environ["DATABASE_URL"]
    return values


_TYPES: dict[str, Any] = get_type_hints(Settings)
_TOGETHER = ("retry_base", "retry_max", "stale_after", "retention")
_CHOICES = {"sqlite_driver": ("apsw", "sqlite3"), "log_format": ("text", "json")}
_LEAST = {
    "lease": (timedelta(seconds=1), "a lease shorter than 1s cannot be renewed reliably"),
    "poll": (timedelta(milliseconds=50), "less than 50ms would hammer the database"),
    "heartbeat": (timedelta(milliseconds=100), "less than 100ms would hammer the database"),
    "alert_interval": (timedelta(milliseconds=100), "it must be at least 100ms"),
}
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _read(name: str, value: Any, source: str) -> Any:
    """The value of a setting by its declared type, from text, TOML or Python."""
    if name not in _TYPES:
        raise UsageError(f"there is no setting {name!r} ({source}); there are: {', '.join(_TYPES)}")
    hint, wanted = _TYPES[name], ""
    if name == "lanes":
        return read_lanes(value)
    if name == "timeouts":
        return _timeouts(value)
    if name == "lock_classes":
        return _lock_classes(value)
    if hint == timedelta | None and value in ("never", "off"):
        return None
    if hint in (timedelta, timedelta | None):
        return duration(value, name)
    if hint in (tuple[str, ...], tuple[Network, ...]):
        listed = value.split(",") if isinstance(value, str) else value
        texts = tuple(str(text).strip() for text in listed if str(text).strip())
        return texts if hint == tuple[str, ...] else tuple(map(read_network, texts))
    if hint is bool:
        if str(value).lower() in _BOOLEANS:
            return _BOOLEANS[str(value).lower()]
        wanted = "true or false"
    elif hint is int:
        if isinstance(value, int | str) and not isinstance(value, bool) and str(value).strip().isdecimal():
            return int(value)
        wanted = "a whole number"
    elif hint is float:
        with suppress(TypeError, ValueError):
            if not isinstance(value, bool):
                return float(value)
        wanted = "a number, as in 0.1"
    if wanted:
        raise UsageError(f"setting {name} is {value!r} ({source}): it must be {wanted}")
    return str(value) if hint is str else str(value) or None


def _timeouts(value: Any) -> dict[str, timedelta | None]:
    """`"fast=2m; *=20m"`, or a table {fast = "2m"}; "*" means all other queues, "none" no limit."""
    return {
        queue: None if timeout in (None, "none") else duration(timeout, f"timeouts of queue {queue}")
        for queue, timeout in _pairs("timeouts", value, "fast=2m; *=20m").items()
    }


def _lock_classes(value: Any) -> dict[str, int]:
    """`"edition=1; project=2"`, or a table {edition = 1, project = 2}."""
    classes: dict[str, int] = {}
    for namespace, number in _pairs("lock_classes", value, "edition=1; project=2").items():
        whole = isinstance(number, int | str) and not isinstance(number, bool) and str(number).isdecimal()
        if not whole or not 0 < int(number) < 2**31:
            raise UsageError(
                f"setting lock_classes gives {namespace!r} the class {number!r}: it must be from 1 to {2**31 - 1}"
            )
        if int(number) in classes.values():
            raise UsageError(
                f"setting lock_classes gives the class {number} to two namespaces, which would share their locks: give "
                f"{namespace!r} another one"
            )
        classes[namespace] = int(number)
    return classes


def _pairs(name: str, value: Any, form: str) -> Mapping[str, Any]:
    if isinstance(value, str):
        texts = [text.partition("=") for text in value.split(";") if text.strip()]
        value = {key.strip(): given.strip() for key, _, given in texts}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) and key for key in value):
        raise UsageError(f'setting {name} is {value!r}: write it as "{form}"')
    return value
