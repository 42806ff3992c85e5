"""Events that people and services send to jobs which wait for them."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import uuid_utils.compat

from dutiful.core.json import check_name
from dutiful.core.principal import check_tenant
from dutiful.core.steps import make_event
from dutiful.operator.actor import OperatorPart

LONGEST_DATA = 256 * 1024


class SentEvents(OperatorPart):
    async def send(
        self,
        name: str,
        key: str,
        data: Any = None,
        *,
        tenant: str | None = None,
        keep: timedelta = timedelta(days=7),
        reason: str | None = None,
    ) -> UUID:
        """Sends an event to the jobs that wait for it, or will within `keep`; returns its id."""
        if tenant is not None:
            check_tenant(check_name(tenant, "tenant"))
        owner = tenant if self._actor.tenant is None else self._actor.tenant
        event = make_event(
            uuid_utils.compat.uuid7(), name, key, data, LONGEST_DATA, tenant=owner, by=self._actor.principal.name
        )
        target = f"{event.name}:{event.key}"
        async with self._actor.audited(
            "event.send", target, reason, tenant=owner, check=lambda: self._actor.scope(tenant)
        ) as action:
            await self._client.send_event(event, keep, self._store)
            action.after = {"id": str(event.id)}
        return event.id
