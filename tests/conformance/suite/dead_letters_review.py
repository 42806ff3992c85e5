"""Reviews of dead letters: each act is applied once, and makes a new job at most once."""

import asyncio
from datetime import timedelta

import pytest

from dutiful.core.errors import DataRefused
from dutiful.core.job import OnConflict, Scope, Unique
from dutiful.core.outcome import Cancelled, Done, Failed, Outcome, Partial
from dutiful.core.review.state import BY_HAND, TABLE, ReviewAct, ReviewState, resolution
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.claims import QueueLevel
from dutiful.store.dead_letters import DeadLetter, DeadLetterFilter, Reviewed
from dutiful.store.queries import JobFilter
from suite.audit import event
from suite.builders import (
    ADA,
    OOPS,
    T0,
    at,
    claim,
    claim_one,
    complete,
    enqueue_one,
    new_id,
    settle,
    state,
    warm,
)
from suite.dead_letters import ODD, act_on, another, applied, fail_one, found, the_letter
from suite.retention import LATER, retain_all

ACKNOWLEDGE, REPROCESS, RESOLVE, DISCARD = (
    ReviewAct.ACKNOWLEDGE,
    ReviewAct.REPROCESS,
    ReviewAct.RESOLVE,
    ReviewAct.DISCARD,
)
PENDING, REPROCESSING = ReviewState.PENDING_REVIEW, ReviewState.REPROCESSING
LED_BY = {
    ReviewState.ACKNOWLEDGED: ACKNOWLEDGE,
    ReviewState.REPROCESSING: REPROCESS,
    ReviewState.RESOLVED: RESOLVE,
    ReviewState.DISCARDED: DISCARD,
}
AGAIN = QueueLevel("again", 100)


async def letter_in(store: Store, status: ReviewState) -> DeadLetter:
    """A dead letter that was brought to `status` by reviews."""
    letter = await fail_one(store)
    if status is not PENDING:
        await applied(store, act_on(letter, LED_BY[status]))
    return await the_letter(store, letter.id)


async def new_jobs(store: Store) -> int:
    return len(await store.queries.jobs(JobFilter(queue="again", limit=1000)))


