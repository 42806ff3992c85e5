"""API tokens, which are found by the hash of their secret."""

from datetime import timedelta
from typing import Any

from dutiful.core.principal import Role
from dutiful.store import Store
from dutiful.store.tokens import ApiToken
from suite.builders import T0, at, new_id

MINUTE = timedelta(minutes=1)


def api_token(**fields: Any) -> ApiToken:
    usual: dict[str, Any] = {
        "id": new_id(),
        "name": "ci",
        "role": Role.MANAGER,
        "created_at": T0,
        "created_by": "ada",
    }
    return ApiToken(**usual | fields)


class TokenSuite:
    async def test_a_token_is_found_by_its_hash_and_by_nothing_else(self, store: Store) -> None:
        full = api_token(role=Role.STAFF, tenant="acme", expires_at=at(60))
        await store.tokens.put(full, "beef")
        await store.tokens.put(plain := api_token(), "cafe")

        assert await store.tokens.find("beef") == full
        assert await store.tokens.find("cafe") == plain
        assert await store.tokens.find("BEEF") is None
        assert await store.tokens.find("") is None

    async def test_a_token_that_is_there_is_left_as_it_is(self, store: Store) -> None:
        token = api_token()
        await store.tokens.put(token, "beef")

        await store.tokens.put(token, "beef")

        assert await store.tokens.all() == [token]

    async def test_the_newest_token_comes_first(self, store: Store) -> None:
        old, new, same = api_token(created_at=at(1)), api_token(created_at=at(2)), api_token(created_at=at(2))
        for token in (new, old, same):
            await store.tokens.put(token, f"hash of {token.id}")

        assert await store.tokens.all() == [same, new, old]

    async def test_a_revoked_token_is_still_known_as_such(self, store: Store) -> None:
        token, other = api_token(), api_token(created_at=at(-1))
        await store.tokens.put(token, "beef")
        await store.tokens.put(other, "cafe")

        assert await store.tokens.revoke(token.id, now=at(5))

        revoked = await store.tokens.find("beef")
        assert revoked is not None
        assert (revoked.revoked_at, revoked.valid(at(6))) == (at(5), False)
        assert await store.tokens.all() == [revoked, other]
        assert not await store.tokens.revoke(token.id, now=at(6))
        assert await store.tokens.find("beef") == revoked
        assert not await store.tokens.revoke(new_id(), now=at(6))

    async def test_the_last_use_of_a_token_is_known_to_the_minute(self, store: Store) -> None:
        used, other = api_token(), api_token(created_at=at(-1))
        await store.tokens.put(used, "beef")
        await store.tokens.put(other, "cafe")

        await store.tokens.touch([used.id, new_id()], now=at(5))
        await store.tokens.touch([], now=at(6))
        assert [token.last_used_at for token in await store.tokens.all()] == [at(5), None]

        for seconds, late in ((30, 0), (120, 0), (200, 100)):
            await store.tokens.touch([used.id], now=at(seconds))
            await store.tokens.touch([used.id], now=at(late))  # by another process, late
            touched = await store.tokens.find("beef")
            assert touched is not None
            assert touched.last_used_at is not None
            assert at(seconds) - MINUTE <= touched.last_used_at <= at(seconds)
