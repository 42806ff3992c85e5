"""What a refused settlement must leave alone: posts, unique keys, cancel requests, and how its job ended."""

import pytest

from dutiful.core.job import Inserted, Insertion, Unique
from dutiful.core.outcome import Cancelled, Done, Failed, Lost, Outcome, Partial
from dutiful.core.settle import Policy
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import Completion, RefusalReason
from suite.builders import (
    EXPIRED,
    OOPS,
    T0,
    at,
    change,
    claim,
    claim_one,
    complete,
    crash,
    enqueue,
    made,
    new_job,
    outcomes,
    refusal,
    renewing,
    rescue,
    settle,
    start_one,
    state,
    states,
)
from suite.webhooks import own, webhook

NO_SECOND_CHANCE = Policy(retry_crashes=False)
WELCOME = Unique("welcome-ada")


class ClaimRefusalSuite:
    async def test_a_refused_completion_posts_nothing_to_the_jobs_own_url(self, store: Store) -> None:
        lost = await start_one(store, options=own())
        now = await crash(store)
        held = await claim_one(store, limit=0, suspects=1, now=now)
        late = Completion(lost.job_id, lost.claim_id, webhook=True)

        assert await store.claims.complete([late], now=now) == [refusal(lost, RefusalReason.LOST)]
        assert await store.webhooks.posts() == []
        assert await store.claims.complete([Completion(held.job_id, held.claim_id, webhook=True)], now=now) == []
        assert await store.claims.complete([late], now=now) == [refusal(lost, RefusalReason.LOST)]

        assert len(await store.webhooks.posts()) == 1

    async def test_a_refused_completion_is_posted_to_no_webhook(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        lost = await start_one(store)
        now = await crash(store)
        held = await claim_one(store, limit=0, suspects=1, now=now)
        other = await start_one(store, now=now)

        assert await complete(store, held, now=now) == []
        assert await complete(store, lost, other, now=now) == [refusal(lost, RefusalReason.LOST)]

        posted = [post.job_id for post in await store.webhooks.posts()]
        assert sorted(map(str, posted)) == sorted(map(str, (held.job_id, other.job_id)))

    @pytest.mark.parametrize("outcome", [Done(), Partial("1", (OOPS,)), Failed(OOPS, final=True), Cancelled("no use")])
    async def test_a_refused_end_does_not_free_the_key_of_a_job_that_runs(self, store: Store, outcome: Outcome) -> None:
        lost = await start_one(store, unique=WELCOME)
        now = await crash(store)
        await claim_one(store, limit=0, suspects=1, now=now)

        assert await settle(store, lost, outcome, now=now) == [refusal(lost, RefusalReason.LOST)]
        assert await complete(store, lost, now=now) == [refusal(lost, RefusalReason.LOST)]

        second = new_job(unique=WELCOME)
        assert await store.jobs.insert([second], now=now) == [Inserted(lost.job_id, Insertion.EXISTING)]

    async def test_a_release_does_not_forget_a_cancel_request(self, store: Store) -> None:
        await enqueue(store, *(new_job() for _ in range(2)))
        cancelled, other = await claim(store)
        await store.control.cancel(cancelled.job_id, "no use", now=T0)

        async with renewing(store) as renewer:
            await renewer.release(cancelled, other)

        assert await states(store, [cancelled.job_id, other.job_id]) == [State.RUNNING, State.READY]
        (held,) = await store.claims.expired(10, now=at(EXPIRED))
        assert (held.claim_id, held.cancel_requested) == (cancelled.claim_id, True)
        assert await settle(store, held, Cancelled("no use"), now=at(EXPIRED)) == []
        assert await state(store, cancelled.job_id) is State.CANCELLED
        assert await store.queries.check_places() == []

    async def test_a_rescue_does_not_forget_a_cancel_request(self, store: Store) -> None:
        claimed = await start_one(store)
        await store.control.cancel(claimed.job_id, "no use", now=T0)

        refused = await store.claims.settle([change(claimed, Lost())], expired_only=True, now=at(EXPIRED))

        assert refused[0].claim_id == claimed.claim_id
        assert await state(store, claimed.job_id) is State.RUNNING

    @pytest.mark.parametrize("late", [Done("1"), Partial("1", (OOPS,))])
    async def test_a_success_after_the_rescuer_gave_up_its_job_is_recorded_as_refused(
        self, store: Store, late: Outcome
    ) -> None:
        claimed = await start_one(store)
        assert await rescue(store, now=at(EXPIRED), policy=NO_SECOND_CHANCE) == []
        assert await state(store, claimed.job_id) is State.FAILED

        for _ in range(2):
            assert await settle(store, claimed, late, now=at(EXPIRED)) == [refusal(claimed, RefusalReason.LOST)]

        assert await outcomes(store, claimed.job_id) == ["refused"]
        (attempt,) = await store.queries.attempts(claimed.job_id)
        assert attempt.error is not None and attempt.error["type"] == "ClaimLost"

    @pytest.mark.parametrize("late", [Done("1"), Partial("1", (OOPS,))])
    async def test_a_success_after_a_cancellation_is_recorded_as_refused(self, store: Store, late: Outcome) -> None:
        claimed = await start_one(store)
        await settle(store, claimed, Cancelled("no use"))

        assert await settle(store, claimed, late, now=at(1)) == [refusal(claimed, RefusalReason.LOST)]

        assert await outcomes(store, claimed.job_id) == ["refused"]

    @pytest.mark.parametrize("first", [Done("1"), Partial("1", (OOPS,))])
    async def test_a_success_after_a_success_of_its_claim_is_a_repeat(self, store: Store, first: Outcome) -> None:
        claimed = await start_one(store)
        assert await settle(store, claimed, first) == []

        assert await settle(store, claimed, Partial("1", (OOPS,)), now=at(1)) == [
            refusal(claimed, RefusalReason.REPEATED)
        ]

        assert await store.queries.attempts(claimed.job_id) == []

    async def test_a_key_is_made_again_after_the_held_claim_has_completed(self, store: Store) -> None:
        claimed = await start_one(store, unique=WELCOME)
        assert await complete(store, claimed) == []

        second = new_job(unique=WELCOME)
        assert await store.jobs.insert([second], now=T0) == made(second)
