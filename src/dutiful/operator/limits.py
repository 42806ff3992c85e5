"""Limits on what runs at once or starts within a time: their use, and changing one while it is in use."""

from typing import Any

import msgspec

from dutiful.core.json import check_name
from dutiful.operator.actor import OperatorPart
from dutiful.options import whole_number
from dutiful.store.limits import LimitRecord


class Limits(OperatorPart):
    async def all(self, *, keys: int = 10) -> list[LimitRecord]:
        """All limits that workers have declared, by name; each with the keys that most jobs wait for."""
        self._actor.check_fleetwide("the list of limits")
        return await self._store.limits.all(keys=keys)

    async def set(self, name: str, most: int | None, reason: str | None = None) -> LimitRecord | None:
        """Sets how many may run or start, in place of the declared number; returns None if there is no such limit.

        It holds until it is set again, also after a deploy. With 0, nothing starts; what runs is not stopped. With
        None, it is the declared number again, and waits that services have asked for end.
        """

        def possible() -> None:
            check_name(name, "limit")
            if most is not None:
                whole_number(most, "most", 0)

        before = None if self._actor.tenant is not None else await self._find(name)
        async with self._actor.audited(
            "limit.set", name, reason, before=_number(before), fleetwide=True, check=possible
        ) as action:
            action.done = await self._store.limits.choose(name, most)
            found = await self._find(name)
            action.after = _number(found)
        if action.done:
            await self._store.limits.admit(1_000, everywhere=True)
        return found

    async def _find(self, name: str) -> LimitRecord | None:
        return next((one for one in await self._store.limits.all() if one.limit.name == name), None)


def facts(record: LimitRecord) -> dict[str, Any]:
    """A limit and its use in one flat record."""
    limit = record.limit
    return {
        "name": limit.name,
        "most": record.most,
        "declared": limit.most,
        "per_seconds": None if limit.per is None else limit.per.total_seconds(),
        "burst": limit.burst,
        "window": None if limit.per is None else "fixed" if limit.fixed else "sliding",
        "kinds": record.kinds,
        "used": record.used,
        "waiting": record.waiting,
        "feedback": limit.feedback,
        "keys": [msgspec.structs.asdict(one) for one in record.keys],
    }


def _number(record: LimitRecord | None) -> dict[str, Any] | None:
    return None if record is None else {"most": record.most, "declared": record.limit.most}
