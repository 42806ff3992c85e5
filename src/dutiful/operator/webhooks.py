"""Webhooks and their posts. Closed to a tenant's principal."""

from uuid import UUID

from dutiful.operator.actor import OperatorPart, recordable
from dutiful.store.webhooks import PostState, WebhookPost, WebhookRecord


class Webhooks(OperatorPart):
    async def all(self) -> list[WebhookRecord]:
        self._actor.check_fleetwide("the list of webhooks")
        return await self._store.webhooks.all()

    async def posts(
        self, *, job_id: UUID | None = None, state: PostState | None = None, limit: int = 50
    ) -> list[WebhookPost]:
        self._actor.check_fleetwide("the list of webhook messages")
        return await self._store.webhooks.posts(job_id=job_id, state=state, limit=limit)

    async def enable(self, name: str, enabled: bool, reason: str | None = None) -> bool:
        """Enables or disables a webhook; False if that changes nothing."""
        verb = "enable" if enabled else "disable"
        async with self._actor.audited(f"webhook.{verb}", name, reason, fleetwide=True) as action:
            if enabled:
                changed = await self._store.webhooks.enable(name)
            else:
                recorded = recordable(reason or f"disabled by {self._actor.principal.name}")
                changed = await self._store.webhooks.disable(name, recorded)
            action.after, action.done = {"enabled": enabled, "changed": changed}, changed
        return changed

    async def remove(self, name: str, reason: str | None = None) -> bool:
        """Removes a webhook that the code no longer declares; False if there is none of that name."""
        async with self._actor.audited("webhook.remove", name, reason, fleetwide=True) as action:
            known = action.done = await self._store.webhooks.remove(name)
            action.after = {"known": known}
        return known

    async def redeliver(self, post_id: UUID, reason: str | None = None) -> bool:
        """Posts a message again that was delivered or given up, with all its attempts; False if there is none such."""
        async with self._actor.audited("webhook.redeliver", str(post_id), reason, fleetwide=True) as action:
            again = action.done = await self._store.webhooks.redeliver(post_id)
            action.after = {"again": again}
        return again
