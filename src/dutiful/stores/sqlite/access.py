"""API tokens, of which only hashes are kept."""

from collections.abc import Sequence
from uuid import UUID

from dutiful.access import ApiToken
from dutiful.core.principal import Role
from dutiful.stores.sqlite.codec import maybe_micros, maybe_moment, micros, moment, uuid
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL


def put(db: Connection, token: ApiToken, hash: str) -> None:
    db.run(
        SQL["insert_token"],
        (token.id.bytes, hash, token.name, token.role.value, token.tenant, micros(token.created_at), token.created_by,
         maybe_micros(token.expires_at), maybe_micros(token.revoked_at), maybe_micros(token.last_used_at)),
    )  # fmt: skip


def token_of(db: Connection, hash: str) -> ApiToken | None:
    row = db.row(SQL["token_of"], (hash,))
    return None if row is None else _token(row)


def tokens(db: Connection) -> list[ApiToken]:
    return [_token(row) for row in db.rows(SQL["tokens"])]


def revoke(db: Connection, token_id: UUID, now: int) -> bool:
    return bool(db.change(SQL["revoke_token"], (token_id.bytes, now)))


def touch(db: Connection, token_ids: Sequence[UUID], now: int) -> None:
    db.many(SQL["touch_token"], [(token_id.bytes, now) for token_id in token_ids])


def _token(row: Row) -> ApiToken:
    id_, name, role, tenant, created_at, created_by, expires_at, revoked_at, last_used_at = row
    return ApiToken(
        id=uuid(id_),
        name=name,
        role=Role(role),
        tenant=tenant,
        created_at=moment(created_at),
        created_by=created_by,
        expires_at=maybe_moment(expires_at),
        revoked_at=maybe_moment(revoked_at),
        last_used_at=maybe_moment(last_used_at),
    )
