"""The edge of each organization, reached with that organization's own credential."""

from collections.abc import Callable

from examples.docverse.ports import Edge
from examples.docverse.records import Org
from examples.docverse.services.credentials import Credentials

EdgeFor = Callable[[str, str], Edge]
"""Given an organization's slug and its token."""


class Edges:
    def __init__(self, credentials: Credentials, edge_for: EdgeFor) -> None:
        self._credentials = credentials
        self._edge_for = edge_for

    async def of(self, org: Org) -> Edge:
        return self._edge_for(org.slug, await self._credentials.get(org.id, "edge"))
