"""Whether the database itself keeps tenants apart, and which of its roles sees which: for whoever sets it up."""

from dutiful.core.errors import UsageError
from dutiful.core.principal import Role
from dutiful.core.tenant import check_tenant
from dutiful.guarding import Guarding, TenantStatus
from dutiful.operator.door import Door
from dutiful.store import Store


class Tenants(Door):
    async def status(self) -> TenantStatus:
        self._check_fleetwide("the list of tenants' roles")
        return await guarding(self._store).tenant_status()

    async def enable(self, reason: str | None = None) -> None:
        async with self._act("tenants.on", None, reason, role=Role.ADMIN, fleetwide=True):
            await guarding(self._store).enable_tenants()

    async def disable(self, reason: str | None = None) -> None:
        async with self._act("tenants.off", None, reason, role=Role.ADMIN, fleetwide=True):
            await guarding(self._store).disable_tenants()

    async def bind(self, role: str, tenant: str, reason: str | None = None) -> bool:
        """Let a login role see a tenant; False if it could before."""
        check_tenant(tenant)
        async with self._act("tenants.bind", role, reason, role=Role.ADMIN, tenant=tenant, fleetwide=True) as act:
            changed = await guarding(self._store).bind_tenant(role, tenant)
            act.after = {"tenant": tenant, "changed": changed}
        return changed

    async def unbind(self, role: str, tenant: str | None = None, reason: str | None = None) -> list[str]:
        """From one tenant, or from all; returns those that it was bound to."""
        async with self._act("tenants.unbind", role, reason, role=Role.ADMIN, tenant=tenant, fleetwide=True) as act:
            freed = await guarding(self._store).unbind_tenant(role, tenant)
            act.after = {"tenants": freed}
        return freed


def guarding(store: Store) -> Guarding:
    """The store, if its database can do it."""
    if not isinstance(store, Guarding):
        raise UsageError(
            f"{store.url} is one file, and whoever can open it can read all of it: only Postgres keeps tenants apart "
            "by itself; here app.tenant(...) and --tenant do"
        )
    return store
