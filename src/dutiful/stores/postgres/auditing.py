"""The audit trail in Postgres."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import msgspec

from dutiful.auditing import AuditFilter, Sealed, Stray
from dutiful.core.audit import Anchor, AuditEvent, AuditOutcome, Seal, word
from dutiful.core.errors import DutifulError, UsageError
from dutiful.core.principal import Origin, Role
from dutiful.core.readable import read
from dutiful.stores.postgres.part import PostgresPart


class PostgresAuditing(PostgresPart):
    async def append_audit(self, events: Sequence[AuditEvent]) -> None:
        if events:
            await self._db.fetch(self._sql["append_audit"], msgspec.json.encode(events).decode())

    async def audit_events(self, filter: AuditFilter) -> list[AuditEvent]:
        args: list[Any] = [filter.limit]
        conditions = ["true"]
        prefix = filter.action is not None and filter.action.endswith(".")
        for condition, value in (
            ("principal = ?", filter.principal),
            ("starts_with(action, ?)" if prefix else "action = ?", filter.action),
            ("outcome = ?", filter.outcome and filter.outcome.value),
            ("target = ?", filter.target),
            ("tenant = ?", filter.tenant),
            ("act = ?", filter.act),
            ("at >= ?", filter.since),
            ("at < ?", filter.until),
            ("id < ?", filter.before),
        ):
            if value is not None:
                args.append(value)
                conditions.append(condition.replace("?", f"${len(args)}"))
        statement = self._sql["audit_events"].replace("{where}", " and ".join(conditions))
        return [_event(**dict(row)) for row in await self._db.fetch(statement, *args)]

    async def audit_head(self) -> Seal | Anchor | None:
        rows = await self._db.fetch(self._sql["audit_head"])
        return _seal(rows[0]) if rows else await self.audit_anchor()

    async def audit_anchor(self) -> Anchor | None:
        rows = await self._db.fetch(self._sql["audit_anchor"])
        return Anchor(**dict(rows[0])) if rows else None

    async def unsealed(self, limit: int) -> list[AuditEvent]:
        return [_event(**dict(row)) for row in await self._db.fetch(self._sql["unsealed"], limit)]

    async def seal_audit(self, seals: Sequence[Seal]) -> bool:
        if not seals:
            return True
        columns = [s.seq for s in seals], [s.event_id for s in seals], [s.hash for s in seals]
        sealed: bool = (await self._db.fetch(self._sql["seal_audit"], *columns))[0][0]
        return sealed

    async def sealed(self, after: int, limit: int) -> list[Sealed]:
        rows = await self._db.fetch(self._sql["sealed"], after, limit)
        return [Sealed(_seal(row), None if row["id"] is None else _sealed_event(**dict(row))) for row in rows]

    async def audit_strays(self, limit: int) -> list[Stray]:
        return [Stray(*row) for row in await self._db.fetch(self._sql["audit_strays"], limit)]

    async def trim_audit(self, limit: int, *, now: datetime | None = None) -> int:
        count: int = (await self._db.fetch(self._sql["trim_audit"], limit, now))[0][0]
        return count

    async def audit_keep(self) -> timedelta | None:
        keep: timedelta | None = (await self._db.fetch(self._sql["audit_keep"]))[0][0]
        return keep

    async def keep_audit(self, span: timedelta | None) -> None:
        try:
            await self._db.fetch(self._sql["keep_audit"], span)
        except DutifulError as error:
            if not isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError):
                raise
            keep = "null" if span is None else f"'{span.days} days {span.seconds} seconds'"
            raise UsageError(
                "this role may not say how long the audit trail is kept: do it as the owner of the schema, or let a "
                f"DBA run: update {self._schema}.audit_policy set keep = {keep}"
            ) from error


def _event(
    role: str | None, origin: str, outcome: str, before: str | None, after: str | None, **rest: Any
) -> AuditEvent:
    return AuditEvent(
        **rest,
        role=None if role is None else word(Role, role),
        origin=word(Origin, origin),
        outcome=word(AuditOutcome, outcome),
        before=read(before),
        after=read(after),
    )


def _seal(row: Any) -> Seal:
    return Seal(seq=row["seq"], event_id=row["event_id"], hash=row["hash"])


def _sealed_event(seq: int, event_id: Any, hash: str, **event: Any) -> AuditEvent:
    return _event(**event)
