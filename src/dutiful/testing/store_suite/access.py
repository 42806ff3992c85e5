"""API tokens: who holds one, found by the hash of its secret."""

from datetime import timedelta
from typing import Any

from dutiful.access import ApiToken
from dutiful.core.principal import Role
from dutiful.store import Store
from dutiful.testing.store_suite.builders import T0, at, new_id

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


class AccessSuite:
    async def test_a_token_is_found_by_its_hash_and_by_nothing_else(self, store: Store) -> None:
        full = api_token(role=Role.STAFF, tenant="acme", expires_at=at(60))
        await store.put_token(full, "beef")
        await store.put_token(plain := api_token(), "cafe")

        assert await store.token_of("beef") == full
        assert await store.token_of("cafe") == plain
        assert await store.token_of("BEEF") is None
        assert await store.token_of("") is None

    async def test_a_token_that_is_there_is_left_as_it_is(self, store: Store) -> None:
        token = api_token()
        await store.put_token(token, "beef")

        await store.put_token(token, "beef")

        assert await store.tokens() == [token]

    async def test_the_newest_token_comes_first(self, store: Store) -> None:
        old, new, same = api_token(created_at=at(1)), api_token(created_at=at(2)), api_token(created_at=at(2))
        for token in (new, old, same):
            await store.put_token(token, f"hash of {token.id}")

        assert await store.tokens() == [same, new, old]

    async def test_a_revoked_token_is_still_known_as_such(self, store: Store) -> None:
        token, other = api_token(), api_token(created_at=at(-1))
        await store.put_token(token, "beef")
        await store.put_token(other, "cafe")

        assert await store.revoke_token(token.id, now=at(5))

        revoked = await store.token_of("beef")
        assert revoked is not None
        assert (revoked.revoked_at, revoked.valid(at(6))) == (at(5), False)
        assert await store.tokens() == [revoked, other]
        assert not await store.revoke_token(token.id, now=at(6))
        assert await store.token_of("beef") == revoked
        assert not await store.revoke_token(new_id(), now=at(6))

    async def test_the_last_use_of_a_token_is_known_to_the_minute(self, store: Store) -> None:
        used, other = api_token(), api_token(created_at=at(-1))
        await store.put_token(used, "beef")
        await store.put_token(other, "cafe")

        await store.touch_tokens([used.id, new_id()], now=at(5))
        await store.touch_tokens([], now=at(6))
        assert [token.last_used_at for token in await store.tokens()] == [at(5), None]

        for seconds, late in ((30, 0), (120, 0), (200, 100)):
            await store.touch_tokens([used.id], now=at(seconds))
            await store.touch_tokens([used.id], now=at(late))  # by another process, and held up on its way
            touched = await store.token_of("beef")
            assert touched is not None
            assert touched.last_used_at is not None
            assert at(seconds) - MINUTE <= touched.last_used_at <= at(seconds)
