"""What is nobody's alone: workers, pauses, schedules, webhooks. Closed to a tenant's principal."""

from datetime import UTC, datetime
from uuid import UUID

from dutiful.acting import EVERY_LANE, Pause, PauseScope
from dutiful.core.errors import UsageError
from dutiful.core.payload import check_name
from dutiful.duties import ScheduleRecord, WorkerRecord
from dutiful.operator.door import Door, recordable
from dutiful.outbox import PostState, WebhookPost, WebhookRecord


class Fleetwide(Door):
    # --- reads

    async def workers(self) -> list[WorkerRecord]:
        self._check_fleetwide("the list of workers")
        return await self._store.workers()

    async def pauses(self) -> list[Pause]:
        self._check_fleetwide("the list of pauses")
        return await self._store.pauses()

    async def schedules(self) -> list[ScheduleRecord]:
        self._check_fleetwide("the list of schedules")
        return await self._store.schedules()

    async def webhooks(self) -> list[WebhookRecord]:
        self._check_fleetwide("the list of webhooks")
        return await self._store.webhooks()

    async def posts(
        self, *, job_id: UUID | None = None, state: PostState | None = None, limit: int = 50
    ) -> list[WebhookPost]:
        self._check_fleetwide("the list of webhook messages")
        return await self._store.posts(job_id=job_id, state=state, limit=limit)

    # --- acts

    async def pause(self, scope: PauseScope | str, name: str, reason: str | None = None) -> bool:
        """Let nothing of it start any more; False if it was paused already. The lane `*` is every lane."""
        scope = _scope(scope)
        async with self._act(
            f"{scope}.pause", name, reason, fleetwide=True, check=lambda: _check_pausable(scope, name)
        ) as act:
            told = None if reason is None else recordable(reason)
            pause = Pause(scope, name, datetime.now(UTC), self.principal.name, told)
            changed = await self._store.pause(pause)
            act.after = {"paused": True, "changed": changed}
        return changed

    async def resume(self, scope: PauseScope | str, name: str, reason: str | None = None) -> bool:
        """Undo a pause; False if there was none."""
        scope = _scope(scope)
        async with self._act(f"{scope}.resume", name, reason, fleetwide=True) as act:
            changed = await self._store.resume(scope, name)
            act.after = {"paused": False, "changed": changed}
        return changed

    async def enable_schedule(self, name: str, enabled: bool, reason: str | None = None) -> bool:
        """Let a schedule fire or not; False if there is none of that name."""
        action = "schedule.enable" if enabled else "schedule.disable"
        async with self._act(action, name, reason, fleetwide=True) as act:
            known = act.done = await self._store.enable_schedule(name, enabled)
            act.after = {"enabled": enabled, "known": known}
        return known

    async def remove_schedule(self, name: str, reason: str | None = None) -> bool:
        """Forget a schedule that the code no longer declares; False if there is none of that name."""
        async with self._act("schedule.remove", name, reason, fleetwide=True) as act:
            known = act.done = await self._store.remove_schedule(name)
            act.after = {"known": known}
        return known

    async def enable_webhook(self, name: str, enabled: bool, reason: str | None = None) -> bool:
        """Let an endpoint hear of jobs or not; False if that changes nothing."""
        action = "webhook.enable" if enabled else "webhook.disable"
        async with self._act(action, name, reason, fleetwide=True) as act:
            if enabled:
                changed = await self._store.enable_webhook(name)
            else:
                told = recordable(reason or f"disabled by {self.principal.name}")
                changed = await self._store.disable_webhook(name, told)
            act.after, act.done = {"enabled": enabled, "changed": changed}, changed
        return changed

    async def remove_webhook(self, name: str, reason: str | None = None) -> bool:
        """Forget a webhook that the code no longer declares; False if there is none of that name."""
        async with self._act("webhook.remove", name, reason, fleetwide=True) as act:
            known = act.done = await self._store.remove_webhook(name)
            act.after = {"known": known}
        return known

    async def redeliver(self, post_id: UUID, reason: str | None = None) -> bool:
        """Post a webhook that has ended again, with all its attempts; False if there is none, or it still waits."""
        async with self._act("webhook.redeliver", str(post_id), reason, fleetwide=True) as act:
            again = act.done = await self._store.post_again(post_id)
            act.after = {"again": again}
        return again


def _check_pausable(scope: PauseScope, name: str) -> None:
    check_name(name, scope.value)
    if name == EVERY_LANE and scope is not PauseScope.LANE:
        raise UsageError(f"a pause of the {scope} {name!r} would hold nothing; for everything: the lane {name!r}")


def _scope(text: str) -> PauseScope:
    try:
        return PauseScope(text)
    except ValueError:
        raise UsageError(f"{text!r:.80} cannot be paused: it is a {', a '.join(PauseScope)} that can") from None
