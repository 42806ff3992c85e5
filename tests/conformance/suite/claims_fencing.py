"""Which settlements are refused: only the holder of a claim settles it, and once."""

from datetime import timedelta

import pytest

from dutiful.core.errors import ClaimLost
from dutiful.core.job import ClaimToken
from dutiful.core.outcome import Cancelled, Done, Failed, Lost, Outcome, Partial, Released, Snoozed, TimedOut
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import Completion, RefusalReason
from suite.builders import (
    BACKOFF,
    EXPIRED,
    OOPS,
    T0,
    at,
    change,
    claim_one,
    complete,
    crash,
    history,
    new_id,
    outcomes,
    refusal,
    rescue,
    settle,
    start_one,
    state,
)

LIVING = [Failed(OOPS), Snoozed(BACKOFF), TimedOut(BACKOFF, OOPS), Released(), Lost()]


class ClaimFencingSuite:
    @pytest.mark.parametrize(
        "outcome", [Done("1"), Failed(OOPS, final=True), Failed(OOPS), Snoozed(BACKOFF), Released()]
    )
    async def test_a_claim_that_was_lost_settles_nothing(self, store: Store, outcome: Outcome) -> None:
        lost = await start_one(store)
        now = await crash(store)
        held = await claim_one(store, limit=0, suspects=1, now=now)

        refused = [await settle(store, lost, outcome, now=now) for _ in range(2)]

        assert refused[0] == [refusal(lost, RefusalReason.LOST)]
        assert await state(store, lost.job_id) is State.RUNNING
        assert await complete(store, held, now=now) == []
        assert await outcomes(store, lost.job_id) == ["lost", "refused"]
        assert await store.queries.check_places() == []

    async def test_a_lost_claim_completes_nothing_and_its_attempt_is_recorded_once(self, store: Store) -> None:
        lost = await start_one(store)
        now = await crash(store)
        held = await claim_one(store, limit=0, suspects=1, now=now)

        for _ in range(2):
            assert await complete(store, lost, result="1", now=now) == [refusal(lost, RefusalReason.LOST)]

        assert await outcomes(store, lost.job_id) == ["lost", "refused"]
        assert await complete(store, held, result="2", now=now) == []
        record = await store.queries.job(lost.job_id)
        assert record is not None
        assert record.result == 2

    async def test_a_lost_claim_is_refused_when_its_job_is_final_meanwhile(self, store: Store) -> None:
        lost = await start_one(store)
        now = await crash(store)
        await complete(store, await claim_one(store, limit=0, suspects=1, now=now), result='"new"', now=now)

        assert await complete(store, lost, result='"old"', now=now) == [refusal(lost, RefusalReason.LOST)]

        record = await store.queries.job(lost.job_id)
        assert record is not None
        assert record.result == "new"

    async def test_a_claim_of_an_unknown_job_is_lost(self, store: Store) -> None:
        unknown = Completion(new_id(), 1)

        assert await store.claims.complete([unknown], now=T0) == [refusal(unknown, RefusalReason.LOST)]
        assert await store.queries.check_places() == []

    async def test_refusals_do_not_hold_up_the_rest_of_the_batch(self, store: Store) -> None:
        lost = await start_one(store)
        now = await crash(store)
        held = await start_one(store, now=now)

        assert await complete(store, lost, held, now=now) == [refusal(lost, RefusalReason.LOST)]
        assert await state(store, held.job_id) is State.COMPLETED

    async def test_a_completion_whose_reply_was_lost_is_recognised(self, store: Store) -> None:
        claimed = await start_one(store)
        await complete(store, claimed)

        assert await complete(store, claimed, now=at(1)) == [refusal(claimed, RefusalReason.REPEATED)]
        record = await store.queries.job(claimed.job_id)
        assert record is not None
        assert record.finished_at == T0
        assert await store.queries.attempts(claimed.job_id) == []

    @pytest.mark.parametrize("outcome", [Done(), Failed(OOPS, final=True), Failed(OOPS), Snoozed(timedelta(0))])
    async def test_a_settlement_whose_reply_was_lost_is_recognised(self, store: Store, outcome: Outcome) -> None:
        claimed = await start_one(store)
        await settle(store, claimed, outcome)
        before = await store.queries.job(claimed.job_id), await history(store, claimed.job_id)

        assert await settle(store, claimed, outcome, now=at(1)) == [refusal(claimed, RefusalReason.REPEATED)]
        assert (await store.queries.job(claimed.job_id), await history(store, claimed.job_id)) == before

    @pytest.mark.parametrize("outcome", LIVING)
    async def test_a_job_with_a_cancel_request_is_not_kept_alive(self, store: Store, outcome: Outcome) -> None:
        claimed = await start_one(store)
        await store.control.cancel(claimed.job_id, "no use", now=T0)

        assert await settle(store, claimed, outcome) == [refusal(claimed, RefusalReason.CANCEL_REQUESTED)]

        assert await state(store, claimed.job_id) is State.RUNNING
        assert await store.queries.attempts(claimed.job_id) == []
        assert await settle(store, claimed, Cancelled("no use")) == []
        assert await state(store, claimed.job_id) is State.CANCELLED

    @pytest.mark.req("J49", "J51")
    @pytest.mark.parametrize("outcome", [Done('"done"'), Partial(None, (OOPS,)), Failed(OOPS, final=True)])
    async def test_a_job_with_a_cancel_request_ends_as_cancelled_only(self, store: Store, outcome: Outcome) -> None:
        claimed, other = [await start_one(store) for _ in range(2)]
        await store.control.cancel(claimed.job_id, "no use", now=T0)
        refused = [refusal(claimed, RefusalReason.CANCEL_REQUESTED)]

        if isinstance(outcome, Done):
            done = [Completion(one.job_id, one.claim_id, outcome.result) for one in (claimed, other)]
            assert await store.claims.complete(done, now=at(1)) == refused
            assert await store.claims.complete(done[:1], skip_locked=True, now=at(1)) == refused
            assert await state(store, other.job_id) is State.COMPLETED
        assert await settle(store, claimed, outcome) == refused
        with pytest.raises(ClaimLost):
            async with store.claims.transaction(ClaimToken(claimed.job_id, claimed.claim_id), lambda: None):
                pass

        assert await state(store, claimed.job_id) is State.RUNNING
        assert await settle(store, claimed, Cancelled("cancelled"), now=at(2)) == []
        record = await store.queries.job(claimed.job_id)
        assert record is not None and record.state is State.CANCELLED
        assert record.result is None and record.errors == [{"type": "Cancelled", "message": "no use"}]
        assert await store.queries.attempts(claimed.job_id) == []

    async def test_a_rescue_leaves_claims_alone_that_have_not_expired(self, store: Store) -> None:
        claimed = await start_one(store)

        (refused,) = await store.claims.settle([change(claimed, Lost())], expired_only=True, now=at(1))

        assert (refused.job_id, refused.claim_id) == (claimed.job_id, claimed.claim_id)
        assert await state(store, claimed.job_id) is State.RUNNING
        assert await settle(store, claimed, Failed(OOPS), now=at(2)) == []
        assert await history(store, claimed.job_id) == [(1, "failed")]

    async def test_an_expired_claim_settles_until_it_is_rescued(self, store: Store) -> None:
        claimed = await start_one(store)

        assert await complete(store, claimed, now=at(EXPIRED)) == []
        assert await rescue(store, now=at(EXPIRED)) == []
        assert await state(store, claimed.job_id) is State.COMPLETED

    async def test_a_settlement_is_recognised_though_another_of_its_claim_was_refused(self, store: Store) -> None:
        claimed = await start_one(store)
        await settle(store, claimed, Failed(OOPS))

        assert await complete(store, claimed) == [refusal(claimed, RefusalReason.LOST)]
        assert await settle(store, claimed, Failed(OOPS)) == [refusal(claimed, RefusalReason.REPEATED)]
        assert await outcomes(store, claimed.job_id) == ["failed", "refused"]
