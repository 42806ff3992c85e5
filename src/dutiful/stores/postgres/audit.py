"""The audit trail in Postgres."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from dutiful.core.errors import DutifulError, UsageError
from dutiful.core.principal import Origin, Role
from dutiful.core.review.audit import Anchor, AuditEvent, AuditOutcome, Seal, enum_or_text
from dutiful.store.audit import AuditFilter, Sealed, Stray
from dutiful.stores.postgres.engine.subject import Subject, arrays, conditions, decoded, text


class PostgresAudit(Subject):
    async def append(self, events: Sequence[AuditEvent]) -> None:
        if events:
            await self._call("append_audit", text(events))

    async def search(self, filter: AuditFilter) -> list[AuditEvent]:
        prefix = filter.action is not None and filter.action.endswith(".")
        wanted = (
            ("principal = ?", filter.principal),
            ("starts_with(action, ?)" if prefix else "action = ?", filter.action),
            ("outcome = ?", filter.outcome),
            ("target = ?", filter.target),
            ("tenant = ?", filter.tenant),
            ("act = ?", filter.act),
            ("at >= ?", filter.since),
            ("at < ?", filter.until),
            ("id < ?", filter.before),
        )
        where, args = conditions(wanted, filter.limit)
        rows = await self._db.fetch(self._sql["audit_events"].replace("{where}", where), *args)
        return [_event(**decoded(row)) for row in rows]

    async def head(self) -> Seal | Anchor | None:
        rows = await self._db.fetch(self._sql["audit_head"])
        return _seal(rows[0]) if rows else await self.anchor()

    async def anchor(self) -> Anchor | None:
        rows = await self._db.fetch(self._sql["audit_anchor"])
        return Anchor(**dict(rows[0])) if rows else None

    async def unsealed(self, limit: int) -> list[AuditEvent]:
        return [_event(**decoded(row)) for row in await self._db.fetch(self._sql["unsealed_events"], limit)]

    async def seal(self, seals: Sequence[Seal]) -> bool:
        return not seals or bool(await self._call("seal_audit", *arrays(seals, "seq", "event_id", "hash")))

    async def sealed(self, after: int, limit: int) -> list[Sealed]:
        rows = await self._db.fetch(self._sql["sealed_events"], after, limit)
        return [Sealed(_seal(row), None if row["id"] is None else _event(**decoded(row))) for row in rows]

    async def strays(self, limit: int) -> list[Stray]:
        return [Stray(*row) for row in await self._db.fetch(self._sql["audit_strays"], limit)]

    async def trim(self, limit: int, *, now: datetime | None = None) -> int:
        return int(await self._call("trim_audit", limit, now))

    async def retention(self) -> timedelta | None:
        keep: timedelta | None = (await self._db.fetch(self._sql["audit_retention"]))[0][0]
        return keep

    async def set_retention(self, span: timedelta | None, event: AuditEvent | None = None) -> None:
        try:
            await self._db.fetch(self._sql["set_audit_retention"], span, text([] if event is None else [event]))
        except DutifulError as error:
            if not isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError):
                raise
            # Not by SQL: `verify` wants the change of the policy recorded.
            raise UsageError(
                "this role may not say how long the audit trail is kept: run `dutiful audit keep` with a database_url "
                "of the owner of the schema"
            ) from error


def _event(role: str | None, origin: str, outcome: str, **rest: Any) -> AuditEvent:
    return AuditEvent(
        role=None if role is None else enum_or_text(Role, role),
        origin=enum_or_text(Origin, origin),
        outcome=enum_or_text(AuditOutcome, outcome),
        **{name: value for name, value in rest.items() if name in AuditEvent.__struct_fields__},
    )


def _seal(row: Any) -> Seal:
    return Seal(seq=row["seq"], event_id=row["event_id"], hash=row["hash"])
