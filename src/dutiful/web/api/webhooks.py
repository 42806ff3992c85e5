"""Webhooks and their messages over HTTP."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import Query
from pydantic import Field

from dutiful.core.errors import PostNotFound
from dutiful.operator import Operator
from dutiful.store.webhooks import PostState
from dutiful.web.admission import OperatorDep
from dutiful.web.api.job_shapes import Post
from dutiful.web.operations import Operations
from dutiful.web.problems import Problem
from dutiful.web.shapes import NO_REASON, Ask, JobId, Limit, Reason, Receiver, Removed, Shape, Text

webhooks = Operations("Webhooks", "/admin/webhooks", fleetwide=True)


class Webhook(Shape):
    name: str
    url: Receiver
    kinds: list[str] | None
    states: list[str]
    alerts: bool
    enabled: bool
    disabled_at: datetime | None
    reason: str | None


class Webhooks(Shape):
    webhooks: list[Webhook]


class WebhookAnswer(Shape):
    name: str
    enabled: bool
    changed: bool


class PostsQuery(Ask):
    job_id: JobId | None = None
    state: PostState | None = None
    limit: Limit = Field(default=50, description="The newest; there is no next page.")


class Posts(Shape):
    posts: list[Post]


class RedeliverAnswer(Shape):
    id: UUID
    message: str = Field(examples=["it is sent again"])


@webhooks.read("/")
async def list_webhooks(operator: OperatorDep) -> Webhooks:
    """List the webhooks that the code declares, and whether they are enabled."""
    return Webhooks(webhooks=[Webhook.model_validate(one) for one in await operator.webhooks.all()])


@webhooks.read("/posts/")
async def list_webhook_posts(operator: OperatorDep, query: Annotated[PostsQuery, Query()]) -> Posts:
    """List messages to webhooks, the newest first, and whether they were delivered."""
    found = await operator.webhooks.posts(job_id=query.job_id, state=query.state, limit=query.limit)
    return Posts(posts=[Post.model_validate(one) for one in found])


@webhooks.act("/posts/{post_id}/redeliver/", "webhook.redeliver", target="post_id")
async def redeliver_webhook_post(operator: OperatorDep, post_id: UUID, ask: Reason = NO_REASON) -> RedeliverAnswer:
    """Send a message again that was delivered or given up; its id stays the same."""
    if not await operator.webhooks.redeliver(post_id, ask.reason):
        raise PostNotFound(f"there is no message {post_id} that has ended; a pending one is sent anyway")
    return RedeliverAnswer(id=post_id, message="it is sent again")


@webhooks.act("/{name:path}/enable/", "webhook.enable", target="name")
async def enable_webhook(operator: OperatorDep, name: Text, ask: Reason = NO_REASON) -> WebhookAnswer:
    """Enable a webhook: it gets messages about jobs that end from now on."""
    return await _enable(operator, name, True, ask)


@webhooks.act("/{name:path}/disable/", "webhook.disable", target="name")
async def disable_webhook(operator: OperatorDep, name: Text, ask: Reason = NO_REASON) -> WebhookAnswer:
    """Disable a webhook, and give up its pending messages."""
    return await _enable(operator, name, False, ask)


@webhooks.act("/{name:path}/remove/", "webhook.remove", target="name")
async def remove_webhook(operator: OperatorDep, name: Text, ask: Reason = NO_REASON) -> Removed:
    """Remove a webhook that the code no longer declares, and give up its pending messages."""
    await _check_known(operator, name)
    await operator.webhooks.remove(name, ask.reason)
    return Removed(name=name, removed=True)


async def _enable(operator: Operator, name: str, enabled: bool, ask: Reason) -> WebhookAnswer:
    await _check_known(operator, name)
    changed = await operator.webhooks.enable(name, enabled, ask.reason)
    return WebhookAnswer(name=name, enabled=enabled, changed=changed)


async def _check_known(operator: Operator, name: str) -> None:
    if name not in (webhook.name for webhook in await operator.webhooks.all()):
        raise Problem(404, f"there is no webhook {name!r}")
