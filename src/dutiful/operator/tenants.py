"""Row-level separation of tenants by the database, and which login role sees which tenant."""

from dutiful.core.errors import UsageError
from dutiful.core.principal import Role, check_tenant
from dutiful.operator.actor import OperatorPart
from dutiful.store import Store
from dutiful.store.tenants import TenantStatus, TenantStore


class Tenants(OperatorPart):
    async def status(self) -> TenantStatus:
        self._actor.check_fleetwide("the list of tenants' roles")
        return await tenant_store(self._store).status()

    async def enable(self, reason: str | None = None) -> None:
        async with self._actor.audited("tenants.on", None, reason, role=Role.ADMIN, fleetwide=True):
            await tenant_store(self._store).enable()

    async def disable(self, reason: str | None = None) -> None:
        async with self._actor.audited("tenants.off", None, reason, role=Role.ADMIN, fleetwide=True):
            await tenant_store(self._store).disable()

    async def make_roles(self, reason: str | None = None) -> str | None:
        """Makes the groups of database roles, with the rights of each; returns the schema's owner if it can log in."""
        async with self._actor.audited("roles.on", None, reason, role=Role.ADMIN, fleetwide=True):
            return await tenant_store(self._store).make_roles()

    async def bind(self, role: str, tenant: str, reason: str | None = None) -> bool:
        """Lets a login role see a tenant; False if it could before."""
        check_tenant(tenant)
        async with self._actor.audited(
            "tenants.bind", role, reason, role=Role.ADMIN, tenant=tenant, fleetwide=True
        ) as action:
            changed = await tenant_store(self._store).bind(role, tenant)
            action.after = {"tenant": tenant, "changed": changed}
        return changed

    async def unbind(self, role: str, tenant: str | None = None, reason: str | None = None) -> list[str]:
        """Unbinds a role from one tenant or from all; returns those that it was bound to."""
        async with self._actor.audited(
            "tenants.unbind", role, reason, role=Role.ADMIN, tenant=tenant, fleetwide=True
        ) as action:
            freed = await tenant_store(self._store).unbind(role, tenant)
            action.after = {"tenants": freed}
        return freed


def tenant_store(store: Store) -> TenantStore:
    """The store's tenants, if its database can separate them."""
    if store.tenants is None:
        raise UsageError(
            f"{store.url} is one file, which a process that opens it can read as a whole: only Postgres separates "
            "tenants itself; here app.tenant(...) and --tenant do"
        )
    return store.tenants
