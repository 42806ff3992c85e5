"""The audit trail over HTTP: who did what, when and why, and whether the trail is whole."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from pydantic import Field

from dutiful.auditing import AuditFilter
from dutiful.core.audit import AuditOutcome
from dutiful.core.principal import Origin, Role
from dutiful.web import cursor
from dutiful.web.gates import TheOperator
from dutiful.web.operations import Operations
from dutiful.web.problems import field_problem
from dutiful.web.shapes import Ask, Cursor, Limit, Moment, Shape, Text

LIST = "audit trail"
audit = Operations("Audit trail", "/admin/audit")
chain = Operations("Audit trail", "/admin/audit", fleetwide=True)


class AuditQuery(Ask):
    principal: Text | None = None
    action: Text | None = Field(default=None, examples=["dead_letter.reprocess", "dead_letter."])
    outcome: AuditOutcome | None = None
    target: Text | None = None
    tenant: Text | None = None
    act: UUID | None = None
    since: Moment | None = None
    until: Moment | None = None
    cursor: Cursor | None = Field(default=None, description="next_cursor of the page before.")
    limit: Limit = 50


class AuditItem(Shape):
    id: UUID
    act: UUID
    at: datetime
    principal: str
    role: Role | None
    origin: Origin
    action: str
    outcome: AuditOutcome
    target: str | None
    tenant: str | None
    reason: str | None
    before: Any
    after: Any
    address: str | None


class AuditPage(Shape):
    events: list[AuditItem]
    next_cursor: str | None


class AuditBreak(Shape):
    seq: int
    event_id: UUID | None
    problem: str


class AuditVerified(Shape):
    whole: bool
    checked: int
    head_seq: int | None
    head_hash: str | None
    unsealed: int
    oldest_unsealed_at: datetime | None
    broken: AuditBreak | None


@audit.read("/")
async def list_audit(operator: TheOperator, query: Annotated[AuditQuery, Query()]) -> AuditPage:
    """List what people did, the newest first."""
    try:
        before = None if query.cursor is None else cursor.read_id(LIST, query.cursor)
    except cursor.BadCursor as error:
        raise field_problem("cursor", str(error)) from None
    found = await operator.audit_events(
        AuditFilter(
            principal=query.principal,
            action=query.action,
            outcome=query.outcome,
            target=query.target,
            tenant=query.tenant,
            act=query.act,
            since=query.since,
            until=query.until,
            before=before,
            limit=query.limit + 1,
        )
    )
    page = found[: query.limit]
    return AuditPage(
        events=[AuditItem.model_validate(event) for event in page],
        next_cursor=cursor.of_id(LIST, page[-1].id) if len(found) > query.limit else None,
    )


@chain.read("/verify/")
async def verify_audit(operator: TheOperator) -> AuditVerified:
    """Compute every seal of the trail again, and tell the first that does not hold."""
    found = await operator.verify_audit()
    return AuditVerified(
        whole=found.broken is None,
        checked=found.checked,
        head_seq=None if found.head is None else found.head.seq,
        head_hash=None if found.head is None else found.head.hash,
        unsealed=found.unsealed,
        oldest_unsealed_at=found.oldest_unsealed_at,
        broken=None if found.broken is None else AuditBreak.model_validate(found.broken),
    )
