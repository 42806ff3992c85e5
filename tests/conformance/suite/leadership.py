"""Which process leads, and what its survey finds to do."""

from datetime import timedelta

import pytest

from dutiful.store import Store
from suite.builders import (
    ADA,
    BOB,
    EXPIRED,
    T0,
    at,
    enqueue,
    enqueue_one,
    new_job,
    start_one,
)

TTL = timedelta(seconds=10)


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

        assert not (await store.leadership.survey(ADA, TTL, now=at(1))).expired
        assert (await store.leadership.survey(ADA, TTL, now=at(EXPIRED))).expired

    async def test_a_survey_shows_blocked_jobs(self, store: Store) -> None:
        need = await enqueue_one(store)
        await enqueue_one(store, depends_on=(need,))

        assert (await store.leadership.survey(ADA, TTL, now=at(1))).blocked

    def _needs_one_leader(self) -> None:
        if not self.one_leader:
            pytest.skip("this store elects a process, not a worker")
