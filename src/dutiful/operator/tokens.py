"""Tokens of the admin API: made, listed and revoked by an administrator of the whole house."""

import secrets
from datetime import UTC, datetime, timedelta
from uuid import UUID

import uuid_utils.compat

from dutiful.access import ApiToken, hash_of
from dutiful.core import ids
from dutiful.core.errors import MalformedId, PayloadInvalid
from dutiful.core.payload import check_name
from dutiful.core.principal import Role
from dutiful.core.sensitive import redact
from dutiful.core.tenant import check_tenant
from dutiful.operator.door import Door

PREFIX = "dtf_"  # so that scanners of code and logs recognise one that got lost
SECRET_BYTES = 32


class Tokens(Door):
    async def tokens(self) -> list[ApiToken]:
        self._check_role("the list of tokens", Role.ADMIN)
        self._check_fleetwide("the list of tokens")
        return await self._store.tokens()

    async def create_token(
        self,
        name: str,
        role: Role,
        tenant: str | None = None,
        expires: timedelta | datetime | None = None,
        reason: str | None = None,
    ) -> tuple[ApiToken, str]:
        """A new token and its secret, which is told here and now only: a hash of it is all that is stored."""
        now = datetime.now(UTC)
        token = ApiToken(
            id=uuid_utils.compat.uuid7(),
            name=name,
            role=role,
            tenant=tenant,
            created_at=now,
            created_by=self.principal.name,
            expires_at=now + expires if isinstance(expires, timedelta) else expires,
        )
        async with self._act(
            "token.create",
            name,
            reason,
            role=Role.ADMIN,
            tenant=tenant,
            fleetwide=True,
            check=lambda: _check(token),
        ) as act:
            secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
            await self._store.put_token(token, hash_of(secret))
            act.after = {"token": ids.public(token.id), "role": role, "expires_at": token.expires_at}
        return token, secret

    async def find_token(self, text: str) -> ApiToken | None:
        """By its id, in either spelling, or its secret, which whoever lost it may have at hand; it is not repeated."""
        tokens = await self.tokens()
        if text.startswith(PREFIX):
            found = await self._store.token_of(hash_of(text))
            return None if found is None else next((token for token in tokens if token.id == found.id), None)
        try:
            wanted = ids.parse_any(text)
        except MalformedId:
            raise PayloadInvalid(
                "this is neither a token's id nor its secret: copy the whole of it; `dutiful token list` shows the ids",
                "token_id",
            ) from None
        return next((token for token in tokens if token.id == wanted), None)

    async def revoke_token(self, token_id: UUID, reason: str | None = None) -> bool:
        """False if there is none, or it was revoked before."""
        async with self._act("token.revoke", ids.public(token_id), reason, role=Role.ADMIN, fleetwide=True) as act:
            changed = act.done = await self._store.revoke_token(token_id)
            act.after = {"changed": changed}
        return changed


def _check(token: ApiToken) -> None:
    if redact(token.name) != token.name:
        raise PayloadInvalid("name looks like a secret: give the name of who or what uses the token", "name")
    check_name(token.name, "name")
    if token.tenant is not None:
        check_tenant(check_name(token.tenant, "tenant"))
    end = token.expires_at
    if end is not None and (end.tzinfo is None or end <= token.created_at):
        raise PayloadInvalid(
            f"expires_at {end} must be a time to come, with a time zone, or a span of time like 90d", "expires_at"
        )
