"""Tokens of the admin API. Only for an administrator without a tenant."""

import secrets
from datetime import UTC, datetime, timedelta
from uuid import UUID

import uuid_utils.compat

from dutiful.core import ids
from dutiful.core.errors import MalformedId, PayloadInvalid
from dutiful.core.json import check_name
from dutiful.core.principal import Role, check_tenant
from dutiful.core.redaction.redact import redact
from dutiful.operator.actor import OperatorPart
from dutiful.store.tokens import ApiToken, hash_of

PREFIX = "dtf_"  # so that scanners of code and logs recognise one that got lost
SECRET_BYTES = 32


class Tokens(OperatorPart):
    async def all(self) -> list[ApiToken]:
        self._actor.check_role("the list of tokens", Role.ADMIN)
        self._actor.check_fleetwide("the list of tokens")
        return await self._store.tokens.all()

    async def create(
        self,
        name: str,
        role: Role,
        tenant: str | None = None,
        expires: timedelta | datetime | None = None,
        reason: str | None = None,
    ) -> tuple[ApiToken, str]:
        """Creates a token and returns it with its secret, of which only a hash is stored."""
        now = datetime.now(UTC)
        token = ApiToken(
            id=uuid_utils.compat.uuid7(),
            name=name,
            role=role,
            tenant=tenant,
            created_at=now,
            created_by=self._actor.principal.name,
            expires_at=now + expires if isinstance(expires, timedelta) else expires,
        )
        async with self._actor.audited(
            "token.create",
            name,
            reason,
            role=Role.ADMIN,
            tenant=tenant,
            fleetwide=True,
            check=lambda: _check(token),
        ) as action:
            secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
            await self._store.tokens.put(token, hash_of(secret))
            action.after = {"token": ids.public(token.id), "role": role, "expires_at": token.expires_at}
        return token, secret

    async def find(self, text: str) -> ApiToken | None:
        """Finds a token by its id, in either spelling, or by its secret, which errors do not repeat."""
        tokens = await self.all()
        if text.startswith(PREFIX):
            found = await self._store.tokens.find(hash_of(text))
            return None if found is None else next((token for token in tokens if token.id == found.id), None)
        try:
            wanted = ids.parse_any(text)
        except MalformedId:
            raise PayloadInvalid(
                "this is neither a token's id nor its secret: copy all of it; `dutiful tokens list` shows the ids",
                "token_id",
            ) from None
        return next((token for token in tokens if token.id == wanted), None)

    async def revoke(self, token_id: UUID, reason: str | None = None) -> bool:
        """False if there is none, or it was revoked before."""
        async with self._actor.audited(
            "token.revoke", ids.public(token_id), reason, role=Role.ADMIN, fleetwide=True
        ) as action:
            changed = action.done = await self._store.tokens.revoke(token_id)
            action.after = {"changed": changed}
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
