"""The principal who acts, what role and tenant allow, and the audit events of every action."""

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

import msgspec
import uuid_utils.compat

from dutiful.client.client import Client
from dutiful.core.breaker.state import BreakerPolicy
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
from dutiful.core.json import check_name
from dutiful.core.metrics.alert import AlertRule
from dutiful.core.principal import Principal, Role, check_tenant_length
from dutiful.core.redaction.redact import redact_value
from dutiful.core.retry.error_info import storable
from dutiful.core.review.audit import (
    ADDRESS_LIMIT,
    PRINCIPAL_LIMIT,
    REASON_LIMIT,
    TARGET_LIMIT,
    VALUE_LIMIT,
    AuditEvent,
    AuditOutcome,
)
from dutiful.declare.alert import BUILT_IN
from dutiful.kind import Kind

log = logging.getLogger("dutiful.operator")
# The caller's fault, and nothing was changed; any other error is a failure.
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
class AuditedAction:
    """An action under way.

    `after` is its result and `done` is False if it found nothing to change; both go into its last audit event, unless
    that is `recorded` already.
    """

    asked: AuditEvent
    after: Any = None
    done: bool = True
    recorded: bool = False

    def ended(self, outcome: AuditOutcome, after: Any = None) -> AuditEvent:
        return msgspec.structs.replace(
            self.asked,
            id=uuid_utils.compat.uuid7(),
            at=datetime.now(UTC),
            outcome=outcome,
            after=recordable_value(after),
        )


class Actor:
    """A principal and the store that they act on; audits every action."""

    def __init__(
        self,
        client: Client,
        principal: Principal | str | None = None,
        kinds: Mapping[str, Kind[Any, Any]] | None = None,
        alert_rules: Mapping[str, AlertRule] | None = None,
        breaker_policies: Mapping[str, BreakerPolicy] | None = None,
    ) -> None:
        given = os_user() if principal is None else principal
        who = given if isinstance(given, Principal) else Principal(name=check_name(given, "principal"))
        # The name is stored with every act, so it is kept as the audit trail keeps texts.
        self.principal = msgspec.structs.replace(who, name=recordable(who.name, PRINCIPAL_LIMIT))
        self.client = client
        self.kinds = kinds or {}
        self.alert_rules = BUILT_IN if alert_rules is None else alert_rules
        self.breaker_policies = breaker_policies or {}
        tenant = self.principal.tenant
        # A second safeguard: where the database separates tenants, it hides the rows of the others.
        self.store = client.store if tenant is None else client.store.for_tenant(tenant)

    @property
    def tenant(self) -> str | None:
        return self.principal.tenant

    @property
    def queues(self) -> set[str]:
        """Those that this code names."""
        watched = (rule.where.get("queue") for rule in self.alert_rules.values())
        return {*(kind.queue for kind in self.kinds.values()), *filter(None, watched)}

    @asynccontextmanager
    async def audited(
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
    ) -> AsyncIterator[AuditedAction]:
        """Records an action before it is done, so that none is missed, and again when it has ended.

        `tenant` owns the target; a `fleetwide` target belongs to no tenant, so it is closed to a tenant's principal.
        `check` raises if the action is impossible; an action refused so leaves a single event.
        """
        under_way = AuditedAction(self._event(action, target, reason, tenant, before, act))
        try:
            self.check_role(action, role)
            if fleetwide:
                self.check_fleetwide(action)
            if check is not None and isawaitable(checked := check()):
                await checked
            await self.store.audit.append([under_way.asked])
            yield under_way
        except StoreUnavailable:
            # Whether it was done is unknown, as after a cancellation, so it gets no last event.
            raise
        except Exception as error:
            outcome = AuditOutcome.REFUSED if isinstance(error, REFUSED) else AuditOutcome.FAILED
            message = recordable(f"{type(error).__name__}: {error}", TARGET_LIMIT)
            await self._record(under_way, under_way.ended(outcome, {"error": message}))
            raise
        asked = under_way.asked
        line = f"{asked.principal}: {action} {asked.target} ({asked.reason or 'no reason given'})"
        log.info("%s", one_line(line))
        outcome = AuditOutcome.SUCCEEDED if under_way.done else AuditOutcome.FAILED
        await self._record(under_way, under_way.ended(outcome, under_way.after))

    async def refuse(self, action: str, target: str | None, problem: str) -> None:
        """Records an action that the web layer refused before it reached the operator."""
        refused = AuditedAction(self._event(action, target, None)).ended(
            AuditOutcome.REFUSED, {"error": recordable(problem, TARGET_LIMIT)}
        )
        await self.store.audit.append([refused])

    async def _record(self, action: AuditedAction, event: AuditEvent) -> None:
        """Logs a failure to write instead of raising: the action itself has taken effect."""
        if action.recorded:
            return
        try:
            await self.store.audit.append([event])
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
            tenant=check_tenant_length(tenant if who.tenant is None else who.tenant),
            reason=None if reason is None else recordable(reason, REASON_LIMIT),
            before=recordable_value(before),
            address=None if who.address is None else recordable(who.address, ADDRESS_LIMIT),
        )

    def check_role(self, what: str, role: Role) -> None:
        if not self.principal.role.reaches(role):
            raise NotAllowed(f"{self.principal.name} has the role {self.principal.role}: {what} needs {role} or higher")

    def check_fleetwide(self, what: str) -> None:
        if self.principal.tenant is not None:
            raise NotAllowed(
                f"{self.principal.name} acts for the tenant {self.principal.tenant}: {what} is about all tenants, "
                "so it is for a principal without one"
            )

    def owns(self, tenant: str | None) -> bool:
        """Whether the principal may see what belongs to `tenant`."""
        return self.principal.tenant is None or tenant == self.principal.tenant

    def scope(self, asked: str | None) -> str | None:
        """The tenant to search in: the principal's own, or the one asked for."""
        own = self.principal.tenant
        if own is not None and asked is not None and asked != own:
            raise NotAllowed(f"{self.principal.name} acts for the tenant {own}: leave the tenant {asked!r:.80} out")
        return asked if own is None else own


class OperatorPart:
    """The operations on one subject."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._store = actor.store
        self._client = actor.client


def recordable(text: str, limit: int = REASON_LIMIT) -> str:
    """Text as the audit trail keeps it: without secrets that were pasted into it, because the trail is permanent."""
    return storable(text, limit)


def recordable_value(value: Any) -> Any:
    """The same for `before` and `after`, which are small unless something has very many parts."""
    safe = redact_value(value)
    data = msgspec.json.encode(safe)
    if len(data) <= VALUE_LIMIT:
        return safe
    return {"cut": storable(data.decode(), REASON_LIMIT), "bytes": len(data)}


def one_line(text: str) -> str:
    """Replaces line breaks, with which a user could forge a log line."""
    return "".join(c if c.isprintable() else " " for c in text)


def os_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return f"uid {os.getuid()}"
