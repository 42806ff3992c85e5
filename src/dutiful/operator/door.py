"""The door itself: who acts, how far their word goes, and the trail that every act leaves."""

import getpass
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from inspect import isawaitable
from typing import Any
from uuid import UUID

import uuid_utils.compat

from dutiful.alert import BUILT_IN
from dutiful.client import REASON_LIMIT, Client
from dutiful.core.alert import AlertRule
from dutiful.core.audit import AuditEvent, AuditOutcome
from dutiful.core.breaker import BreakerPolicy
from dutiful.core.errors import (
    BulkRunNotFound,
    DeadLetterNotFound,
    DutifulError,
    IllegalTransition,
    JobNotFound,
    NotAllowed,
    StoreUnavailable,
    UniqueConflict,
    UsageError,
)
from dutiful.core.payload import check_name, clean
from dutiful.core.principal import Principal, Role
from dutiful.core.sensitive import redact
from dutiful.kind import Kind

log = logging.getLogger("dutiful.operator")
TARGET_LIMIT = 500
# The asker's fault, and nothing was changed; anything else that goes wrong is a failure.
REFUSED = (
    UsageError,
    NotAllowed,
    JobNotFound,
    DeadLetterNotFound,
    BulkRunNotFound,
    IllegalTransition,
    UniqueConflict,
)


@dataclass(slots=True)
class Act:
    """One act that is under way; `after` is what it came to, and `recorded` that its end is in the trail already.

    `done` is False if there was nothing that it could be done to.
    """

    asked: AuditEvent
    after: Any = None
    done: bool = True
    recorded: bool = False

    def ended(self, outcome: AuditOutcome, after: Any = None) -> AuditEvent:
        """The event of its end."""
        asked = self.asked
        return AuditEvent(
            id=uuid_utils.compat.uuid7(),
            act=asked.act,
            at=datetime.now(UTC),
            principal=asked.principal,
            role=asked.role,
            origin=asked.origin,
            action=asked.action,
            outcome=outcome,
            target=asked.target,
            tenant=asked.tenant,
            reason=asked.reason,
            before=asked.before,
            after=after,
            address=asked.address,
        )


class Door:
    """What all parts of the operator share."""

    def __init__(
        self,
        client: Client,
        principal: Principal | str | None = None,
        kinds: Mapping[str, Kind[Any, Any]] | None = None,
        alert_rules: Mapping[str, AlertRule] | None = None,
        breaker_policies: Mapping[str, BreakerPolicy] | None = None,
    ) -> None:
        given = os_user() if principal is None else principal
        self.principal = given if isinstance(given, Principal) else Principal(name=check_name(given, "principal"))
        self._client = client
        self._kinds = kinds or {}
        self._alert_rules = BUILT_IN if alert_rules is None else alert_rules
        self._breaker_policies = breaker_policies or {}
        tenant = self.principal.tenant
        # Where the database can, it shows a tenant's principal nothing else; that is the second net, not the first.
        self._store = client.store if tenant is None else client.store.for_tenant(tenant)

    @property
    def tenant(self) -> str | None:
        return self.principal.tenant

    @asynccontextmanager
    async def _act(
        self,
        action: str,
        target: str | None,
        reason: str | None,
        *,
        role: Role = Role.MANAGER,
        tenant: str | None = None,
        before: Any = None,
        fleetwide: bool = False,
        act: UUID | None = None,
        check: Callable[[], object] | None = None,
    ) -> AsyncIterator[Act]:
        """The one door of every act: on record before it is done, so that none goes unseen, and when it has ended.

        `tenant` is whose the target is; `fleetwide`: it is nobody's, so it is closed to a tenant's principal; `check`
        raises if the act cannot be begun. One that is refused so has never begun, and leaves that one event.
        """
        under_way = Act(self._event(action, target, reason, tenant, before, act))
        try:
            self._check_role(action, role)
            if fleetwide:
                self._check_fleetwide(action)
            if check is not None and isawaitable(checked := check()):
                await checked
            await self._store.append_audit([under_way.asked])
            yield under_way
        except StoreUnavailable:
            # As when we are cancelled: whether it was done, nobody knows, and an act without an end says so.
            raise
        except Exception as error:
            outcome = AuditOutcome.REFUSED if isinstance(error, REFUSED) else AuditOutcome.FAILED
            told = recordable(f"{type(error).__name__}: {error}", TARGET_LIMIT)
            await self._record(under_way, under_way.ended(outcome, {"error": told}))
            raise
        asked = under_way.asked
        line = f"{asked.principal}: {action} {asked.target} ({asked.reason or 'no reason given'})"
        log.info("%s", one_line(line))
        outcome = AuditOutcome.SUCCEEDED if under_way.done else AuditOutcome.FAILED
        await self._record(under_way, under_way.ended(outcome, under_way.after))

    async def refuse(self, action: str, target: str | None, problem: str) -> None:
        """Record an act that was turned away at an outer door, before it could be asked for here."""
        refused = Act(self._event(action, target, None)).ended(
            AuditOutcome.REFUSED, {"error": recordable(problem, TARGET_LIMIT)}
        )
        await self._store.append_audit([refused])

    async def _record(self, act: Act, event: AuditEvent) -> None:
        """What was done is done: a trail that cannot be written now must not make it look undone."""
        if act.recorded:
            return
        try:
            await self._store.append_audit([event])
        except DutifulError as error:
            log.error(
                "%s %s has %s, but that could not be recorded: %s", event.action, event.target, event.outcome, error
            )

    def _event(
        self,
        action: str,
        target: str | None,
        reason: str | None,
        tenant: str | None = None,
        before: Any = None,
        act: UUID | None = None,
    ) -> AuditEvent:
        who, event_id = self.principal, uuid_utils.compat.uuid7()
        return AuditEvent(
            id=event_id,
            act=act or event_id,
            at=datetime.now(UTC),
            principal=who.name,
            role=who.role,
            origin=who.origin,
            action=action,
            outcome=AuditOutcome.REQUESTED,
            target=None if target is None else recordable(target, TARGET_LIMIT),
            tenant=tenant if who.tenant is None else who.tenant,
            reason=None if reason is None else recordable(reason, REASON_LIMIT),
            before=before,
            address=who.address,
        )

    def _check_role(self, what: str, role: Role) -> None:
        if not self.principal.role.reaches(role):
            raise NotAllowed(f"{self.principal.name} has the role {self.principal.role}: {what} needs {role} or higher")

    def _check_fleetwide(self, what: str) -> None:
        if self.principal.tenant is not None:
            raise NotAllowed(
                f"{self.principal.name} acts for the tenant {self.principal.tenant}: {what} is about all tenants, "
                "so it is for a principal without one"
            )

    def _ours(self, tenant: str | None) -> bool:
        """Whether what belongs to `tenant` exists for the principal."""
        return self.principal.tenant is None or tenant == self.principal.tenant

    def scope(self, asked: str | None) -> str | None:
        """The tenant to look within: the principal's own, or whichever they ask for."""
        own = self.principal.tenant
        if own is not None and asked is not None and asked != own:
            raise NotAllowed(f"{self.principal.name} acts for the tenant {own}: leave the tenant {asked!r:.80} out")
        return asked if own is None else own


def recordable(text: str, limit: int = REASON_LIMIT) -> str:
    """What people write, as it is kept: somebody may have pasted a secret, and the trail is for good."""
    return clean(redact(text), limit)


def one_line(text: str) -> str:
    """For a log, where a line break would let a person write a line of ours."""
    return "".join(c if c.isprintable() else " " for c in text)


def os_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return f"uid {os.getuid()}"
