"""The webhook outbox in Postgres."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.store.webhooks import PostResult, PostState, WebhookPost, WebhookRecord
from dutiful.stores.postgres.engine.subject import Subject, as_struct, conditions, text


class PostgresWebhooks(Subject):
    async def put(self, webhooks: Sequence[WebhookRecord]) -> None:
        await self._db.fetch(self._sql["put_webhooks"], text(webhooks))

    async def take(
        self, limit: int, hold: timedelta, *, avoid: Sequence[str] = (), names: Sequence[str] | None = None,
        retries: int | None = None, now: datetime | None = None,
    ) -> list[WebhookPost]:  # fmt: skip
        # Not retried if the reply is lost: the posts are due again after `hold`.
        rows = await self._rows("take_posts", "{post}", limit, hold, avoid, names, retries, now, repeat=False)
        return [as_struct(WebhookPost, row) for row in rows]

    async def settle(self, result: PostResult, *, now: datetime | None = None) -> bool:
        return bool(await self._call("settle_post", *msgspec.structs.astuple(result), now))

    async def disable(self, name: str, reason: str, *, url: str | None = None, now: datetime | None = None) -> bool:
        return bool(await self._call("disable_webhook", name, reason, url, now, repeat=False))

    async def enable(self, name: str) -> bool:
        return bool(await self._db.fetch(self._sql["enable_webhook"], name, repeat=False))

    async def remove(self, name: str, *, now: datetime | None = None) -> bool:
        return bool(await self._call("remove_webhook", name, now, repeat=False))

    async def redeliver(self, post_id: UUID, *, now: datetime | None = None) -> bool:
        return bool(await self._db.fetch(self._sql["redeliver_post"], post_id, now, repeat=False))

    async def all(self) -> list[WebhookRecord]:
        return [WebhookRecord(**dict(row)) for row in await self._db.fetch(self._sql["webhooks"])]

    async def posts(
        self, *, job_id: UUID | None = None, state: PostState | None = None, limit: int = 50
    ) -> list[WebhookPost]:
        where, args = conditions([("job_id = ?", job_id), ("state = ?", state)], limit)
        rows = await self._db.fetch(self._sql["posts"].replace("{where}", where), *args)
        return [as_struct(WebhookPost, row) for row in rows]
