"""The view of a job: all facts that its events are made from, in order."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.events import EventType, JobView, LeftOut, events_of
from dutiful.core.job import PhaseState
from dutiful.core.outcome import Failed, Partial
from dutiful.store import Store
from dutiful.store.webhooks import PostState
from suite.builders import (
    OOPS,
    PIPELINE,
    T0,
    at,
    claim,
    claim_one,
    complete,
    crash,
    enqueue,
    enqueue_one,
    finish_one,
    mark,
    new_id,
    new_job,
    progress,
    report_all,
    settle,
    start_one,
)
from suite.webhooks import settled, take_one, webhook

MINUTE, WEEK = timedelta(minutes=1), timedelta(days=7)
LATER = T0 + WEEK + timedelta(hours=1)


async def view(store: Store, job_id: UUID) -> JobView:
    (found,) = await store.events.views([job_id])
    return found


class Listener:
    """Reads one job's events as they become known, each once; with each, the job's mark is another one."""

    def __init__(self, store: Store, job_id: UUID) -> None:
        self._store, self._job_id = store, job_id
        self._seen: set[str] = set()
        self._mark: str | None = None

    async def new_events(self) -> list[str]:
        (change,) = await self._store.events.marks([self._job_id])
        events = events_of(await view(self._store, self._job_id), self._seen)
        assert not events or change.mark != self._mark
        assert await self._store.events.marks([self._job_id]) == [change], "as long as nothing happens"
        self._seen |= {event.key for event in events}
        self._mark = change.mark
        return [event.type.value for event in events]


class EventViewSuite:
    async def test_a_view_has_the_job_as_a_query_returns_it_without_its_payload(self, store: Store) -> None:
        waiting, running = await enqueue_one(store, run_at=at(60), tenant="acme"), await start_one(store)
        await report_all(store, progress(running, percent=50.0))
        done = await finish_one(store, Partial('{"n": 1}', (OOPS,)))

        views = {view.job.id: view for view in await store.events.views([waiting, running.job_id, done])}

        assert len(views) == 3
        for job_id, found in views.items():
            job = await store.queries.job(job_id)
            assert job is not None and found.job == msgspec.structs.replace(job, payload=None)
        assert (views[waiting].claim_id, views[running.job_id].claim_id) == (None, running.claim_id)
        assert views[done].claim_id is not None

    async def test_only_existing_jobs_have_views(self, store: Store) -> None:
        job_id = await enqueue_one(store)

        assert await store.events.views([]) == []
        assert [found.job.id for found in await store.events.views([new_id(), job_id, new_id()])] == [job_id]

    async def test_many_are_viewed_at_once(self, store: Store) -> None:
        await enqueue(store, *(jobs := [new_job() for _ in range(200)]))
        claims = await claim(store, limit=150)
        await report_all(
            store, *(progress(one, percent=1.0) for one in claims), *(mark(one, "download") for one in claims)
        )

        views = await store.events.views([job.id for job in jobs])

        assert sorted(found.job.id for found in views) == sorted(job.id for job in jobs)
        assert sum(len(found.phases) for found in views) == 150

    async def test_only_existing_jobs_have_marks(self, store: Store) -> None:
        jobs = [await enqueue_one(store), await enqueue_one(store)]

        assert await store.events.marks([]) == []
        assert {found.job_id for found in await store.events.marks([new_id(), *jobs])} == {*jobs}

    async def test_large_results_are_left_out_and_read_one_by_one(self, store: Store) -> None:
        small, large, larger = '"1234"', '"12345"', '"é2345678"'
        job_id = await enqueue_one(store, options=PIPELINE)
        claimed = await claim_one(store, now=at(1))
        await report_all(store, mark(claimed, "download"), now=at(2))
        await report_all(store, mark(claimed, "download", PhaseState.COMPLETED, result=large), now=at(3))
        await complete(store, claimed, result=larger, now=at(4))
        other = await finish_one(store, Partial(small, (OOPS,)))

        views = {view.job.id: view for view in await store.events.views([job_id, other], largest=len(small))}
        assert views[other] == await view(store, other)
        of_job, of_phase = LeftOut(None, at(4)), LeftOut("download", at(3))
        found, whole = views[job_id], await view(store, job_id)
        assert found.job == msgspec.structs.replace(whole.job, result=of_job)
        assert found.phases == [msgspec.structs.replace(whole.phases[0], result=of_phase), *whole.phases[1:]]
        assert [await store.events.result(job_id, one) for one in (of_job, of_phase)] == [larger, large]
        for gone in (LeftOut(None, at(3)), LeftOut("download", at(4)), LeftOut("upload", at(3))):
            assert await store.events.result(job_id, gone) is None
        assert await store.events.result(new_id(), of_job) is None

    async def test_the_size_of_a_result_is_that_of_its_text_in_bytes(self, store: Store) -> None:
        job_id = await finish_one(store, Partial('"éééé"', (OOPS,)))

        (found,) = await store.events.views([job_id], largest=10)
        (without,) = await store.events.views([job_id], largest=9)

        assert found.job.result == "éééé" and isinstance(without.job.result, LeftOut)

    async def test_a_new_job_has_the_event_enqueued(self, store: Store) -> None:
        assert await Listener(store, await enqueue_one(store)).new_events() == ["enqueued"]

    async def test_each_fact_of_a_pipeline_is_one_event_as_it_happens(self, store: Store) -> None:
        await store.webhooks.put([webhook()])
        listener = Listener(store, job_id := await enqueue_one(store, options=PIPELINE))
        seen = [await listener.new_events()]

        async def then(act: Any) -> None:
            await act
            seen.append(await listener.new_events())

        first = await claim_one(store, now=at(1))
        await then(report_all(store, mark(first, "download"), progress(first, percent=0.0), now=at(2)))
        await then(report_all(store, progress(first, percent=50.0), now=at(3)))
        await then(report_all(store, mark(first, "download", PhaseState.COMPLETED, result="1"), now=at(4)))
        await then(settle(store, first, Failed(OOPS), now=at(5)))
        await then(store.promotion.promote(1, now=at(60)))
        second = await claim_one(store, now=at(61))
        await then(complete(store, second, now=at(62)))
        post = await take_one(store, now=at(63))
        await then(settled(store, post, PostState.FAILED, now=at(64)))
        await then(store.webhooks.redeliver(post.id, now=at(65)))
        await then(settled(store, await take_one(store, now=at(66)), now=at(67)))
        await then(store.retention.mark_stale(WEEK, 10, None, sent=True, now=LATER))

        assert seen == [
            ["enqueued"],
            ["started", "progress"],
            ["progress"],
            ["phase_completed"],
            ["retrying"],
            [],
            ["started", "completed"],
            ["webhook_failed"],
            [],
            ["webhook_delivered"],
            ["stale"],
        ]
        assert [event.type for event in events_of(await view(store, job_id))] == [
            EventType.ENQUEUED,
            EventType.STARTED,
            EventType.PROGRESS,
            EventType.PHASE_COMPLETED,
            EventType.RETRYING,
            EventType.STARTED,
            EventType.COMPLETED,
            EventType.WEBHOOK_DELIVERED,
            EventType.STALE,
        ]

    async def test_a_job_that_was_cancelled_while_it_waited_never_started(self, store: Store) -> None:
        listener = Listener(store, job_id := await enqueue_one(store, options=PIPELINE))

        await store.control.cancel(job_id, "no use", now=at(1))

        assert await listener.new_events() == ["enqueued", "cancelled"]
        assert (await view(store, job_id)).claim_id is None

    async def test_a_lost_claim_that_is_refused_later_adds_no_fact(self, store: Store) -> None:
        lost = await start_one(store)
        now = await crash(store)
        held = await claim_one(store, limit=0, suspects=1, now=now)
        await complete(store, lost, now=now)  # recorded as a refused attempt
        await complete(store, held, now=now)

        listener = Listener(store, lost.job_id)

        assert sorted(await listener.new_events()) == ["completed", "enqueued", "retrying", "started", "started"]

    async def test_a_view_has_the_states_of_its_posts(self, store: Store) -> None:
        await store.webhooks.put([webhook(), webhook("other")])
        job_id = await finish_one(store)
        assert {post.state for post in (await view(store, job_id)).posts} == {"pending"}
        assert not (await view(store, job_id)).webhook_sent

        for post in await store.webhooks.take(10, MINUTE, now=at(1)):
            assert await settled(store, post, status=200, now=at(2))

        found = await view(store, job_id)
        assert found.webhook_sent
        assert [(post.state, post.attempts, post.ended_at, post.status) for post in found.posts] == [
            ("delivered", 1, at(2), 200)
        ] * 2
        assert {post.url for post in found.posts} == {webhook().url, webhook("other").url}

    async def test_a_view_is_stale_once_the_notice_was_sent(self, store: Store) -> None:
        job_id = await finish_one(store)
        await store.retention.mark_stale(WEEK, 10, None, sent=False, now=LATER)
        assert (await view(store, job_id)).stale_sent_at is None
        assert (await view(store, job_id)).job.stale_at == LATER

        await store.retention.mark_sent([job_id], [], now=LATER + MINUTE)

        assert (await view(store, job_id)).stale_sent_at == LATER + MINUTE
