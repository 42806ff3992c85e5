"""Supervised processes in Postgres, found by the comments of their supervisors."""

import json
from datetime import timedelta
from typing import Any

import msgspec

from dutiful.core.errors import UsageError
from dutiful.store.supervisors import (
    Process,
    ProcessAttempt,
    ProcessCheck,
    ProcessPage,
    ProcessSummary,
    Supervisor,
)
from dutiful.stores.postgres.engine.identifiers import QualifiedName, literal, parse_qualified, quoted
from dutiful.stores.postgres.engine.subject import Subject
from dutiful.stores.postgres.supervisor_migration import MARK, fill
from dutiful.stores.postgres.supervisor_plan import DB_FUNCTION, ProcessNames

_LOOKED_AT = 10_000
"""Of more processes the newest are counted, and of more that have not succeeded searched, so that a list stays fast."""


class _Comment(msgspec.Struct):
    """What the comment of a supervisor says; any role may have written it."""

    channel: str
    max_attempts: int
    base_seconds: float
    keys: list[str]
    final_table: str


class _Found(msgspec.Struct, frozen=True):
    """A supervisor and its tables."""

    record: Supervisor
    names: ProcessNames
    missing: frozenset[str]  # tables that do not exist as such
    forbidden: frozenset[str]  # tables that this role may not read

    @property
    def readable(self) -> bool:
        return not self.missing and not self.forbidden

    def statement(self, text: str) -> str:
        keys = ", ".join(f"{literal(key)}, t.{quoted(key)}::text" for key in self.record.keys)
        return fill(
            text,
            {
                **self.names.tables,
                "task_id": quoted(self.names.task_id),
                "attempt_id": quoted(self.names.attempt_id),
                "key_object": f"jsonb_build_object({keys})",
            },
        )

    def check_readable(self) -> None:
        if self.missing:
            raise UsageError(
                f"the supervisor {self.record.name} lacks its tables {', '.join(sorted(self.missing))}, owned by its "
                "own owner and without row-level security: run its migration again"
            )
        if self.forbidden:
            raise UsageError(
                f"this role may not read the tables of {self.record.name}: grant usage on schema "
                f"{quoted(self.names.process.schema)}, and select on {', '.join(self.names.tables.values())}, to it"
            )


class PostgresSupervisors(Subject):
    async def all(self) -> list[Supervisor]:
        return [await self._counted(one) for one in await self._all()]

    async def processes(self, name: str, *, stuck: bool = False, limit: int = 50) -> ProcessPage | None:
        found = await self._find(name)
        if found is None:
            return None
        rows = await self._db.fetch(
            found.statement(self._sql["list_processes"]),
            _LOOKED_AT if stuck else limit,
            limit,
            stuck,
            found.record.max_attempts,
            found.names.correlation,
            found.names.supervisor,
        )
        complete = rows[0]["complete"]
        summaries = [_summary(**row) for row in rows if row["task_id"] is not None]
        return ProcessPage(found.record, summaries, searched_all=not stuck or complete or len(summaries) == limit)

    async def find(self, name: str, task_id: int) -> Process | None:
        found = await self._find(name)
        if found is None:
            return None
        tasks = await self._db.fetch(found.statement(self._sql["find_process"]), task_id)
        if not tasks:
            return None
        attempts = await self._db.fetch(found.statement(self._sql["process_attempts"]), task_id)
        correlation_id = f"{found.names.correlation}{task_id}"
        checks = await self._db.fetch(self._sql["process_checks"], correlation_id, found.names.supervisor)
        return Process(
            **{**tasks[0], "keys": _keys(tasks[0]["keys"])},
            supervisor=found.record,
            attempts=[ProcessAttempt(**row) for row in attempts],
            checks=[ProcessCheck(**row) for row in checks],
            check_sql=self._check_sql(found.names, task_id),
        )

    async def _counted(self, found: _Found) -> Supervisor:
        if not found.readable:
            return found.record
        statement = found.statement(self._sql["count_processes"])
        (row,) = await self._db.fetch(statement, _LOOKED_AT + 1, found.record.max_attempts)
        return msgspec.structs.replace(
            found.record,
            running=row["counted"] - row["succeeded"] - row["failed"],
            succeeded=row["succeeded"],
            failed=row["failed"],
            counted_all=row["counted"] <= _LOOKED_AT,
        )

    def _check_sql(self, names: ProcessNames, task_id: int) -> str:
        payload = {"task_type": DB_FUNCTION, DB_FUNCTION: names.supervisor, names.task_id: task_id}
        return (
            f"select {self._schema}.enqueue('{DB_FUNCTION}', {literal(json.dumps(payload, ensure_ascii=False))}, "
            f"p_unique => {literal(f'{names.supervisor}:{task_id}')}, p_unique_scope => 'queued', "
            f"p_correlation_id => {literal(f'{names.correlation}{task_id}')})"
        )

    async def _find(self, name: str) -> _Found | None:
        wanted = str(parse_qualified(name, "SCHEMA.NAME"))
        found = next((one for one in await self._all() if one.record.name == wanted), None)
        if found is not None:
            found.check_readable()
        return found

    async def _all(self) -> list[_Found]:
        rows = await self._db.fetch(self._sql["supervisors"], MARK + "{")
        return [one for one in map(_read, rows) if one is not None]


def _read(row: Any) -> _Found | None:
    """None if the comment is not one that was generated."""
    try:
        comment = msgspec.json.decode(row["comment"].removeprefix(MARK), type=_Comment)
        base = timedelta(seconds=comment.base_seconds)
    except (msgspec.DecodeError, OverflowError, ValueError):
        return None
    process = QualifiedName(row["schema"], row["function"].removesuffix("_supervisor"))
    names = ProcessNames.of(process, comment.final_table)
    wanted = {
        *(f"{process.name}{end}" for end in ("_task", "_attempt", "_attempt_succeeded", "_attempt_failed")),
        comment.final_table,
    }
    tables, readable = set(row["tables"]), set(row["readable"]) if row["usage"] else set()
    return _Found(
        Supervisor(
            name=str(process),
            channel=comment.channel,
            max_attempts=comment.max_attempts,
            base=base,
            keys=comment.keys,
        ),
        names,
        missing=frozenset(wanted - tables),
        forbidden=frozenset((wanted & tables) - readable),
    )


def _summary(*, complete: bool, keys: str, **columns: Any) -> ProcessSummary:
    return ProcessSummary(**columns, keys=_keys(keys))


def _keys(text: str) -> dict[str, str]:
    found: dict[str, str] = msgspec.json.decode(text)
    return found