class DeadLetterReviewSuite:
    @pytest.mark.parametrize("status", list(ReviewState))
    async def test_an_act_is_applied_in_the_states_that_allow_it_and_in_no_other(
        self, store: Store, status: ReviewState
    ) -> None:
        for act in ReviewAct:
            letter = await letter_in(store, status)
            review = act_on(letter, act, by="bob", notes="seen", event=(audited := event()))

            (answer,) = await store.dead_letters.review([review], now=at(9))

            to, after = TABLE.get((status, act)), await the_letter(store, letter.id)
            reviewed = (after.status, after.reviewed_by, after.reviewed_at, after.notes)
            events = [one.id for one in await store.audit.search(AuditFilter(act=audited.act))]
            if to is None:
                assert answer == Reviewed(id=letter.id, status=status, applied=False, new_job_id=letter.new_job_id)
                assert (after, events) == (letter, [])
            else:
                made = review.job.id if review.job else None
                assert answer == Reviewed(id=letter.id, status=to, applied=True, new_job_id=made)
                assert (reviewed, after.new_job_id) == ((to, "bob", at(9), "seen"), made)
                assert after.resolution == (BY_HAND if act is RESOLVE else None)
                assert events == [audited.id]
            kept = (after.payload, after.errors, after.history, after.job, after.died_at)
            assert kept == (letter.payload, letter.errors, letter.history, letter.job, letter.died_at)

    async def test_an_act_on_an_unknown_dead_letter_is_not_applied(self, store: Store) -> None:
        letter = await fail_one(store)
        strange = act_on(letter, REPROCESS, id=new_id(), event=event())

        assert await store.dead_letters.review([strange], now=T0) == [
            Reviewed(id=strange.id, status=None, applied=False)
        ]

        assert await new_jobs(store) == 0
        assert await store.audit.search(AuditFilter()) == []
        assert await store.dead_letters.review([], now=T0) == []

    async def test_notes_are_kept_until_new_ones_replace_them(self, store: Store) -> None:
        letter = await fail_one(store)
        await applied(store, act_on(letter, ACKNOWLEDGE, notes="cause unknown"))

        await applied(store, act_on(letter, DISCARD, by="bob"), now=at(5))

        after = await the_letter(store, letter.id)
        assert (after.notes, after.reviewed_by, after.reviewed_at) == ("cause unknown", "bob", at(5))

    @pytest.mark.req("L26", "L102")
    async def test_the_first_acknowledgement_is_kept_after_later_reviews(self, store: Store) -> None:
        letter = await fail_one(store)
        assert (letter.acknowledged_by, letter.acknowledged_at) == (None, None)
        await applied(store, act_on(letter, ACKNOWLEDGE, by="ada"), now=at(3))

        await applied(store, act_on(letter, DISCARD, by="bob"), now=at(5))

        after = await the_letter(store, letter.id)
        assert (after.acknowledged_by, after.acknowledged_at, after.reviewed_by) == ("ada", at(3), "bob")

    @pytest.mark.req("W46")
    async def test_a_reprocessed_job_can_be_claimed_and_has_all_that_it_was_given(self, store: Store) -> None:
        letter = await fail_one(store, payload=ODD, tenant="acme", correlation_id="order-17")
        job = another(letter, payload=ODD, tenant="acme", correlation_id="order-17", created_by="ada", max_attempts=3)

        await applied(store, act_on(letter, REPROCESS, job=job), now=at(9))

        record = await store.queries.job(job.id)
        assert record is not None
        assert (record.payload, record.tenant, record.correlation_id) == (letter.payload, "acme", "order-17")
        assert (record.retry_of, record.created_by, record.created_at) == (letter.id, "ada", at(9))
        assert [c.job_id for c in await claim(store, levels=[AGAIN], now=at(9))] == [job.id]
        assert await store.queries.check_places() == []

    @pytest.mark.req("W46")
    async def test_a_second_reprocess_or_discard_is_refused(self, store: Store) -> None:
        letter = await fail_one(store)
        first = act_on(letter, REPROCESS)
        await applied(store, first)
        assert first.job is not None

        answers = await store.dead_letters.review(
            [first, act_on(letter, REPROCESS), act_on(letter, DISCARD)], now=at(1)
        )

        refused = Reviewed(id=letter.id, status=REPROCESSING, applied=False, new_job_id=first.job.id)
        assert answers == [refused] * 3
        assert await new_jobs(store) == 1

    async def test_one_dead_letter_twice_in_a_call_is_reprocessed_once(self, store: Store) -> None:
        letter = await fail_one(store)

        answers = await store.dead_letters.review([act_on(letter, REPROCESS, event=event()) for _ in range(2)], now=T0)

        assert sorted(answer.applied for answer in answers) == [False, True]
        assert len({answer.new_job_id for answer in answers}) == 1
        assert await new_jobs(store) == 1
        assert len(await store.audit.search(AuditFilter())) == 1

    async def test_one_of_many_concurrent_reviews_is_applied(self, store: Store) -> None:
        await warm(store)
        letter = await fail_one(store)
        acts = [REPROCESS, DISCARD, RESOLVE] * 3

        calls = [store.dead_letters.review([act_on(letter, act, event=event())], now=T0) for act in acts]
        answers = [answer for (answer,) in await asyncio.gather(*calls)]

        (won,) = [act for act, answer in zip(acts, answers, strict=True) if answer.applied]
        after = await the_letter(store, letter.id)
        assert after.status is TABLE[PENDING, won]
        assert {answer.status for answer in answers} == {after.status}
        assert await new_jobs(store) == (won is REPROCESS)
        assert len(await store.audit.search(AuditFilter())) == 1

    async def test_concurrent_reviews_in_another_order_do_not_deadlock(self, store: Store) -> None:
        await warm(store)
        letters = [await fail_one(store) for _ in range(10)]

        answers = await asyncio.gather(
            *(
                store.dead_letters.review([act_on(letter, REPROCESS) for letter in some], now=T0)
                for some in (letters, letters[::-1]) * 4
            )
        )

        assert sum(one.applied for answer in answers for one in answer) == 10
        assert await new_jobs(store) == 10

    async def test_a_new_job_whose_key_is_taken_is_not_made_and_leaves_no_trace(self, store: Store) -> None:
        holder = await enqueue_one(store, unique=Unique("fetch-17", Scope.FOREVER), queue="else")
        letter, other = await fail_one(store), await fail_one(store)
        for on_conflict in (OnConflict.REJECT, OnConflict.RETURN):
            taken = another(letter, unique=Unique("fetch-17", Scope.FOREVER, on_conflict))
            reviews = [act_on(letter, REPROCESS, job=taken, event=event()), act_on(other, ACKNOWLEDGE)]

            refused, _ = await store.dead_letters.review(reviews, now=at(1))

            assert refused == Reviewed(id=letter.id, status=PENDING, applied=False, holder=holder)
            assert await store.queries.job(taken.id) is None
            assert await the_letter(store, letter.id) == letter
        assert await store.audit.search(AuditFilter()) == []
        assert (await the_letter(store, other.id)).status is ReviewState.ACKNOWLEDGED
        assert await state(store, holder) is State.READY
        assert await store.queries.check_places() == []

    async def test_new_jobs_that_want_the_same_key_are_made_once(self, store: Store) -> None:
        letters = [await fail_one(store) for _ in range(3)]
        unique = Unique("fetch-17", Scope.FOREVER, OnConflict.REJECT)

        answers = await store.dead_letters.review(
            [act_on(one, REPROCESS, job=another(one, unique=unique)) for one in letters], now=T0
        )

        assert sorted(answer.applied for answer in answers) == [False, False, True]
        assert sorted(one.status for one in await store.dead_letters.search(DeadLetterFilter())) == [
            PENDING, PENDING, REPROCESSING
        ]  # fmt: skip
        assert await new_jobs(store) == 1

    async def test_a_call_that_cannot_be_stored_changes_nothing(self, store: Store) -> None:
        letter, other = await fail_one(store), await fail_one(store)
        broken = act_on(letter, REPROCESS, job=another(letter, payload="no json"), event=event())

        with pytest.raises(DataRefused):
            await store.dead_letters.review([act_on(other, DISCARD, event=event()), broken], now=T0)

        assert await found(store, status=[PENDING]) == sorted([letter.id, other.id], reverse=True)
        assert await store.audit.search(AuditFilter()) == []

    @pytest.mark.parametrize(
        ("end", "ended"),
        [
            (Done(), State.COMPLETED),
            (Partial(None, (OOPS,)), State.COMPLETED_WITH_ERRORS),
            (Failed(OOPS, final=True), State.FAILED),
        ],
    )
    async def test_the_end_of_its_new_job_resolves_a_dead_letter(
        self, store: Store, end: Outcome, ended: State
    ) -> None:
        letter = await fail_one(store)
        await applied(store, act_on(letter, REPROCESS, notes="try again"), now=at(1))
        assert await store.dead_letters.resolve_reprocessed(10, now=at(2)) == 0
        claimed = await claim_one(store, levels=[AGAIN], now=at(3))
        assert await store.dead_letters.resolve_reprocessed(10, now=at(3)) == 0
        await settle(store, claimed, end, now=at(4))

        assert await store.dead_letters.resolve_reprocessed(10, now=at(5)) == 1

        after = await the_letter(store, letter.id)
        assert ((after.status, after.resolution), after.new_job_id) == (
            resolution(claimed.job_id, ended),
            claimed.job_id,
        )
        assert after.status is ReviewState.RESOLVED
        assert (after.reviewed_by, after.reviewed_at, after.notes) == ("ada", at(1), "try again")
        assert await store.dead_letters.resolve_reprocessed(10, now=at(6)) == 0

    async def test_a_new_job_that_retention_has_removed_resolves_its_dead_letter(self, store: Store) -> None:
        letter = await fail_one(store)
        await applied(store, act_on(letter, REPROCESS))
        claimed = await claim_one(store, levels=[AGAIN])
        await complete(store, claimed)
        await retain_all(store)
        assert await store.queries.job(claimed.job_id) is None

        assert await store.dead_letters.resolve_reprocessed(10, now=LATER) == 1

        after = await the_letter(store, letter.id)
        assert (after.status, after.resolution) == resolution(claimed.job_id, None)
        assert after.status is ReviewState.RESOLVED

    async def test_a_dead_letter_whose_new_job_was_cancelled_is_to_be_reviewed_again(self, store: Store) -> None:
        letter = await fail_one(store)
        await applied(store, act_on(letter, REPROCESS, notes="try again"), now=at(1))
        claimed = await claim_one(store, levels=[AGAIN], now=at(2))
        await settle(store, claimed, Cancelled("no use"), now=at(3))

        assert await store.dead_letters.resolve_reprocessed(10, now=at(4)) == 1

        after = await the_letter(store, letter.id)
        assert (after.status, after.resolution) == resolution(claimed.job_id, State.CANCELLED)
        assert (after.status, after.new_job_id, after.notes) == (PENDING, None, "try again")
        await applied(store, act_on(after, REPROCESS), now=at(5))
        await complete(store, await claim_one(store, levels=[AGAIN], now=at(6)), now=at(6))
        await store.dead_letters.resolve_reprocessed(10, now=at(7))
        assert (await the_letter(store, letter.id)).status is ReviewState.RESOLVED

    async def test_the_age_of_a_dead_letter_counts_from_its_resolution(self, store: Store) -> None:
        letter = await fail_one(store)
        await applied(store, act_on(letter, REPROCESS))
        await complete(store, await claim_one(store, levels=[AGAIN], now=LATER), now=LATER)
        await store.dead_letters.resolve_reprocessed(10, now=LATER)

        await retain_all(store)
        await store.retention.delete_leftovers(timedelta(days=7), 10, now=LATER)
        assert await store.queries.job(letter.id) is None
        assert (await the_letter(store, letter.id)).status is ReviewState.RESOLVED

        await store.retention.delete_leftovers(timedelta(days=7), 10, now=LATER + timedelta(days=8))
        assert await store.dead_letters.find(letter.id) is None

    async def test_no_more_dead_letters_are_resolved_than_the_limit_and_none_whose_job_runs(self, store: Store) -> None:
        letters = [await fail_one(store) for _ in range(5)]
        await applied(store, *(act_on(letter, REPROCESS) for letter in letters))
        running, *rest = await claim(store, levels=[AGAIN])
        await complete(store, *rest)

        resolved = [await store.dead_letters.resolve_reprocessed(3, now=at(1)) for _ in range(4)]

        assert sorted(resolved) == [0, 0, 1, 3]
        (left,) = await store.dead_letters.search(DeadLetterFilter(status=[REPROCESSING]))
        assert left.new_job_id == running.job_id

    async def test_the_dead_letter_of_one_new_job_is_resolved_alone(self, store: Store) -> None:
        letters = [await fail_one(store) for _ in range(3)]
        await applied(store, *(act_on(letter, REPROCESS) for letter in letters))
        running, *rest = await claim(store, levels=[AGAIN])
        await complete(store, *rest)

        resolved = [
            await store.dead_letters.resolve_reprocessed(10, new_job_id=one.job_id, now=at(1))
            for one in (running, *rest)
        ]

        assert resolved == [0, 1, 1]
        assert await store.dead_letters.resolve_reprocessed(10, new_job_id=new_id(), now=at(1)) == 0
        (left,) = await store.dead_letters.search(DeadLetterFilter(status=[REPROCESSING]))
        assert left.new_job_id == running.job_id

    async def test_a_survey_shows_whether_a_dead_letter_is_reprocessing(self, store: Store) -> None:
        async def reviewing() -> bool:
            return (await store.leadership.survey(ADA, timedelta(seconds=30), now=T0)).reviewing

        letter = await fail_one(store)
        assert not await reviewing()
        await applied(store, act_on(letter, REPROCESS))
        assert await reviewing()

        await complete(store, await claim_one(store, levels=[AGAIN]))
        await store.dead_letters.resolve_reprocessed(10, now=T0)

        assert not await reviewing()
