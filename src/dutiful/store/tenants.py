"""The contract of a store whose database keeps tenants apart by itself."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec


class TenantMember(msgspec.Struct, frozen=True):
    """A role of the database in one of the groups application, worker and member; only members are bound to tenants."""

    role: str
    group: str
    tenants: Sequence[str]


class TenantStatus(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool
    role: str  # of this connection
    guarded: Sequence[str]  # tables
    members: Sequence[TenantMember]


@runtime_checkable
class TenantStore(Protocol):
    def sql(self) -> str:
        """What enable_tenants does, as a script for a DBA."""

    async def enable(self) -> None:
        """Guard every table, or do so again. Other processes learn of it when they open their stores anew."""

    async def disable(self) -> None:
        """Take the guard away, and members' rights with it."""

    async def refresh(self) -> None:
        """Read again whether tenants are on, because that may have changed since the store was opened."""

    async def bind(self, role: str, tenant: str) -> bool:
        """Let a login role see a tenant; False if it could before."""

    async def unbind(self, role: str, tenant: str | None = None) -> list[str]:
        """From one tenant, or from all; returns those that it was bound to."""

    async def status(self) -> TenantStatus: ...
