"""The audit trail, as a principal reads and verifies it."""

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core.duration import LONGEST, brief
from dutiful.core.errors import UsageError
from dutiful.core.principal import Role
from dutiful.core.review.audit import SHORTEST_KEEP, Anchor, AuditEvent, AuditOutcome, Seal, seal
from dutiful.operator.actor import OperatorPart
from dutiful.store.audit import AuditFilter, Sealed

PAGE = 500
MOST_UNSEALED = 1_000
SKEW = timedelta(hours=1)  # between the clocks of a client and of the database
KEEP = "audit.keep"


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """Where the chain is broken and how; without a `seq`, an event that is not part of it."""

    seq: int | None
    event_id: UUID | None
    problem: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of verifying the chain; a head that is kept elsewhere proves later that nothing before it changed."""

    checked: int
    anchor: Anchor | None  # where the chain begins, if retention has deleted what was before
    head: Seal | Anchor | None
    unsealed: int  # events that wait for their seal, counted up to MOST_UNSEALED
    oldest_unsealed_at: datetime | None
    broken: Break | None = None
    keep: timedelta | None = None  # how long events are kept; None: forever
    gone: bool = False  # the expected seal was deleted by retention, so it cannot be checked


class Audit(OperatorPart):
    async def search(self, filter: AuditFilter) -> list[AuditEvent]:
        return await self._store.audit.search(msgspec.structs.replace(filter, tenant=self._actor.scope(filter.tenant)))

    async def verify(self, expected: Seal | None = None) -> Verified:
        """Recomputes every seal from the anchor to the head; `expected` is a seal of an earlier verification."""
        self._actor.check_fleetwide("to verify the trail")
        anchor = await self._store.audit.anchor()
        last: Seal | Anchor | None = anchor
        keep = await self._store.audit.retention()
        checked, broken, met = 0, await self._unproven(anchor, keep), expected is None
        while broken is None and (page := await self._store.audit.sealed(0 if last is None else last.seq, PAGE)):
            for link in page:
                if link.seal.seq != _next(last) and (moved := await self._store.audit.anchor()) is not None:
                    # Retention deleted the page that was to be read next.
                    last = moved if moved.seq == link.seal.seq - 1 else last
                broken = _broken(link, last)
                if broken is None and expected is not None and link.seal.seq == expected.seq:
                    met, broken = True, _unexpected(link.seal, expected)
                if broken is not None:
                    break
                checked, last = checked + 1, link.seal
        gone = False
        if broken is None and expected is not None and not met:
            broken, gone = await self._missed(expected)
        if broken is None:
            broken = await self._stray() or _too_short(keep) or await self._unrecorded(anchor, keep)
        waiting = await self._store.audit.unsealed(MOST_UNSEALED)
        return Verified(
            checked=checked,
            anchor=anchor,
            head=last,
            unsealed=len(waiting),
            oldest_unsealed_at=waiting[0].at if waiting else None,
            broken=broken,
            keep=keep,
            gone=gone,
        )

    async def set_retention(self, span: timedelta | None, reason: str | None = None) -> None:
        """Sets how long events are kept, None: forever; a worker's services delete older ones."""

        def possible() -> None:
            if span is not None and not SHORTEST_KEEP <= span <= LONGEST:
                raise UsageError(
                    f"keep {brief(span)} is not from {brief(SHORTEST_KEEP)} to {brief(LONGEST)}, nor forever"
                )

        before = _keep(await self._store.audit.retention())
        async with self._actor.audited(
            KEEP, None, reason, role=Role.ADMIN, before=before, fleetwide=True, check=possible
        ) as action:
            await self._store.audit.set_retention(span, action.ended(AuditOutcome.SUCCEEDED, _keep(span)))
            action.recorded = True

    async def _unproven(self, anchor: Anchor | None, keep: timedelta | None) -> Break | None:
        """Why the anchor does not prove that retention deleted what was before it: no policy, or too young."""
        if anchor is None:
            return None
        problem = None
        if anchor.keep < SHORTEST_KEEP:
            problem = (
                f"it says that events were kept for {brief(anchor.keep)}, and no policy is below {brief(SHORTEST_KEEP)}"
            )
        elif anchor.trimmed_at - anchor.at <= anchor.keep:  # no sum, which may be beyond the range of dates
            problem = f"the events before it were deleted although they were younger than {brief(anchor.keep)}"
        elif anchor.trimmed_at > await self._store.queries.clock() + SKEW:
            problem = "it says that events were deleted in the future"
        elif keep != anchor.keep and not await self._was_policy(anchor):
            problem = f"it says that events were kept for {brief(anchor.keep)}, and no change of that is recorded"
        return (
            None
            if problem is None
            else Break(seq=anchor.seq, event_id=None, problem=f"the beginning was cut off: {problem}")
        )

    async def _was_policy(self, anchor: Anchor) -> bool:
        """Whether a change on record, about when it was trimmed or later, was from or to the anchor's policy."""
        changes = await self._store.audit.search(
            AuditFilter(action=KEEP, outcome=AuditOutcome.SUCCEEDED, since=anchor.trimmed_at - SKEW, limit=PAGE)
        )
        return any(_keep(anchor.keep) in (change.before, change.after) for change in changes)

    async def _unrecorded(self, anchor: Anchor | None, keep: timedelta | None) -> Break | None:
        """Whether the policy in force is not the last one on record; retention may have deleted that record."""
        wanted = AuditFilter(action=KEEP, outcome=AuditOutcome.SUCCEEDED, limit=1)
        changes = await self._store.audit.search(wanted)
        if await self._store.audit.retention() != keep:
            return None  # changed just now, perhaps after the events were read
        for change in changes:
            recorded = change.after.get("keep") if isinstance(change.after, dict) else None
            return None if recorded == _keep(keep)["keep"] else _changed(keep, change, recorded)
        return _changed(keep, None, None) if keep is not None and anchor is None else None

    async def _missed(self, expected: Seal) -> tuple[Break | None, bool]:
        """The break that a missing expected seal means, or whether it is too old to be checked."""
        anchor = await self._store.audit.anchor()
        if anchor is None or anchor.seq < expected.seq:
            problem = "the chain ends before it: its end was cut off"
            return Break(seq=expected.seq, event_id=None, problem=problem), False
        return (_unexpected(anchor, expected), False) if anchor.seq == expected.seq else (None, True)

    async def _stray(self) -> Break | None:
        for stray in await self._store.audit.strays(1):
            problem = (
                "it waited for its seal, and was deleted"
                if stray.deleted
                else "it was slipped in: it has no seal, and does not wait for one"
            )
            return Break(seq=None, event_id=stray.event_id, problem=problem)
        return None


