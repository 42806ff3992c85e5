"""Which process leads, and what its survey finds to do."""

from datetime import timedelta
from uuid import UUID

import pytest

from dutiful.store import Store
from dutiful.store.leadership import DEFAULT_PATIENCE, Survey
from suite.builders import (
    ADA,
    BOB,
    EXPIRED,
    T0,
    at,
    enqueue,
    enqueue_one,
    new_job,
    renewing,
    start_one,
)

TTL = timedelta(seconds=10)
GAP, HOLD = (int(length.total_seconds()) for length in (DEFAULT_PATIENCE.gap, DEFAULT_PATIENCE.hold))


async def surveyed(store: Store, begin: int, end: int, worker_id: UUID = ADA) -> Survey:
    """The last of many surveys, one every few seconds."""
    for second in range(begin, end, GAP - 1):
        await store.leadership.survey(worker_id, TTL, now=at(second))
    return await store.leadership.survey(worker_id, TTL, now=at(end))


class LeadershipSuite:
    one_leader = True  # False for a store that elects a process, so that two workers of one process both lead

    async def test_the_first_worker_leads(self, store: Store) -> None:
        survey = await store.leadership.survey(ADA, TTL, now=T0)

        assert (survey.leading, survey.now) == (True, T0)
        assert (await store.leadership.survey(ADA, TTL, now=at(5))).leading

    async def test_one_worker_leads_at_a_time(self, store: Store) -> None:
        self._needs_one_leader()
        await store.leadership.survey(ADA, TTL, now=T0)

        assert not (await store.leadership.survey(BOB, TTL, now=at(9))).leading
        assert (await store.leadership.survey(ADA, TTL, now=at(9))).leading
        assert not (await store.leadership.survey(BOB, TTL, now=at(18))).leading

    async def test_a_leader_whose_time_is_over_is_replaced(self, store: Store) -> None:
        self._needs_one_leader()
        await store.leadership.survey(ADA, TTL, now=T0)

        assert (await store.leadership.survey(BOB, TTL, now=at(11))).leading
        assert not (await store.leadership.survey(ADA, TTL, now=at(12))).leading

    async def test_a_leader_that_resigns_is_replaced_at_once(self, store: Store) -> None:
        self._needs_one_leader()
        await store.leadership.survey(ADA, TTL, now=T0)

        await store.leadership.resign(ADA)

        assert (await store.leadership.survey(BOB, TTL, now=at(1))).leading

    async def test_who_does_not_lead_learns_that_the_leader_has_resigned(self, store: Store) -> None:
        self._needs_one_leader()
        assert await store.leadership.is_vacant()
        await store.leadership.survey(ADA, TTL)
        assert not await store.leadership.is_vacant()
        assert not await store.leadership.resign(BOB)
        assert not await store.leadership.is_vacant()

        assert await store.leadership.resign(ADA)

        assert await store.leadership.is_vacant()
        assert not await store.leadership.resign(ADA), "it has told others already"

    async def test_only_the_leader_can_resign(self, store: Store) -> None:
        self._needs_one_leader()
        await store.leadership.survey(ADA, TTL, now=T0)

        await store.leadership.resign(BOB)

        assert not (await store.leadership.survey(BOB, TTL, now=at(1))).leading

    async def test_a_survey_of_an_empty_store_finds_nothing_to_do(self, store: Store) -> None:
        survey = await store.leadership.survey(ADA, TTL, now=T0)

        assert (survey.next_run_at, survey.next_fire_at, survey.expired, survey.blocked) == (None, None, False, False)

    async def test_a_survey_shows_when_the_next_job_is_due(self, store: Store) -> None:
        await enqueue(store, new_job(run_at=at(60)), new_job(run_at=at(30)))

        assert (await store.leadership.survey(ADA, TTL, now=T0)).next_run_at == at(30)

    async def test_a_survey_shows_expired_claims(self, store: Store) -> None:
        await start_one(store)

        assert not (await surveyed(store, 1, int(EXPIRED) - 2)).expired
        assert (await store.leadership.survey(ADA, TTL, now=at(EXPIRED))).expired

    async def test_no_claim_is_expired_for_a_while_after_a_gap_between_surveys(self, store: Store) -> None:
        """The store was away, so that workers could not renew."""
        await start_one(store)
        await surveyed(store, 1, 20)
        back = 20 + 3 * GAP

        assert not (await surveyed(store, back, back + HOLD - 1)).expired
        assert (await store.leadership.survey(ADA, TTL, now=at(back + HOLD))).expired

    async def test_a_second_gap_makes_the_while_begin_again(self, store: Store) -> None:
        await start_one(store)
        await surveyed(store, 1, 20)
        back = 20 + 3 * GAP
        again = back + 2 * GAP

        assert not (await store.leadership.survey(ADA, TTL, now=at(back))).expired
        assert not (await surveyed(store, again, again + HOLD - 1)).expired
        assert (await store.leadership.survey(ADA, TTL, now=at(again + HOLD))).expired

    async def test_a_leader_that_starts_after_an_outage_waits_as_well(self, store: Store) -> None:
        await start_one(store)
        await surveyed(store, 1, 20)
        back = 20 + 3 * GAP

        assert not (await surveyed(store, back, back + HOLD - 1, BOB)).expired
        assert (await store.leadership.survey(BOB, TTL, now=at(back + HOLD))).expired

    async def test_the_first_leader_waits_because_it_cannot_know(self, store: Store) -> None:
        await start_one(store)

        assert not (await surveyed(store, 100, 100 + HOLD - 1)).expired
        assert (await store.leadership.survey(ADA, TTL, now=at(100 + HOLD))).expired

    async def test_a_change_of_leader_within_the_gap_makes_nobody_wait(self, store: Store) -> None:
        await start_one(store)
        await surveyed(store, 1, 28)
        await store.leadership.resign(ADA)

        assert (await store.leadership.survey(BOB, TTL, now=at(EXPIRED))).expired

    async def test_a_rescue_that_an_outage_interrupts_finds_nothing(self, store: Store) -> None:
        """Its question was asked before the outage, and is answered after it."""
        await start_one(store)
        await surveyed(store, 1, 20)

        assert await store.claims.expired(10, now=at(20 + 3 * GAP)) == []

    async def test_a_claim_that_is_renewed_after_an_outage_was_never_expired(self, store: Store) -> None:
        claimed = await start_one(store)
        await surveyed(store, 1, 20)
        back = 20 + 3 * GAP
        await store.leadership.survey(ADA, TTL, now=at(back))
        async with renewing(store) as renewer:
            assert (await renewer.renew(claimed, now=at(back + 1))).lost == frozenset()

        assert not (await surveyed(store, back + 2, back + HOLD + 1)).expired

    async def test_a_survey_shows_blocked_jobs(self, store: Store) -> None:
        need = await enqueue_one(store)
        await enqueue_one(store, depends_on=(need,))

        assert (await store.leadership.survey(ADA, TTL, now=at(1))).blocked

    def _needs_one_leader(self) -> None:
        if not self.one_leader:
            pytest.skip("this store elects a process, not a worker")
