"""The audit trail over HTTP: who did what, when and why, and whether the trail is intact."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from pydantic import Field

from dutiful.core.principal import Origin, Role
from dutiful.core.review.audit import AuditOutcome, Seal
from dutiful.operator.audit import MOST_UNSEALED
from dutiful.store.audit import AuditFilter
from dutiful.web import listing
from dutiful.web.admission import OperatorDep
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
    cursor: Cursor | None = Field(default=None, description="next_cursor of the previous page.")
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


class VerifyQuery(Ask):
    expected: str | None = Field(
        default=None,
        pattern=r"^[0-9]{1,18}:[0-9a-f]{64}$",
        description="head_seq:head_hash of an earlier answer, which has to be in the chain still.",
        examples=["4711:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    )


class AuditBreak(Shape):
    seq: int | None = Field(description="null: an event that is not in the chain.")
    event_id: UUID | None
    problem: str


class AuditVerified(Shape):
    whole: bool
    checked: int
    head_seq: int | None
    head_hash: str | None
    unsealed: int = Field(description=f"Events that wait for their seal, counted up to {MOST_UNSEALED}.")
    unsealed_more: bool = Field(description="There are more than were counted.", examples=[False])
    oldest_unsealed_at: datetime | None
    broken: AuditBreak | None
    expected_gone: bool = Field(
        description="Retention has deleted the expected seal, so it cannot be checked.", examples=[False]
    )


@audit.read("/")
async def list_audit(operator: OperatorDep, query: Annotated[AuditQuery, Query()]) -> AuditPage:
    """List what people did, the newest first."""
    try:
        before = None if query.cursor is None else listing.read_id(LIST, query.cursor)
    except listing.BadCursor as error:
        raise field_problem("cursor", str(error)) from None
    found = await operator.audit.search(
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
        next_cursor=listing.of_id(LIST, page[-1].id) if len(found) > query.limit else None,
    )


@chain.read("/verify/")
async def verify_audit(operator: OperatorDep, query: Annotated[VerifyQuery, Query()]) -> AuditVerified:
    """Recompute every seal of the trail, and show the first that is broken.

    With a trail that is too long for one request, the answer is 503; `dutiful audit verify` has no time limit.
    """
    seq, _, digest = (query.expected or "").partition(":")
    found = await operator.audit.verify(Seal(seq=int(seq), event_id=UUID(int=0), hash=digest) if seq else None)
    return AuditVerified(
        whole=found.broken is None,
        checked=found.checked,
        head_seq=None if found.head is None else found.head.seq,
        head_hash=None if found.head is None else found.head.hash,
        unsealed=found.unsealed,
        unsealed_more=found.unsealed >= MOST_UNSEALED,
        oldest_unsealed_at=found.oldest_unsealed_at,
        broken=None if found.broken is None else AuditBreak.model_validate(found.broken),
        expected_gone=found.gone,
    )
