"""Everything that can be set: frozen, from a file, then the environment, then arguments, the last one winning."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from dutiful.core.duration import duration
from dutiful.core.endpoint import Network, read_network
from dutiful.core.errors import UsageError
from dutiful.core.webhook import key_of

DEFAULT_URL = "sqlite:///dutiful.db"
ANY = "*"


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
    prefetch: int = 500
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

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            if getattr(self, name) < 1:
                raise UsageError(f"setting {name} is {getattr(self, name)}: it must be at least 1")
        if self.lease < timedelta(seconds=1):
            raise UsageError(f"setting lease is {self.lease}: a lease shorter than 1s cannot be renewed reliably")
        if self.poll < timedelta(milliseconds=50):
            raise UsageError(f"setting poll is {self.poll}: less than 50ms would hammer the database")
        if self.heartbeat < timedelta(milliseconds=100):
            raise UsageError(f"setting heartbeat is {self.heartbeat}: less than 100ms would hammer the database")
        if self.sqlite_driver not in ("apsw", "sqlite3"):
            raise UsageError(f'setting sqlite_driver is {self.sqlite_driver!r}: it must be "apsw" or "sqlite3"')
        if self.retention is not None and self.stale_after is not None and self.stale_after > self.retention:
            raise UsageError(
                f"setting stale_after is {self.stale_after}, longer than retention ({self.retention}): a job becomes "
                "stale first and is deleted then"
            )
        for secret in self.webhook_secrets:
            key_of(secret)
        if not timedelta(milliseconds=100) <= self.webhook_timeout <= timedelta(minutes=5):
            raise UsageError(f"setting webhook_timeout is {self.webhook_timeout}: it must be from 100ms to 5m")
        if not self.lanes:
            raise UsageError("setting lanes is empty: a worker needs at least one lane")
        if idle := [lane.name for lane in self.lanes if lane.slots < 1]:
            raise UsageError(f"setting lanes gives lane {idle[0]!r} no slots: give it at least 1, or leave it out")
        names = [lane.name for lane in self.lanes]
        if len(set(names)) < len(names):
            raise UsageError(f"setting lanes names a lane twice: {', '.join(names)}")


def load(
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Settings:
    """Settings from `dutiful.toml` (or [tool.dutiful] of pyproject.toml), DUTIFUL_* variables, and `overrides`."""
    values: dict[str, Any] = {}
    for source, raw in (("file", _from_file(folder or Path.cwd())), ("environment", _from_environment(environ))):
        for name, value in raw.items():
            values[name] = _read(name, value, source)
    for name, value in (overrides or {}).items():
        if value is not None:
            values[name] = _read(name, value, "argument")
    return replace(Settings(), **values)


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
)
_TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_NUMBERS = (
    "pool_size",
    "lock_connections",
    "prefetch",
    "cpu_processes",
    "payload_limit",
    "result_limit",
    "error_message_limit",
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
    if name == "lanes":
        return _lanes(value)
    if name in ("kinds", "claim_tenants", "webhook_secrets", "webhook_networks"):
        listed = value.split(",") if isinstance(value, str) else value
        texts = tuple(str(text).strip() for text in listed if str(text).strip())
        return tuple(map(read_network, texts)) if name == "webhook_networks" else texts
    if name in ("notify_in_transaction", "tenants"):
        word = str(value).lower()
        if word not in _TRUTHS:
            raise UsageError(f"setting {name} is {value!r} ({source}): it must be true or false")
        return _TRUTHS[word]
    return str(value)


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
    if not name or not slots.strip().isdigit() or int(slots) < 1:
        raise UsageError(f'lane {text.strip()!r} is not of the form name=slots:queue,queue, as in "fast=3:fast"')
    named = tuple(q.strip() for q in queues.split(",") if q.strip())
    return LaneSettings(name.strip(), int(slots), named or (ANY,))
