"""The contract of API tokens: who may use the admin API."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.principal import Role


class ApiToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret, of which only a hash is stored."""

    id: UUID
    name: str  # who or what uses it: the principal in the audit trail
    role: Role
    tenant: str | None = None
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None  # exact to about a minute

    def valid(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


def hash_of(secret: str) -> str:
    """The hash that is stored instead of a token's secret; it needs no salt, because the secret has 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


class TokenStore(Protocol):
    async def put(self, token: ApiToken, hash: str) -> None: ...

    async def find(self, hash: str) -> ApiToken | None:
        """The token with this hash, valid or not; None if there never was one."""

    async def all(self) -> list[ApiToken]:
        """All tokens, newest first."""

    async def revoke(self, token_id: UUID, *, now: datetime | None = None) -> bool:
        """Revokes a token; False if there is none, or it was revoked before."""

    async def touch(self, token_ids: Sequence[UUID], *, now: datetime | None = None) -> None:
        """Records that these tokens were used now."""
