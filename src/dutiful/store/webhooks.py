"""The contract of the webhook outbox: posts are written in the transaction that makes a job final or changes an
alert."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

import msgspec

MALFORMED = 'the job\'s option webhook must be {"url": "https://…", "states": ["failed"] or null}'


class PostState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"  # given up; an operator may have it tried again


class WebhookRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint for jobs or alerts; declared by the code, disabled by its receiver (410) or an operator."""

    name: str
    url: str
    kinds: list[str] | None = None  # none: all
    states: list[str]  # the final states that are sent; empty: no jobs
    alerts: bool = False  # whether alerts are sent
    enabled: bool = True
    disabled_at: datetime | None = None
    reason: str | None = None  # why it is disabled


class WebhookPost(msgspec.Struct, frozen=True, kw_only=True):
    """One message to one endpoint; it is kept when its job is deleted. `id` is the same for every attempt."""

    id: UUID
    job_id: UUID | None  # None: it is about an alert
    webhook: str | None  # the endpoint's name; None: the job has its own URL
    url: str
    event: str  # "job.completed", "alert.firing", …
    data: dict[str, Any]  # the message: the job as it was when it ended
    state: PostState
    attempts: int  # including the one under way
    created_at: datetime
    next_at: datetime | None = None
    ended_at: datetime | None = None
    updated_at: datetime
    status: int | None = None  # of the last response
    error: str | None = None  # of the last attempt
    tenant: str | None = None


class PostResult(msgspec.Struct, frozen=True):
    """The result of one attempt to post; PENDING: it is tried again after `delay`."""

    id: UUID
    attempts: int  # as in the post that was taken; differs if another process has taken it since
    state: PostState
    delay: timedelta | None = None
    status: int | None = None
    error: str | None = None


class WebhookStore(Protocol):
    async def put(self, webhooks: Sequence[WebhookRecord]) -> None:
        """Stores the webhooks that the code declares; a disabled one stays disabled unless its URL has changed.

        Keeps others, because another app or version may declare them; `remove` deletes one.
        """

    async def take(
        self,
        limit: int,
        hold: timedelta,
        *,
        avoid: Sequence[str] = (),
        names: Sequence[str] | None = None,
        retries: int | None = None,
        now: datetime | None = None,
    ) -> list[WebhookPost]:
        """Takes up to `limit` due posts, the longest due first; no other process gets them for `hold`.

        Skips posts whose URL, with a slash at its end, begins with one of `avoid`, because their receivers are busy.
        With `names`, takes only posts of these endpoints and of jobs' own URLs. At most `retries` of them have been
        tried before.
        """

    async def settle(self, result: PostResult, *, now: datetime | None = None) -> bool:
        """Stores the result; False if the post is gone or another process has taken it since."""

    async def disable(self, name: str, reason: str, *, url: str | None = None, now: datetime | None = None) -> bool:
        """Disables an endpoint and gives up its pending posts; False if it was disabled already.

        With `url`, only if its URL is unchanged: a response of the old URL says nothing about the new one.
        """

    async def enable(self, name: str) -> bool: ...

    async def remove(self, name: str, *, now: datetime | None = None) -> bool:
        """Deletes an endpoint that code no longer declares, and gives up its pending posts; False if there is none."""

    async def redeliver(self, post_id: UUID, *, now: datetime | None = None) -> bool:
        """Makes an ended post due now, its attempts counted from 0; False if there is none.

        Posts to the endpoint's current URL.
        """

    async def all(self) -> list[WebhookRecord]: ...

    async def posts(
        self, *, job_id: UUID | None = None, state: PostState | None = None, limit: int = 50
    ) -> list[WebhookPost]:
        """Posts, newest first."""
