"""Cron schedules: stored from code, fired once."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec

from dutiful.core.job import NewJob
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.schedules import Fired, ScheduleRecord
from suite.builders import ADA, KIND, at, claim, new_job, state, warm

TTL = timedelta(seconds=10)


def schedule(**fields: Any) -> ScheduleRecord:
    defaults: dict[str, Any] = {
        "name": "nightly",
        "kind": KIND,
        "expression": "0 3 * * *",
        "timezone": "Europe/Berlin",
        "catch_up": "one",
        "job": {"queue": "default", "payload": {"n": 1}},
        "next_at": at(60),
    }
    return ScheduleRecord(**defaults | fields)


def fired(*jobs: NewJob, expected: float = 60, name: str = "nightly") -> Fired:
    return Fired(name, at(expected), at(expected + 60), jobs, at=at(expected))


class ScheduleSuite:
    async def test_a_schedule_is_kept_as_declared(self, store: Store) -> None:
        await store.schedules.put([schedule(), hourly := schedule(name="hourly", expression="0 * * * *")])

        assert sorted(await store.schedules.all(), key=lambda s: s.name) == [hourly, schedule()]

    async def test_a_schedule_that_is_declared_again_unchanged_keeps_its_time(self, store: Store) -> None:
        await store.schedules.put([schedule()])
        await store.schedules.put([schedule(next_at=at(999))])

        assert [s.next_at for s in await store.schedules.all()] == [at(60)]

    async def test_a_schedule_that_changed_gets_its_new_time(self, store: Store) -> None:
        await store.schedules.put([schedule()])
        changed = schedule(expression="30 3 * * *", next_at=at(999))
        await store.schedules.put([changed])

        assert await store.schedules.all() == [changed]

    async def test_a_firing_makes_the_jobs_and_moves_the_time_on(self, store: Store) -> None:
        await store.schedules.put([schedule()])
        job = new_job()

        assert await store.schedules.fire(fired(job), now=at(61))

        assert await state(store, job.id) is State.READY
        (stored,) = await store.schedules.all()
        assert (stored.next_at, stored.last_at, stored.last_job_id) == (at(120), at(60), job.id)
        assert await store.queries.check_places() == []

    async def test_a_firing_that_another_process_made_is_not_made_again(self, store: Store) -> None:
        await store.schedules.put([schedule()])
        await store.schedules.fire(fired(new_job()), now=at(61))

        assert not await store.schedules.fire(fired(late := new_job()), now=at(61))
        assert await store.queries.job(late.id) is None

    async def test_firings_at_once_make_the_jobs_once(self, store: Store) -> None:
        await warm(store)
        await store.schedules.put([schedule()])

        done = await asyncio.gather(*(store.schedules.fire(fired(new_job()), now=at(61)) for _ in range(6)))

        assert sorted(done) == [False] * 5 + [True]
        assert len(await claim(store, now=at(61))) == 1

    async def test_a_firing_may_make_several_jobs_or_none(self, store: Store) -> None:
        await store.schedules.put([schedule()])

        assert await store.schedules.fire(fired(), now=at(61))
        assert await store.schedules.fire(fired(new_job(), new_job(), expected=120), now=at(121))
        assert len(await claim(store, now=at(121))) == 2

    async def test_an_unknown_schedule_does_not_fire(self, store: Store) -> None:
        assert not await store.schedules.fire(fired(job := new_job(), name="unknown"), now=at(61))
        assert await store.queries.job(job.id) is None

    async def test_a_survey_shows_when_the_next_schedule_fires(self, store: Store) -> None:
        await store.schedules.put([schedule(), schedule(name="hourly", next_at=at(30))])
        assert (await store.leadership.survey(ADA, TTL, now=at(0))).next_fire_at == at(30)

        await store.schedules.enable("hourly", False)

        assert (await store.leadership.survey(ADA, TTL, now=at(0))).next_fire_at == at(60)

    async def test_a_schedule_is_switched_off_and_on(self, store: Store) -> None:
        await store.schedules.put([schedule()])

        assert await store.schedules.enable("nightly", False)
        assert [s.enabled for s in await store.schedules.all()] == [False]
        assert await store.schedules.enable("nightly", True)
        assert [s.enabled for s in await store.schedules.all()] == [True]
        assert not await store.schedules.enable("unknown", False)

    async def test_a_removed_schedule_is_forgotten(self, store: Store) -> None:
        await store.schedules.put([schedule()])

        assert await store.schedules.remove("nightly")

        assert await store.schedules.all() == []
        assert not await store.schedules.remove("nightly")

    async def test_a_schedule_that_was_switched_off_stays_off_when_declared_again(self, store: Store) -> None:
        await store.schedules.put([schedule()])
        await store.schedules.enable("nightly", False)

        await store.schedules.put([schedule()])

        assert [s.enabled for s in await store.schedules.all()] == [False]

    async def test_what_happened_is_kept_when_a_schedule_is_declared_again(self, store: Store) -> None:
        await store.schedules.put([schedule()])
        job = new_job()
        await store.schedules.fire(fired(job), now=at(61))

        await store.schedules.put([schedule()])

        expected = msgspec.structs.replace(schedule(), next_at=at(120), last_at=at(60), last_job_id=job.id)
        assert await store.schedules.all() == [expected]
