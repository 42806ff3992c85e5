"""Who acts: principals, their roles and their tenant."""

from enum import StrEnum

import msgspec

from dutiful.core.errors import UsageError

ANY_TENANT = "*"  # in the database's setting: rows of every tenant are visible
TENANT_LIMIT = 200  # characters


class Role(StrEnum):
    """Roles; each may do all that the roles before it may."""

    VIEWER = "viewer"  # sees jobs of its own tenant
    STAFF = "staff"  # an employee; alone it gives no access to the admin API
    MANAGER = "manager"  # reviews and acts
    ADMIN = "admin"  # also the fleet and tokens

    def reaches(self, other: "Role") -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


class Origin(StrEnum):
    """The interface through which an action came."""

    CLI = "cli"
    API = "api"
    PYTHON = "python"
    SERVICE = "service"
    SQL = "sql"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A person or program that acts. With a `tenant`, it sees nothing of other tenants."""

    name: str
    role: Role = Role.ADMIN
    tenant: str | None = None
    origin: Origin = Origin.PYTHON
    address: str | None = None  # where a request came from


def check_tenant_length(tenant: str | None) -> str | None:
    """Refuses a name that is longer than every table takes it."""
    if tenant is not None and len(tenant) > TENANT_LIMIT:
        raise UsageError(f"tenant {tenant!r:.80} has {len(tenant):,} characters: give a name of {TENANT_LIMIT} at most")
    return tenant


def check_tenant(tenant: str) -> str:
    """Refuses a name that would mean all tenants, or none, or that no database can store."""
    if tenant in ("", ANY_TENANT) or "\0" in tenant:
        raise UsageError(f"tenant {tenant!r:.80} is not a name: give one that is not empty, not * and without NUL")
    check_tenant_length(tenant)
    return tenant
