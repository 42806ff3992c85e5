"""Fair shares: how much tenants run, and how much more than others one gets."""

from dutiful.core.json import check_name
from dutiful.core.principal import check_tenant
from dutiful.core.shares import HEAVIEST
from dutiful.operator.actor import OperatorPart
from dutiful.options import whole_number
from dutiful.store.shares import ShareRecord


class Shares(OperatorPart):
    async def all(self) -> list[ShareRecord]:
        """The tenants that run jobs or have a weight of their own, those that run most first."""
        self._actor.check_fleetwide("the list of shares")
        return await self._store.shares.all()

    async def set(self, tenant: str, weight: int | None, reason: str | None = None) -> ShareRecord:
        """Sets the weight of a tenant (None: 1 again): with 2, it has twice the slots of others in fair lanes.

        Only while its jobs wait; workers learn it when they next look for jobs.
        """

        def possible() -> None:
            check_tenant(check_name(tenant, "tenant"))
            if weight is not None:
                whole_number(weight, "weight", 1, HEAVIEST, f" to {HEAVIEST}")

        before = None if self._actor.tenant is not None else await self._find(tenant)
        async with self._actor.audited(
            "share.set", tenant, reason, before=_weight(before), fleetwide=True, check=possible
        ) as action:
            await self._store.shares.put(tenant, weight)
            found = await self._find(tenant)
            action.after = _weight(found)
        return found

    async def _find(self, tenant: str) -> ShareRecord:
        found = await self._store.shares.all()
        return next((one for one in found if one.tenant == tenant), ShareRecord(tenant))


def _weight(record: ShareRecord | None) -> dict[str, int] | None:
    return None if record is None else {"weight": record.weight}
