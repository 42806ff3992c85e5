"""The contract of a store whose database itself isolates tenants."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec


class TenantMember(msgspec.Struct, frozen=True):
    """A database role in one of the groups operator, client, worker, sql_worker, reader and member.

    Only members are bound to tenants.
    """

    role: str
    group: str
    tenants: Sequence[str]


class TenantStatus(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool
    role: str  # of this connection
    isolated: Sequence[str]  # tables under row-level security
    members: Sequence[TenantMember]


@runtime_checkable
class TenantStore(Protocol):
    def sql(self) -> str:
        """What `enable` does, as a script for a DBA."""

    async def enable(self) -> None:
        """Isolates tenants in every table; can be repeated. Other processes notice when they reopen their stores."""

    async def disable(self) -> None:
        """Ends the isolation, and removes all rights of members."""

    def roles_sql(self) -> str:
        """What `make_roles` does, as a script for a DBA."""

    async def make_roles(self) -> str | None:
        """Makes all groups of roles and gives them their rights, with or without isolation; can be repeated.

        Gives the schema to an owner that cannot log in. Returns the owner that it still has, if that can.
        """

    async def refresh(self) -> None:
        """Reads again whether tenants are on, because that may have changed since the store was opened."""

    async def bind(self, role: str, tenant: str) -> bool:
        """Lets a login role see a tenant; False if it could before."""

    async def unbind(self, role: str, tenant: str | None = None) -> list[str]:
        """Unbinds a role from one tenant, or from all; returns those that it was bound to."""

    async def status(self) -> TenantStatus: ...
