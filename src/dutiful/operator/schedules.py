"""Schedules. Closed to a tenant's principal."""

from dutiful.operator.actor import OperatorPart
from dutiful.store.schedules import ScheduleRecord


class Schedules(OperatorPart):
    async def all(self) -> list[ScheduleRecord]:
        self._actor.check_fleetwide("the list of schedules")
        return await self._store.schedules.all()

    async def enable(self, name: str, enabled: bool, reason: str | None = None) -> bool:
        """Enables or disables a schedule; False if there is none of that name."""
        verb = "enable" if enabled else "disable"
        async with self._actor.audited(f"schedule.{verb}", name, reason, fleetwide=True) as action:
            known = action.done = await self._store.schedules.enable(name, enabled)
            action.after = {"enabled": enabled, "known": known}
        return known

    async def remove(self, name: str, reason: str | None = None) -> bool:
        """Removes a schedule that the code no longer declares; False if there is none of that name."""
        async with self._actor.audited("schedule.remove", name, reason, fleetwide=True) as action:
            known = action.done = await self._store.schedules.remove(name)
            action.after = {"known": known}
        return known
