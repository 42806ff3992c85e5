"""Finished jobs whose time is over, deleted when a person or a job of theirs says so."""

from datetime import timedelta

from dutiful.core.duration import brief, duration
from dutiful.core.principal import Role
from dutiful.operator.door import Door

STEP = 1_000


class Deleting(Door):
    async def delete_finished(self, older_than: timedelta, reason: str | None = None) -> int:
        """Delete what ended longer ago than this, in small steps; returns how many. Dead letters that are open and
        webhooks that wait to be posted stay, and a job that others wait for.

        As retention does by itself: the next worker calls what `on_delete` names, and lets the event go out.
        """
        async with self._act(
            "job.delete_finished",
            brief(older_than),
            reason,
            role=Role.ADMIN,
            fleetwide=True,
            check=lambda: duration(older_than, "older_than"),
        ) as act:
            deleted, cursor, more = 0, None, True
            while more:
                # Not told of: only a worker has the callbacks. What is cut off here is told of all the same.
                parted = await self._store.remove(older_than, STEP, cursor, stale_only=False, told=False)
                deleted, cursor = deleted + len(parted.jobs), parted.cursor
                more = cursor is not None
            act.after = {"deleted": deleted}
        return deleted
