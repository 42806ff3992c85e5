"""The store's face to those who post webhooks, and to their operators."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from dutiful.outbox import PostResult, PostState, WebhookPost, WebhookRecord
from dutiful.stores.sqlite import outbox
from dutiful.stores.sqlite.threads import Threaded


class SqliteOutbox(Threaded):
    async def put_webhooks(self, webhooks: Sequence[WebhookRecord]) -> None:
        await self._write(lambda db: outbox.put_webhooks(db, webhooks))

    async def take_posts(
        self,
        limit: int,
        hold: timedelta,
        *,
        avoid: Sequence[str] = (),
        names: Sequence[str] | None = None,
        retries: int | None = None,
        now: datetime | None = None,
    ) -> list[WebhookPost]:
        return await self._write(lambda db: outbox.take_posts(db, limit, hold, avoid, names, retries, self._clock(now)))

    async def settle_post(self, result: PostResult, *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: outbox.settle_post(db, result, self._clock(now)))

    async def disable_webhook(
        self, name: str, reason: str, *, url: str | None = None, now: datetime | None = None
    ) -> bool:
        return await self._write(lambda db: outbox.disable_webhook(db, name, reason, url, self._clock(now)))

    async def remove_webhook(self, name: str, *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: outbox.remove_webhook(db, name, self._clock(now)))

    async def enable_webhook(self, name: str) -> bool:
        return await self._write(lambda db: outbox.enable_webhook(db, name))

    async def post_again(self, post_id: UUID, *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: outbox.post_again(db, post_id, self._clock(now)))

    async def webhooks(self) -> list[WebhookRecord]:
        return await self._browse(outbox.webhooks)

    async def posts(
        self, *, job_id: UUID | None = None, state: PostState | None = None, limit: int = 50
    ) -> list[WebhookPost]:
        return await self._browse(lambda db: outbox.posts(db, job_id, state, limit))