def _keep(keep: timedelta | None) -> dict[str, str | None]:
    return {"keep": None if keep is None else brief(keep)}


def _told(keep: str | None) -> str:
    return "forever" if keep is None else f"for {keep}"


def _too_short(keep: timedelta | None) -> Break | None:
    if keep is None or keep >= SHORTEST_KEEP:
        return None
    problem = (
        f"events are to be kept for {brief(keep)}, and no policy is below {brief(SHORTEST_KEEP)}: it was set beside "
        "`dutiful audit keep`, and deletes nothing"
    )
    return Break(seq=None, event_id=None, problem=problem)


def _changed(keep: timedelta | None, change: AuditEvent | None, recorded: str | None) -> Break:
    by = "" if change is None else f", by {change.principal} ({change.origin})"
    beside = "the policy was changed" if change is None else "the policy was changed, or the record of it written,"
    problem = (
        f"events are kept {_told(_keep(keep)['keep'])}, but {_told(recorded)} by the last change on record{by}: "
        f"{beside} beside `dutiful audit keep`"
    )
    return Break(seq=None, event_id=None if change is None else change.id, problem=problem)


def _next(last: Seal | Anchor | None) -> int:
    return 1 if last is None else last.seq + 1


def _broken(link: Sealed, last: Seal | Anchor | None) -> Break | None:
    event_id, seq = link.seal.event_id, link.seal.seq
    if seq != _next(last):
        return Break(seq=_next(last), event_id=None, problem=f"the seals from here to {seq - 1} are missing")
    if link.event is None:
        return Break(seq=seq, event_id=event_id, problem="its event was deleted")
    if not link.readable:
        return Break(seq=seq, event_id=event_id, problem="its event was changed: it has text that is not UTF-8")
    if seal(link.event, last) != link.seal:
        return Break(seq=seq, event_id=event_id, problem="its event or its seal was changed")
    return None


def _unexpected(found: Seal | Anchor, expected: Seal) -> Break | None:
    if found.hash == expected.hash:
        return None
    event_id = found.event_id if isinstance(found, Seal) else None
    return Break(seq=found.seq, event_id=event_id, problem="it is not the seal that was expected")
