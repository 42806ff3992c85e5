"""Webhook posts: written at the end of a job, taken by one sender at a time, and kept after they ended."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from dutiful.store import Store
from dutiful.store.webhooks import PostResult, PostState, WebhookPost, WebhookRecord
from suite.builders import ADA, T0, at, finish_one, new_id, warm

HOLD = timedelta(seconds=30)
ALL = ["completed", "completed_with_errors", "failed", "cancelled"]
PENDING, DELIVERED, FAILED = PostState.PENDING, PostState.DELIVERED, PostState.FAILED


def webhook(name: str = "ops", **fields: Any) -> WebhookRecord:
    return WebhookRecord(**{"name": name, "url": f"https://{name}.example/hook", "states": ALL} | fields)


def own(url: str = "https://own.example/", states: str = "null") -> str:
    """The options of a job that names a webhook of its own."""
    return f'{{"webhook": {{"url": "{url}", "states": {states}}}}}'


async def post_one(store: Store, *, now: datetime = T0) -> WebhookPost:
    """A post that waits, due since `now`."""
    job_id = await finish_one(store, now=now)
    (post,) = await store.webhooks.posts(job_id=job_id)
    return post


async def take(store: Store, *, limit: int = 10, now: datetime = T0, **fields: Any) -> list[WebhookPost]:
    return await store.webhooks.take(limit, HOLD, now=now, **fields)


async def take_one(store: Store, *, now: datetime = T0) -> WebhookPost:
    (post,) = await take(store, now=now)
    return post


async def settled(
    store: Store, post: WebhookPost, state: PostState = DELIVERED, *, now: datetime = T0, **fields: Any
) -> bool:
    return await store.webhooks.settle(PostResult(post.id, post.attempts, state, **fields), now=now)


async def again(store: Store, post: WebhookPost) -> WebhookPost:
    """The post as it stands now."""
    (found,) = [one for one in await store.webhooks.posts(limit=100) if one.id == post.id]
    return found


class WebhookSuite:
    async def test_a_post_is_taken_when_it_is_due_and_counted(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        post = await post_one(store, now=at(5))

        assert await take(store, now=at(4)) == []
        taken = await take_one(store, now=at(5))

        assert (taken.id, taken.url, taken.data, taken.attempts) == (post.id, post.url, post.data, 1)
        assert taken.state is PENDING

    async def test_a_post_that_was_taken_is_hidden_until_its_hold_is_over(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        await post_one(store)
        first = await take_one(store)

        assert await take(store, now=at(29)) == []
        second = await take_one(store, now=at(30))

        assert (second.id, second.attempts) == (first.id, 2)
        assert not await settled(store, first, now=at(31))
        assert (await again(store, first)).state is PENDING
        assert await settled(store, second, now=at(31))

    async def test_the_longest_due_posts_are_taken_first_up_to_the_limit(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        late, early, middle = [await post_one(store, now=at(n)) for n in (1, 2, 3)]
        delays = {late.id: 30, early.id: 10, middle.id: 20}
        for post in await take(store, now=at(5)):
            await settled(store, post, PENDING, delay=timedelta(seconds=delays[post.id]), now=at(5))

        assert [post.id for post in await take(store, limit=2, now=at(40))] == [early.id, middle.id]
        assert [post.id for post in await take(store, limit=2, now=at(40))] == [late.id]

    async def test_a_busy_receiver_is_skipped(self, store: Store) -> None:
        await store.webhooks.put([webhook("busy"), webhook("idle"), webhook("odd")])
        await finish_one(store)

        avoid = ["https://busy.example/", "https://_dd%", "https://idle.example/hook/deeper"]
        assert {post.webhook for post in await take(store, avoid=avoid)} == {"idle", "odd"}
        assert {post.webhook for post in await take(store)} == {"busy"}

    async def test_a_receiver_without_a_path_is_skipped_and_no_other(self, store: Store) -> None:
        await store.webhooks.put(
            [webhook("busy", url="https://a.example"), webhook("idle", url="https://a.example.com/")]
        )
        await finish_one(store)

        assert {post.webhook for post in await take(store, avoid=["https://a.example/"])} == {"idle"}

    async def test_only_posts_of_the_named_webhooks_and_of_jobs_own_are_taken(self, store: Store) -> None:
        await store.webhooks.put([webhook("ours"), webhook("theirs")])
        await finish_one(store)
        await finish_one(store, options=own())

        assert {post.webhook for post in await take(store, names=["ours", "unknown"])} == {"ours", None}
        assert await take(store, names=[]) == []
        assert {post.webhook for post in await take(store)} == {"theirs"}

    async def test_retries_leave_room_for_first_attempts(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        tried = [await post_one(store, now=at(n)) for n in (1, 2, 3)]
        for post in await take(store, now=at(5)):
            await settled(store, post, PENDING, delay=timedelta(0), now=at(5))
        new = [await post_one(store, now=at(n)) for n in (6, 7)]

        assert len(await take(store, limit=2, retries=1, now=at(9))) == 2
        taken = {post.id for post in await store.webhooks.posts() if post.next_at and post.next_at > at(9)}
        assert len(taken & {post.id for post in tried}) == 1 and new[0].id in taken
        assert [post.id for post in await take(store, retries=0, now=at(9))] == [new[1].id]
        assert len(await take(store, now=at(9))) == 2

    async def test_concurrent_senders_never_take_the_same_post(self, store: Store) -> None:
        await warm(store)
        await store.webhooks.put([webhook()])
        posts = [await post_one(store) for _ in range(12)]

        answers = await asyncio.gather(*(take(store, limit=4) for _ in range(8)))

        taken = [post.id for answer in answers for post in answer]
        taken += [post.id for post in await take(store, limit=100)]
        assert sorted(taken) == sorted(post.id for post in posts)

    async def test_a_delivered_post_has_ended(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        await post_one(store)
        post = await take_one(store)

        assert await settled(store, post, status=204, now=at(3))

        ended = await again(store, post)
        assert (ended.state, ended.ended_at, ended.updated_at, ended.next_at) == (DELIVERED, at(3), at(3), None)
        assert (ended.status, ended.error, ended.attempts) == (204, None, 1)
        assert await take(store, now=at(999)) == []

    async def test_a_post_that_could_not_be_delivered_is_tried_again_after_its_delay(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        await post_one(store)
        post = await take_one(store)

        delay = timedelta(minutes=5)
        assert await settled(store, post, PENDING, delay=delay, status=503, error="HTTP 503", now=at(3))

        waiting = await again(store, post)
        assert (waiting.state, waiting.next_at, waiting.ended_at) == (PENDING, at(303), None)
        assert (waiting.status, waiting.error, waiting.updated_at) == (503, "HTTP 503", at(3))
        assert await take(store, now=at(302)) == []
        last = await take_one(store, now=at(303))
        assert last.attempts == 2
        assert await settled(store, last, FAILED, error="refused", now=at(304))
        given_up = await again(store, post)
        assert (given_up.state, given_up.ended_at, given_up.status) == (FAILED, at(304), None)
        assert given_up.error == "refused"
        assert await take(store, now=at(9999)) == []

    async def test_a_successful_answer_clears_the_error_of_the_one_before(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        await post_one(store)
        await settled(store, await take_one(store), PENDING, delay=timedelta(0), status=503, error="HTTP 503")

        await settled(store, post := await take_one(store), status=200)

        ended = await again(store, post)
        assert (ended.status, ended.error) == (200, None)

    async def test_an_unknown_post_is_neither_settled_nor_resent(self, store: Store) -> None:
        assert not await store.webhooks.settle(PostResult(new_id(), 1, DELIVERED), now=T0)
        assert not await store.webhooks.redeliver(new_id(), now=T0)

    async def test_a_disabled_webhook_fails_its_waiting_posts_and_gets_no_more(self, store: Store) -> None:
        await store.webhooks.put([webhook(), webhook("other")])
        before = await finish_one(store)

        assert await store.webhooks.disable("ops", "410 Gone", now=at(2))
        assert not await store.webhooks.disable("ops", "again", now=at(3))

        given_up, waiting = sorted(
            await store.webhooks.posts(job_id=before), key=lambda post: post.webhook or "", reverse=False
        )
        assert (given_up.webhook, given_up.state, given_up.ended_at, given_up.error) == (
            "ops",
            FAILED,
            at(2),
            "410 Gone",
        )
        assert (given_up.updated_at, given_up.next_at) == (at(2), None)
        assert (waiting.webhook, waiting.state) == ("other", PENDING)
        after = await finish_one(store, now=at(4))
        assert [post.webhook for post in await store.webhooks.posts(job_id=after)] == ["other"]
        disabled, enabled = sorted(await store.webhooks.all(), key=lambda record: record.name)
        assert disabled == webhook(enabled=False, disabled_at=at(2), reason="410 Gone")
        assert enabled == webhook("other")

    async def test_delivered_posts_stay_so_when_their_webhook_is_disabled(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        post = await post_one(store)
        await settled(store, await take_one(store), now=at(1))

        await store.webhooks.disable("ops", "410 Gone", now=at(2))

        received = await again(store, post)
        assert (received.state, received.ended_at) == (DELIVERED, at(1))

    async def test_an_enabled_webhook_gets_posts_again(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        await store.webhooks.disable("ops", "by hand", now=T0)

        assert await store.webhooks.enable("ops")

        assert await store.webhooks.all() == [webhook()]
        await post_one(store)

    async def test_a_webhook_with_a_new_url_is_not_disabled_for_its_old_one(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        old = await post_one(store)
        await store.webhooks.put([webhook(url="https://moved.example/")])

        assert not await store.webhooks.disable("ops", "410 Gone", url=old.url, now=at(1))

        assert (await again(store, old)).state is PENDING
        assert await store.webhooks.all() == [webhook(url="https://moved.example/")]
        assert await store.webhooks.disable("ops", "410 Gone", url="https://moved.example/", now=at(1))

    async def test_a_post_that_is_resent_goes_to_the_current_url_of_its_webhook(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        await post_one(store)
        await finish_one(store, options=own())
        for post in await take(store):
            await settled(store, post, FAILED, error="x", now=at(1))
        await store.webhooks.put([webhook(url="https://moved.example/")])

        for post in await store.webhooks.posts():
            assert await store.webhooks.redeliver(post.id, now=at(2))

        urls = {post.webhook: post.url for post in await take(store, now=at(2))}
        assert urls == {"ops": "https://moved.example/", None: "https://own.example/"}

    async def test_an_unknown_webhook_is_neither_disabled_nor_enabled(self, store: Store) -> None:
        assert not await store.webhooks.disable("ops", "410 Gone", now=T0)
        assert not await store.webhooks.enable("ops")

    async def test_a_declared_webhook_replaces_the_one_of_its_name_only(self, store: Store) -> None:
        """During a deployment two versions of an app run side by side."""
        await store.webhooks.put([webhook(kinds=["greet"], states=["failed"]), webhook("old")])

        await store.webhooks.put([webhook(kinds=None), webhook("new")])

        stored = sorted(await store.webhooks.all(), key=lambda record: record.name)
        assert stored == [webhook("new"), webhook("old"), webhook()]

    async def test_a_removed_webhook_fails_its_waiting_posts(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        await finish_one(store)

        assert await store.webhooks.remove("ops", now=at(1))

        assert await store.webhooks.all() == []
        (post,) = await store.webhooks.posts()
        assert (post.state, post.error) == (PostState.FAILED, "the webhook was removed")
        assert not await store.webhooks.remove("ops", now=at(2))

    async def test_a_disabled_webhook_stays_so_until_its_url_changes(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        await store.webhooks.disable("ops", "410 Gone", now=at(1))

        await store.webhooks.put([webhook(kinds=["greet"])])
        (same,) = await store.webhooks.all()
        await store.webhooks.put([webhook(url="https://moved.example/")])

        assert same == webhook(kinds=["greet"], enabled=False, disabled_at=at(1), reason="410 Gone")
        assert await store.webhooks.all() == [webhook(url="https://moved.example/")]

    @pytest.mark.parametrize("ended", [DELIVERED, FAILED])
    async def test_a_post_that_has_ended_can_be_sent_again(self, store: Store, ended: PostState) -> None:
        await store.webhooks.put([webhook()])
        await post_one(store)
        post = await take_one(store)
        await settled(store, post, ended, error="x", status=500, now=at(1))

        assert await store.webhooks.redeliver(post.id, now=at(60))

        waiting = await again(store, post)
        assert (waiting.state, waiting.attempts, waiting.next_at, waiting.ended_at) == (PENDING, 0, at(60), None)
        assert waiting.updated_at == at(60)
        assert (await take_one(store, now=at(60))).id == post.id

    async def test_a_post_that_waits_is_not_sent_again(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        await post_one(store)
        post = await take_one(store)

        assert not await store.webhooks.redeliver(post.id, now=at(1))

        assert await take(store, now=at(1)) == []

    async def test_posts_are_listed_newest_first(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        old, middle, new = [await post_one(store, now=at(n)) for n in (1, 2, 3)]
        await settled(store, (await take(store, limit=1, now=at(9)))[0], now=at(9))

        assert [post.id for post in await store.webhooks.posts()] == [new.id, middle.id, old.id]
        assert [post.id for post in await store.webhooks.posts(limit=2)] == [new.id, middle.id]
        assert [post.id for post in await store.webhooks.posts(state=DELIVERED)] == [old.id]
        assert [post.id for post in await store.webhooks.posts(state=PENDING)] == [new.id, middle.id]
        assert [post.id for post in await store.webhooks.posts(job_id=middle.job_id, state=PENDING)] == [middle.id]
        assert await store.webhooks.posts(job_id=new_id()) == []

    async def test_a_survey_shows_when_the_next_post_is_due(self, store: Store) -> None:
        assert (await store.leadership.survey(ADA, HOLD, now=T0)).next_post_at is None
        await store.webhooks.put([webhook()])
        await post_one(store, now=at(20))
        post = await post_one(store, now=at(10))
        assert (await store.leadership.survey(ADA, HOLD, now=at(30))).next_post_at == at(10)

        taken = await take(store, now=at(30))

        assert (await store.leadership.survey(ADA, HOLD, now=at(30))).next_post_at == at(30) + HOLD
        for one in taken:
            await settled(store, one, DELIVERED if one.id == post.id else FAILED, now=at(31))
        assert (await store.leadership.survey(ADA, HOLD, now=at(31))).next_post_at is None
