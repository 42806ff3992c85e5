"""Messages that a sender must not send, and those that must not keep it from sending others."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from receivers import SECRET, Call, answer, receiving
from running_workers import eventually, final, working

from dutiful import Dutiful, kind
from dutiful.core.webhooks.message import WebhookResponse, new_secret
from dutiful.kind import Kind
from dutiful.maintenance.webhooks import sender as sending
from dutiful.maintenance.webhooks.address_guard import Unreachable
from dutiful.maintenance.webhooks.sender import MAX_RETRIES, WebhookSender
from dutiful.store import Store
from dutiful.store.leadership import Survey
from dutiful.store.webhooks import PostResult, PostState, WebhookPost, WebhookRecord
from suite.alerts import alert, announced
from suite.builders import finish_one
from suite.webhooks import own, webhook

COMMON = new_secret(b"c" * 32)
HERE = "127.0.0.0/8"
MINUTE = timedelta(minutes=1)


@pytest.fixture
def app(app: Dutiful) -> Dutiful:
    app.configure(webhook_secrets=SECRET, webhook_networks=HERE)
    return app


@pytest.fixture
def greet(app: Dutiful) -> Kind[[str], str]:
    @app.job
    async def greet(name: str) -> str:
        return f"Hello {name}"

    return greet


async def ended(app: Dutiful, count: int) -> list[WebhookPost]:
    async def found() -> list[WebhookPost] | None:
        posts = [post for post in await (await app.client()).store.webhooks.posts() if post.ended_at]
        return posts if len(posts) == count else None

    posts: list[WebhookPost] = await eventually(found)
    return posts


async def test_an_unchecked_url_fails_for_itself_alone(app: Dutiful, greet: Kind[[str], str]) -> None:
    async with receiving() as receiver:
        bare = receiver.url.removesuffix("/hook")
        bad = {
            "": "must be a URL",
            "customer.example/x": "must begin with https://",
            "https://": "must begin with https://",
            "http://[": "is not a URL",
            "https://ada:pw@customer.example/": "has credentials in its URL",
            "gopher://x\n/": "has characters that no URL has",
        }
        app.webhook("all", receiver.url)
        with patch.object(kind, "check_url", lambda url, networks: url):  # as if it were inserted by SQL
            for url in (*bad, bare, f"{bare}?a=b"):
                await greet.options(webhook=url).enqueue("own")
        await greet.enqueue("common")
        async with working(app):
            posts = {post.url: post for post in await ended(app, len(bad) + 3)}
    assert {call.path for call in receiver.calls} == {"/", "/?a=b", "/hook"}
    for url, why in bad.items():
        assert (posts[url].state, posts[url].attempts) == (PostState.FAILED, 1)
        assert why in (posts[url].error or "")


async def test_an_old_place_that_is_gone_does_not_disable_the_new_one(app: Dutiful, greet: Kind[[str], str]) -> None:
    async def move(call: Call, writer: asyncio.StreamWriter) -> None:
        await store.webhooks.put([WebhookRecord(name="all", url=new.url, states=["completed"])])
        await answer(410)(call, writer)

    async with receiving(move) as old, receiving() as new:
        app.webhook("all", old.url)
        async with working(app):
            store = (await app.client()).store
            await greet.enqueue("first")
            (post,) = await ended(app, 1)
            await greet.enqueue("second")
            await new.called()
            (stored,) = await store.webhooks.all()
    assert (post.state, post.status) == (PostState.FAILED, 410)
    assert stored.enabled and len(old.calls) == 1


async def test_a_message_is_signed_only_by_a_worker_that_declares_its_webhook(
    app: Dutiful, app_url: str, greet: Kind[[str], str]
) -> None:
    """It waits though the leader does not, and no attempt is spent; the one that declares it need not lead."""
    other = Dutiful(app_url, webhook_secrets=COMMON, webhook_networks=HERE, kinds="nothing")

    @other.job
    async def nothing() -> None: ...

    async with receiving() as receiver, working(other) as leader:
        maintenance: Any = leader._maintenance

        async def leading() -> bool:
            return bool(maintenance.leading)

        await eventually(leading)
        app.webhook("shop", receiver.url)
        async with working(app, services=False):
            store = (await app.client()).store
            await store.webhooks.put([spec.record for spec in app.webhooks.values()])
            await final(app, await greet.enqueue("Ada"))
        async with receiving() as own_receiver:
            with patch.object(sending, "IDLE", 0.0):
                await nothing.options(webhook=own_receiver.url).enqueue()
                await own_receiver.called()  # so the leader has polled
        (post,) = [post for post in await (await app.client()).store.webhooks.posts() if post.webhook]
        assert (post.state, post.attempts) == (PostState.PENDING, 0)
        with patch.object(sending, "FOLLOWER_IDLE", 0.0):
            async with working(app):
                (call,) = await receiver.called()
    assert call.verified(SECRET)
    await other.close()


def test_only_a_declared_webhook_is_signed_with_the_common_secret() -> None:
    app = Dutiful("sqlite:///never.db", webhook_secrets=COMMON)
    app.webhook("plain", "https://plain.example/")
    app.webhook("own", "https://own.example/", secrets=SECRET)
    signed = {name: app.webhook_secrets(name) for name in ("plain", "own", "unknown", None)}
    assert signed == {"plain": (COMMON,), "own": (SECRET,), "unknown": (), None: (COMMON,)}


class Hanging:
    """An HTTP client that gets an answer from one receiver only."""

    def __init__(self) -> None:
        self.hanging = 0

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookResponse:
        if url != "https://good.example/":
            self.hanging += 1
            await asyncio.Event().wait()
        return WebhookResponse(204)

    def close(self) -> None: ...


def make_sender(store: Store, http: Hanging) -> WebhookSender:
    return WebhookSender(store.webhooks, [], lambda: http, lambda name: [SECRET], MINUTE, lambda: None)


async def test_receivers_that_hang_leave_room_for_first_attempts(store: Store) -> None:
    await store.webhooks.put([webhook(kinds=[])])
    for number in range(20):
        await finish_one(store, options=own(f"https://bad{number}.example/"))
    for post in await store.webhooks.take(100, MINUTE):
        await store.webhooks.settle(PostResult(post.id, post.attempts, PostState.PENDING, timedelta(0)))
    job_id = await finish_one(store, options=own("https://good.example/"), now=datetime.now(UTC) - timedelta(seconds=1))
    http = Hanging()
    sender = make_sender(store, http)
    sender.wake()

    async def delivered_all() -> bool:
        # Both: the good one may be answered before all of the others have begun to hang.
        delivered = (await store.webhooks.posts(job_id=job_id))[0].state is PostState.DELIVERED
        return delivered and http.hanging >= MAX_RETRIES

    await eventually(delivered_all)
    assert http.hanging == MAX_RETRIES
    await sender.close(0)


async def test_what_is_due_for_another_worker_is_not_polled_without_a_pause(store: Store) -> None:
    await store.webhooks.put([webhook()])
    await finish_one(store)
    sender = make_sender(store, Hanging())
    now = datetime.now(UTC)
    survey = Survey(True, now, next_post_at=now)
    with (
        patch.object(sending, "IDLE", 3600.0),
        patch.object(sender, "_empty_at", -3600.0),
        patch.object(store.webhooks, "take", wraps=store.webhooks.take) as taking,
    ):
        for _ in range(3):
            await sender.tick(survey)
            if sender._task is not None:  # a poll that finds nothing leaves no trace to wait for
                await sender._task
    assert taking.call_count == 1
    await sender.close(1)


async def test_a_close_warns_of_webhooks_in_flight_only_if_there_are_some(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    sender, asked = make_sender(store, Hanging()), asyncio.Event()

    async def endless(*_: object, **__: object) -> list[WebhookPost]:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    with patch.object(store.webhooks, "take", endless):
        sender.wake()
        await asked.wait()
        taking = sender._task  # close(0) leaves it, and the test has to end it
        await sender.close(0)
    assert taking is not None
    taking.cancel()
    assert "in flight" not in caplog.text

    await store.webhooks.put([webhook(kinds=[])])
    await finish_one(store, options=own("https://bad.example/"), now=datetime.now(UTC) - timedelta(seconds=1))
    sender = make_sender(store, hanging := Hanging())
    sender.wake()

    async def hangs() -> bool:
        return hanging.hanging > 0

    await eventually(hangs)
    await sender.close(0)
    assert "webhooks that were still in flight are posted again later: 1" in caplog.text


class Down:
    """An HTTP client that gets no answer."""

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookResponse:
        raise Unreachable("no route")

    def close(self) -> None: ...


async def test_an_alert_is_retried_sooner_than_a_job(store: Store) -> None:
    await store.webhooks.put([webhook("both", alerts=True)])
    await store.alerts.change([announced(None, alert())])
    await finish_one(store, now=datetime.now(UTC))
    for post in await store.webhooks.take(100, MINUTE):  # tried once before
        await store.webhooks.settle(PostResult(post.id, post.attempts, PostState.PENDING, timedelta(0)))
    sender = WebhookSender(
        store.webhooks, [webhook("both")], Down, lambda name: [SECRET], MINUTE, lambda: None, lambda low, high: low
    )
    sender.wake()

    async def tried_twice() -> list[WebhookPost] | None:
        posts = await store.webhooks.posts()
        return posts if all(post.attempts == 2 and post.error for post in posts) else None

    posts: list[WebhookPost] = await eventually(tried_twice)
    await sender.close(1)
    waits = {post.event: (post.next_at or post.updated_at) - post.updated_at for post in posts}
    assert waits == {"alert.firing": timedelta(seconds=15), "job.completed": timedelta(minutes=5)}
