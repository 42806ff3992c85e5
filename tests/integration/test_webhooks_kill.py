"""Messages outlive the process that wrote them, and the one that was posting them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import webhook_jobs
from fault_jobs import address
from receivers import SECRET, hang, ok, receiving

from dutiful.store import Store
from dutiful.store.webhooks import PostState, WebhookPost
from faults import Fleet, until

SETTINGS = {"webhook_secrets": SECRET, "webhook_networks": "127.0.0.0/8", "webhook_timeout": "15s"}
# The next sender waits for six of these before it takes over; its own limit is the long one.
BRIEF = {"DUTIFUL_WEBHOOK_TIMEOUT": "1s"}


@asynccontextmanager
async def fleet(store: Store, folder: Path) -> AsyncIterator[Fleet]:
    environment = {f"DUTIFUL_{name.upper()}": value for name, value in SETTINGS.items()}
    url, here = address(store), Path(__file__).parent
    webhook_jobs.app.configure(database_url=url, **SETTINGS)
    async with (
        webhook_jobs.app,
        Fleet("webhook_jobs:app", url, folder=folder, path=here, environment=environment) as started,
    ):
        yield started


async def posted(store: Store, *states: PostState) -> list[WebhookPost]:
    async def found() -> list[WebhookPost]:
        found = await store.webhooks.posts()
        return found if [post.state for post in found] == list(states) else []

    return await until(found, f"messages are {states}")


async def test_a_message_whose_worker_was_killed_after_the_commit_is_posted_once(store: Store, tmp_path: Path) -> None:
    async with receiving() as receiver, fleet(store, tmp_path) as workers:
        first = workers.start("--no-services")  # it runs jobs, and posts nothing
        job = await webhook_jobs.greet.options(webhook=receiver.url).enqueue("Ada")
        await posted(store, PostState.PENDING)
        first.kill()
        assert receiver.connections == 0
        workers.start()
        (post,) = await posted(store, PostState.DELIVERED)
    assert receiver.received == [job.public_id] and post.attempts == 1


async def test_a_message_whose_sender_was_killed_is_posted_again_under_its_id(store: Store, tmp_path: Path) -> None:
    async with receiving(hang, ok) as receiver, fleet(store, tmp_path) as workers:
        first = workers.start(environment=BRIEF)
        await webhook_jobs.greet.options(webhook=receiver.url).enqueue("Ada")
        await receiver.called(1)
        first.kill()
        workers.start()
        (post,) = await posted(store, PostState.DELIVERED)
    assert [call.headers["webhook-id"] for call in receiver.calls] == [str(post.id)] * 2
    assert post.attempts >= 2 and all(call.verified() for call in receiver.calls)
