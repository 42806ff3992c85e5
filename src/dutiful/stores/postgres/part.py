"""What every part of the store works with, and how it reads JSON."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from dutiful.core.job import JobRecord, Progress
from dutiful.core.readable import read, read_as, read_object, read_objects
from dutiful.core.transitions import State
from dutiful.stores.postgres.connection import Connections
from dutiful.stores.postgres.sql import statements

_JSON = {
    "payload": read_object,
    "result": read,
    "errors": read_objects,
    "last_error": read_object,
    "subject": read_object,
    "options": read_object,
    "lanes": read,
    "kinds": read,
    "job": read_object,
    "error": read_object,
}


class PostgresPart:
    def __init__(self, db: Connections, schema: str) -> None:
        self._db = db
        self._schema = schema
        self._sql = statements(schema)

    async def _clock(self) -> datetime:
        now: datetime = (await self._db.fetch(self._sql["clock"]))[0][0]
        return now


def decoded(row: Any) -> dict[str, Any]:
    """A row with its JSON columns read."""
    values = dict(row)
    for name, reading in _JSON.items():
        if isinstance(values.get(name), str):
            values[name] = reading(values[name])
    return values


def record(row: Any) -> JobRecord:
    """A row of the view `jobs`."""
    values = decoded(row)
    values["state"] = State(values["state"])
    if values["progress"] is not None:
        progress = read_as(_progress, values["progress"])
        # JSON is written in the time zone of the session.
        values["progress"] = msgspec.structs.replace(progress, updated_at=progress.updated_at.astimezone(UTC))
    return JobRecord(**values)


_progress = msgspec.json.Decoder(Progress)
_snapshot = msgspec.json.Decoder(JobRecord)


def snapshot(text: str) -> JobRecord:
    """A row of the view `jobs` that was made JSON of in the time zone UTC."""
    return read_as(_snapshot, text)
