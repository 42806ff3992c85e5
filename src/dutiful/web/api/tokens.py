"""Tokens of the admin API over HTTP, for administrators."""

from datetime import datetime

import msgspec
from pydantic import Field

from dutiful.core.errors import PayloadInvalid
from dutiful.core.principal import Role
from dutiful.web.admission import OperatorDep
from dutiful.web.operations import Operations
from dutiful.web.problems import Problem, field_problem
from dutiful.web.shapes import NO_REASON, Ask, LongText, Moment, PublicId, Reason, Shape, Text

tokens = Operations("Tokens", "/admin/tokens", role=Role.ADMIN, fleetwide=True)


class ApiToken(Shape):
    id: PublicId
    name: str
    role: Role
    tenant: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = Field(description="Exact to about a minute.")


class ApiTokens(Shape):
    tokens: list[ApiToken]


class TokenAsk(Ask):
    name: Text = Field(description="Who or what uses it: the principal in the audit trail.", examples=["ada"])
    role: Role
    tenant: Text | None = None
    expires_at: Moment | None = None
    reason: LongText | None = None


class NewApiToken(ApiToken):
    token: str = Field(description="The secret; it is shown only once, because only a hash of it is stored.")


class RevokeAnswer(Shape):
    id: PublicId
    changed: bool = Field(description="false: it was revoked before.")


@tokens.read("/")
async def list_tokens(operator: OperatorDep) -> ApiTokens:
    """List all tokens, the newest first, without their secrets."""
    return ApiTokens(tokens=[ApiToken.model_validate(one) for one in await operator.tokens.all()])


@tokens.act("/", "token.create", status=201)
async def create_token(operator: OperatorDep, ask: TokenAsk) -> NewApiToken:
    """Create a token; its secret is shown only in this answer."""
    made, secret = await operator.tokens.create(ask.name, ask.role, ask.tenant, ask.expires_at, ask.reason)
    return NewApiToken(**msgspec.structs.asdict(made), token=secret)


@tokens.act("/{token_id}/revoke/", "token.revoke", target="token_id")
async def revoke_token(operator: OperatorDep, token_id: Text, ask: Reason = NO_REASON) -> RevokeAnswer:
    """Revoke a token, by its id or its secret."""
    try:
        token = await operator.tokens.find(token_id)
    except PayloadInvalid as error:
        raise field_problem("token_id", str(error)) from None
    if token is None:
        raise Problem(404, "there is no such token")
    return RevokeAnswer(id=token.id, changed=await operator.tokens.revoke(token.id, ask.reason))
