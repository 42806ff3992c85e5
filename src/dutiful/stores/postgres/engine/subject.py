"""The base of the store's subjects: session, calls, and decoding of rows."""

import copy
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from dutiful.core.job import JobRecord, Progress
from dutiful.core.json import read, read_as, read_object, read_objects
from dutiful.core.states import State
from dutiful.store.workers import LaneRecord
from dutiful.stores.postgres.engine.connection import Connections
from dutiful.stores.postgres.engine.sql import statements
from dutiful.stores.postgres.schema_files import expand

T = TypeVar("T", bound=msgspec.Struct)
_lanes = msgspec.json.Decoder(dict[str, LaneRecord])
_JSON: dict[str, Callable[[Any], Any]] = {
    "payload": read_object,
    "result": read,
    "errors": read_objects,
    "last_error": read_object,
    "subject": read_object,
    "options": read_object,
    "lanes": lambda text: _lanes_in(text),
    "kinds": read,
    "job": read_object,
    "error": read_object,
    "data": read_object,
    "history": read_objects,
    "before": read,
    "after": read,
}


def _lanes_in(text: str) -> dict[str, LaneRecord]:
    """None of a row that SQL has written in another way, so that other workers can be listed."""
    try:
        return read_as(_lanes, text)
    except msgspec.ValidationError:
        return {}


class Session:
    """Connections, statements, and the tenant on whose behalf they run."""

    def __init__(self, db: Connections, schema: str, *, direct_dsn: str, direct_given: bool) -> None:
        self.db = db
        self.schema = schema
        self.sql = statements(schema)
        self.direct_dsn = direct_dsn  # past a pooler, if there is one
        self.direct_given = direct_given
        self.tenant: str | None = None  # None: the database does not keep tenants apart

    @property
    def isolates_tenants(self) -> bool:
        return self.db.first is not None

    def for_tenant(self, tenant: str) -> "Session":
        scoped = copy.copy(self)
        scoped.tenant = tenant
        scoped.db = self.db.beginning_with(self.acting_for(tenant))
        return scoped

    def acting_for(self, tenant: str) -> str:
        return self.sql["act_for"].replace("{hex}", tenant.encode().hex())

    def on_users(self, name: str, args: Sequence[Any]) -> tuple[str, list[Any]]:
        """A statement for the user's own connection; it sets the tenant only for itself."""
        if self.tenant is None:
            return self.sql[name], [*args]
        return self.sql[f"{name}_for"], [*args, self.tenant]


class Subject:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._db = session.db
        self._schema = session.schema
        self._sql = session.sql

    async def _clock(self) -> datetime:
        now: datetime = (await self._db.fetch(self._sql["clock"]))[0][0]
        return now

    async def _call(self, function: str, *args: Any, repeat: bool = True) -> Any:
        """The one value that a function of the schema returns."""
        return (await self._rows(function, function, *args, repeat=repeat))[0][0]

    async def _rows(self, function: str, columns: str, *args: Any, repeat: bool = True) -> list[Any]:
        """The rows that a function of the schema returns; `columns` may name a list in braces, as SQL files do."""
        return await self._db.fetch(selecting(self._schema, function, columns, len(args)), *args, repeat=repeat)


@cache
def selecting(schema: str, function: str, columns: str, count: int) -> str:
    numbers = ", ".join(f"${n}" for n in range(1, count + 1))
    return expand(f"select {columns} from {schema}.{function}({numbers})")


def text(value: Any) -> str:
    """Encodes the argument of a JSON parameter."""
    return msgspec.json.encode(value).decode()


def arrays(rows: Sequence[msgspec.Struct], *fields: str) -> list[list[Any]]:
    """One array per field, as `unnest` expects them."""
    return [list(map(attrgetter(field), rows)) for field in fields]


def conditions(wanted: Iterable[tuple[str, Any]], *args: Any) -> tuple[str, list[Any]]:
    """The text for {where}: each condition (with `?`) whose value is not None; and all arguments, `args` first."""
    found, values = ["true"], list(args)
    for condition, value in wanted:
        if value is not None:
            values.append(value)
            found.append(condition.replace("?", f"${len(values)}"))
    return " and ".join(found), values


def decoded(row: Any) -> dict[str, Any]:
    """A row with its JSON columns decoded."""
    values = dict(row)
    for name, reading in _JSON.items():
        if isinstance(values.get(name), str):
            values[name] = reading(values[name])
    return values


def as_struct(kind: type[T], row: Any) -> T:
    """A row whose columns have the names of the struct's fields."""
    values = dict(row)
    for name, reader in _readers(kind).items():
        if values[name] is not None:
            values[name] = reader(values[name])
    return kind(**values)


@cache
def _readers(kind: type) -> dict[str, Callable[[Any], Any]]:
    """How each field's text is decoded: as an enum, or as JSON unless the field itself is a text."""
    given = get_type_hints(kind).items()
    hints = {name: get_args(hint)[0] if isinstance(hint, UnionType) else hint for name, hint in given}
    enums = {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Enum)}
    reports = {name: read_progress for name, hint in hints.items() if hint is Progress}
    return {name: reader for name, reader in _JSON.items() if hints.get(name, str) is not str} | enums | reports


def record(row: Any) -> JobRecord:
    """A row of the view `jobs`."""
    values = decoded(row)
    values["state"] = State(values["state"])
    if values["progress"] is not None:
        values["progress"] = read_progress(values["progress"])
    return JobRecord(**values)


def read_progress(text: str) -> Progress:
    progress = read_as(_progress, text)
    # JSON is written in the time zone of the session.
    return msgspec.structs.replace(progress, updated_at=progress.updated_at.astimezone(UTC))


_progress = msgspec.json.Decoder(Progress)
_snapshot = msgspec.json.Decoder(JobRecord)


def snapshot(text: str) -> JobRecord:
    """A row of the view `jobs` from its JSON, written in the time zone UTC."""
    return read_as(_snapshot, text)
