"""Which webhook posts a job's end writes, in the transaction of that end."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.job import OnConflict, Unique
from dutiful.core.outcome import Cancelled, Failed, Outcome, Partial, Released, Snoozed
from dutiful.core.settle import Policy
from dutiful.store import Store
from dutiful.store.claims import Completion, RefusalReason
from dutiful.store.webhooks import MALFORMED, PostState
from suite.builders import (
    BACKOFF,
    EXPIRED,
    OOPS,
    T0,
    at,
    claim_one,
    complete,
    crash,
    enqueue_one,
    finish_one,
    new_id,
    new_job,
    refusal,
    rescue,
    settle,
    start_one,
    state,
    token,
)
from suite.webhooks import ALL, own, settled, take_one, webhook

WEEK = timedelta(days=7)
End = Callable[..., Awaitable[UUID]]


async def completed(store: Store, **fields: Any) -> UUID:
    claimed = await start_one(store, **fields)
    done = Completion(claimed.job_id, claimed.claim_id, '"ok"', webhook="webhook" in fields.get("options", ""))
    assert await store.claims.complete([done], now=at(1)) == []
    return claimed.job_id


async def completed_in_a_transaction(store: Store, **fields: Any) -> UUID:
    claimed = await start_one(store, **fields)
    async with store.claims.transaction(token(claimed), lambda: '"ok"'):
        pass
    return claimed.job_id


async def partly_failed(store: Store, **fields: Any) -> UUID:
    return await finish_one(store, Partial('"most"', (OOPS,)), **fields)


async def failed(store: Store, **fields: Any) -> UUID:
    return await finish_one(store, Failed(OOPS, final=True), **fields)


async def died(store: Store, **fields: Any) -> UUID:
    claimed = await start_one(store, **fields)
    assert await rescue(store, now=at(EXPIRED), policy=Policy(retry_crashes=False)) == []
    return claimed.job_id


async def cancelled(store: Store, **fields: Any) -> UUID:
    return await finish_one(store, Cancelled("no use"), **fields)


async def cancelled_while_it_waited(store: Store, **fields: Any) -> UUID:
    job_id = await enqueue_one(store, **fields)
    await store.control.cancel(job_id, "no use", now=at(1))
    return job_id


async def replaced(store: Store, **fields: Any) -> UUID:
    unique = Unique("k", on_conflict=OnConflict.REPLACE)
    job_id = await enqueue_one(store, unique=unique, **fields)
    await store.jobs.insert([new_job(unique=unique, queue="other")], now=at(1))
    return job_id


async def needing_what_was_cancelled(store: Store, **fields: Any) -> UUID:
    need = await enqueue_one(store, queue="other")
    job_id = await enqueue_one(store, depends_on=(need,), **fields)
    await store.control.cancel(need, "no use", now=at(1))
    await store.promotion.sweep(10, now=at(1))
    return job_id


ENDS = {
    completed: "completed",
    completed_in_a_transaction: "completed",
    partly_failed: "completed_with_errors",
    failed: "failed",
    died: "failed",
    cancelled: "cancelled",
    cancelled_while_it_waited: "cancelled",
    replaced: "cancelled",
    needing_what_was_cancelled: "cancelled",
}
each_end = pytest.mark.parametrize(("end", "final"), ENDS.items(), ids=lambda part: getattr(part, "__name__", part))


class WebhookPostSuite:
    @each_end
    async def test_every_end_is_posted(self, store: Store, end: End, final: str) -> None:
        await store.webhooks.put([webhook()])

        job_id = await end(store)

        assert await state(store, job_id) == final
        (post,) = await store.webhooks.posts(job_id=job_id)
        assert (post.webhook, post.url, post.event) == ("ops", "https://ops.example/hook", f"job.{final}")
        assert (post.job_id, post.data["id"], post.data["state"]) == (job_id, str(job_id), final)
        assert (post.state, post.attempts) == (PostState.PENDING, 0)

    @each_end
    async def test_a_job_with_a_url_of_its_own_is_posted_there_only(self, store: Store, end: End, final: str) -> None:
        await store.webhooks.put([webhook()])

        job_id = await end(store, options=own())

        (post,) = await store.webhooks.posts(job_id=job_id)
        assert (post.webhook, post.url, post.event) == (None, "https://own.example/", f"job.{final}")

    @each_end
    async def test_a_job_with_a_url_of_its_own_needs_no_webhook(self, store: Store, end: End, final: str) -> None:
        job_id = await end(store, options=own(states=f'["other", "{final}"]'))

        assert [post.event for post in await store.webhooks.posts(job_id=job_id)] == [f"job.{final}"]

    @each_end
    async def test_a_job_whose_own_url_excludes_its_state_is_not_posted(
        self, store: Store, end: End, final: str
    ) -> None:
        await store.webhooks.put([webhook()])
        others = str([other for other in ALL if other != final]).replace("'", '"')

        job_id = await end(store, options=own(states=others))

        assert await store.webhooks.posts(job_id=job_id) == []

    async def test_a_post_has_the_job_as_it_was_at_its_end(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        parent = new_id()
        claimed = await start_one(
            store, now=at(1), tenant="acme", correlation_id="order-17", parent_id=parent, subject='{"build": 7}',
            payload='{"secret": 1}',
        )  # fmt: skip
        error = OOPS | {"traceback": "File x, line 1"}
        await settle(store, claimed, Partial('{"sum": 3}', (error,)), now=at(2))

        (post,) = await store.webhooks.posts(job_id=claimed.job_id)

        times = {name: datetime.fromisoformat(post.data[name]) for name in ("created_at", "started_at", "finished_at")}
        assert times == {"created_at": at(1), "started_at": at(1), "finished_at": at(2)}
        assert {name: value for name, value in post.data.items() if name not in times} == {
            "id": str(claimed.job_id),
            "kind": "greet",
            "queue": "default",
            "state": "completed_with_errors",
            "attempt": 1,
            "result": {"sum": 3},
            "errors": [OOPS],
            "tenant": "acme",
            "correlation_id": "order-17",
            "parent_id": str(parent),
            "subject": {"build": 7},
        }
        assert (post.created_at, post.next_at, post.updated_at, post.ended_at) == (at(2), at(2), at(2), None)
        assert post.tenant == "acme"

    async def test_a_post_of_a_job_without_errors_has_an_empty_list(self, store: Store) -> None:
        await store.webhooks.put([webhook()])

        (post,) = await store.webhooks.posts(job_id=await completed(store))

        assert (post.data["result"], post.data["errors"]) == ("ok", [])

    async def test_a_post_of_a_job_that_never_ran_has_no_start(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        job_id = await cancelled_while_it_waited(store)

        (post,) = await store.webhooks.posts(job_id=job_id)

        assert (post.data["started_at"], post.data["result"], post.data["subject"]) == (None, None, None)
        assert (post.data["attempt"], post.data["correlation_id"]) == (0, str(job_id))
        assert post.data["errors"][0]["message"] == "no use"

    async def test_webhooks_get_the_kinds_and_states_that_they_declare(self, store: Store) -> None:
        await store.webhooks.put(
            [
                webhook("all"),
                webhook("failures", states=["failed"]),
                webhook("parts", kinds=["part", "other"], states=["completed"]),
                webhook("nothing", kinds=[]),
            ]
        )

        jobs = [await completed(store), await completed(store, kind="part"), await failed(store, kind="part")]

        received = [{post.webhook for post in await store.webhooks.posts(job_id=job_id)} for job_id in jobs]
        assert received == [{"all"}, {"all", "parts"}, {"all", "failures"}]

    async def test_jobs_that_are_completed_together_are_posted_separately(self, store: Store) -> None:
        await store.webhooks.put([webhook("parts", kinds=["part"])])
        plain, part, named = [
            await start_one(store), await start_one(store, kind="part"), await start_one(store, options=own())
        ]  # fmt: skip

        done = [Completion(c.job_id, c.claim_id, webhook=c is named) for c in (plain, part, named)]
        assert await store.claims.complete(done, now=T0) == []

        posts = {post.job_id: post.url for post in await store.webhooks.posts()}
        assert posts == {part.job_id: "https://parts.example/hook", named.job_id: "https://own.example/"}

    @pytest.mark.parametrize("outcome", [Failed(OOPS), Snoozed(BACKOFF), Released()])
    async def test_a_job_that_goes_on_is_not_posted(self, store: Store, outcome: Outcome) -> None:
        await store.webhooks.put([webhook()])
        for queue, options in (("first", None), ("second", own())):
            await settle(store, await start_one(store, queue=queue, options=options), outcome)
        running = await start_one(store, queue="third")
        await store.control.cancel(running.job_id, "no use", now=T0)

        assert await store.webhooks.posts() == []

    async def test_an_end_that_is_refused_is_not_posted(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        lost = await start_one(store)
        now = await crash(store)
        held = await claim_one(store, limit=0, suspects=1, now=now)

        assert await complete(store, lost, now=now) == [refusal(lost, RefusalReason.LOST)]
        assert await settle(store, lost, Failed(OOPS, final=True), now=now) == [refusal(lost, RefusalReason.LOST)]
        assert await store.webhooks.posts() == []

        for _ in range(2):  # the second call repeats a lost reply
            await complete(store, held, now=now)
        assert len(await store.webhooks.posts()) == 1

    async def test_an_end_that_is_rolled_back_is_not_posted(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        claimed = await start_one(store)

        with pytest.raises(ZeroDivisionError):
            async with store.claims.transaction(token(claimed), lambda: None):
                raise ZeroDivisionError

        assert await store.webhooks.posts() == []

    async def test_a_jobs_own_url_is_not_disabled_with_a_webhook_of_the_same_url(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        await completed(store, options=own(webhook().url))

        await store.webhooks.disable("ops", "410 Gone", now=at(2))

        assert [(post.webhook, post.state) for post in await store.webhooks.posts()] == [(None, PostState.PENDING)]

    @pytest.mark.parametrize(
        ("webhook_option", "url"),
        [
            ("{}", ""),
            ('"https://own.example/"', "https://own.example/"),
            ('{"url": 7}', ""),
            ("[]", ""),
            ('{"url": "https://own.example/", "states": 7}', "https://own.example/"),
        ],
    )
    async def test_a_malformed_webhook_does_not_prevent_the_end_of_a_job(
        self, store: Store, webhook_option: str, url: str
    ) -> None:
        """The options of jobs that are inserted by SQL are not validated."""
        await store.webhooks.put([webhook()])

        for end in (completed, failed):
            job_id = await end(store, options=f'{{"webhook": {webhook_option}}}')

            (post,) = await store.webhooks.posts(job_id=job_id)
            assert (post.webhook, post.url, post.state, post.error) == (None, url, PostState.FAILED, MALFORMED)
            assert (post.next_at, post.ended_at) == (None, post.created_at)

    @pytest.mark.parametrize("options", ['{"webhook": null}', '["webhook"]', '"webhook"'])
    async def test_a_job_whose_options_have_no_webhook_is_posted_to_all(self, store: Store, options: str) -> None:
        await store.webhooks.put([webhook()])

        (post,) = await store.webhooks.posts(job_id=await completed(store, options=options))

        assert (post.webhook, post.state) == ("ops", PostState.PENDING)

    async def test_a_webhook_gets_no_posts_of_jobs_that_ended_before_it_was_declared(self, store: Store) -> None:
        await completed(store)

        await store.webhooks.put([webhook()])

        assert await store.webhooks.posts() == []

    @pytest.mark.req("J67")
    async def test_a_post_outlives_its_job(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        job_id = await completed(store)
        post = await take_one(store, now=at(1))

        assert (await store.retention.delete(WEEK, 10, None, now=T0 + 2 * WEEK)).count == 1

        assert await store.queries.job(job_id) is None
        assert await settled(store, post, now=T0 + 2 * WEEK)
        (kept,) = await store.webhooks.posts(job_id=job_id)
        assert (kept.state, kept.data["result"]) == (PostState.DELIVERED, "ok")
        assert await store.queries.check_places() == []
