"""The webhook outbox in Postgres."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.readable import read_object
from dutiful.outbox import PostResult, PostState, WebhookPost, WebhookRecord
from dutiful.stores.postgres.part import PostgresPart


class PostgresOutbox(PostgresPart):
    async def put_webhooks(self, webhooks: Sequence[WebhookRecord]) -> None:
        await self._db.fetch(self._sql["put_webhooks"], msgspec.json.encode(webhooks).decode())

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
        # Not repeated if the reply is lost: what was taken comes due again after `hold`.
        rows = await self._db.fetch(self._sql["take_posts"], limit, hold, avoid, names, retries, now, repeat=False)
        return [_post(row) for row in rows]

    async def settle_post(self, result: PostResult, *, now: datetime | None = None) -> bool:
        args = (result.id, result.attempts, result.state.value, result.delay, result.status, result.error, now)
        return bool((await self._db.fetch(self._sql["settle_post"], *args))[0][0])

    async def disable_webhook(
        self, name: str, reason: str, *, url: str | None = None, now: datetime | None = None
    ) -> bool:
        return bool((await self._db.fetch(self._sql["disable_webhook"], name, reason, url, now, repeat=False))[0][0])

    async def enable_webhook(self, name: str) -> bool:
        return bool(await self._db.fetch(self._sql["enable_webhook"], name, repeat=False))

    async def remove_webhook(self, name: str, *, now: datetime | None = None) -> bool:
        return bool((await self._db.fetch(self._sql["remove_webhook"], name, now, repeat=False))[0][0])

    async def post_again(self, post_id: UUID, *, now: datetime | None = None) -> bool:
        return bool(await self._db.fetch(self._sql["post_again"], post_id, now, repeat=False))

    async def webhooks(self) -> list[WebhookRecord]:
        return [WebhookRecord(**dict(row)) for row in await self._db.fetch(self._sql["webhooks"])]

    async def posts(
        self, *, job_id: UUID | None = None, state: PostState | None = None, limit: int = 50
    ) -> list[WebhookPost]:
        args: list[Any] = [limit]
        conditions = ["true"]
        for column, value in (("job_id", job_id), ("state", state and state.value)):
            if value is not None:
                args.append(value)
                conditions.append(f"{column} = ${len(args)}")
        statement = self._sql["posts"].replace("{where}", " and ".join(conditions))
        return [_post(row) for row in await self._db.fetch(statement, *args)]


def _post(row: Any) -> WebhookPost:
    values = dict(row)
    values["state"] = PostState(values["state"])
    values["data"] = read_object(values["data"])
    return WebhookPost(**values)
