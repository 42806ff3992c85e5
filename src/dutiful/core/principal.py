"""Who acts, and how far their word goes."""

from enum import StrEnum

import msgspec


class Role(StrEnum):
    """Each may do all that those before it may."""

    VIEWER = "viewer"  # looks at jobs of its own tenant
    STAFF = "staff"  # belongs to the house; by itself it opens no door of the admin API
    MANAGER = "manager"  # reviews and acts
    ADMIN = "admin"  # besides: the fleet, tokens

    def reaches(self, other: "Role") -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


class Origin(StrEnum):
    """Through which door an act came."""

    CLI = "cli"
    API = "api"
    PYTHON = "python"
    SERVICE = "service"
    SQL = "sql"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """One who acts. With a `tenant`, nothing of another one exists for them."""

    name: str
    role: Role = Role.ADMIN
    tenant: str | None = None
    origin: Origin = Origin.PYTHON
    address: str | None = None  # where a request came from
