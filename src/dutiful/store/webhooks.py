"""The contract of the webhook outbox: what is to be posted is written in the transaction that makes a job final, or
changes an alert."""

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
    """One message to one endpoint; it outlives its job. `id` is the same for every attempt."""

    id: UUID
    job_id: UUID | None  # none: it is about an alert
    webhook: str | None  # the endpoint's name; none: the job named its own URL
    url: str
    event: str  # "job.completed", "alert.firing", …
    data: dict[str, Any]  # the message: the job as it was when it ended
    state: PostState
    attempts: int  # the one under way included
    created_at: datetime
    next_at: datetime | None = None
    ended_at: datetime | None = None
    updated_at: datetime
    status: int | None = None  # of the last answer
    error: str | None = None  # what was wrong with it
    tenant: str | None = None


class PostResult(msgspec.Struct, frozen=True):
    """What came of one attempt to post; PENDING means: again after `delay`."""

    id: UUID
    attempts: int  # as it was when it was taken: proof that no other process has taken it since
    state: PostState
    delay: timedelta | None = None
    status: int | None = None
    error: str | None = None


class WebhookStore(Protocol):
    async def put(self, webhooks: Sequence[WebhookRecord]) -> None:
        """Store what the code declares; one that is disabled stays so unless its URL is another now.

        What is not among them stays too, for another version or app may have declared it: see remove_webhook.
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
        """Take up to `limit` that are due, the longest due first; no other process gets them for `hold`.

        Those whose URL, with a slash at its end, begins with one of `avoid` are passed over: their receiver has enough
        to do. With `names`, only posts of these endpoints and of jobs' own URLs are taken. At most `retries` of them
        have been tried before.
        """

    async def settle(self, result: PostResult, *, now: datetime | None = None) -> bool:
        """Write what came of it; False if it is gone or another process has taken it since."""

    async def disable(self, name: str, reason: str, *, url: str | None = None, now: datetime | None = None) -> bool:
        """Send nothing more to it and give up the posts that wait; False if it was disabled already.

        With `url`, only while that is where it leads: what an old place says is not said of the new one.
        """

    async def enable(self, name: str) -> bool: ...

    async def remove(self, name: str, *, now: datetime | None = None) -> bool:
        """Forget an endpoint that no code declares any more, and give up what waits for it; False if there is none."""

    async def redeliver(self, post_id: UUID, *, now: datetime | None = None) -> bool:
        """Make one that has ended due now, with its attempts counted anew; False if there is none.

        One of an endpoint goes to where that leads now.
        """

    async def all(self) -> list[WebhookRecord]: ...

    async def posts(
        self, *, job_id: UUID | None = None, state: PostState | None = None, limit: int = 50
    ) -> list[WebhookPost]:
        """Newest first."""
