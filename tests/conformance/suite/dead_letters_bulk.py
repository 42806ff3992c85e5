"""One act on many dead letters, in steps that any process may take: each dead letter is handled once."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.dead_letters import BulkRun, BulkState, BulkStep, DeadLetter, DeadLetterFilter, Reviewed
from dutiful.store.queries import JobFilter
from suite.audit import event
from suite.builders import ADA, T0, at, new_id, warm
from suite.dead_letters import TIMED_OUT, act_on, applied, fail_one, found

PENDING = ReviewState.PENDING_REVIEW
WEEK = timedelta(days=7)


def bulk_run(**fields: Any) -> BulkRun:
    wanted = DeadLetterFilter(
        status=[PENDING], kinds=["greet"], queue="default", tenant="acme", text="no answer", until=at(100)
    )
    usual: dict[str, Any] = {
        "id": new_id(),
        "act": ReviewAct.REPROCESS,
        "filter": wanted,
        "by": "ada",
        "role": "manager",
        "origin": "cli",
        "reason": "the network is mended",
        "created_at": at(100),
        "total": 5,
    }
    return BulkRun(**usual | fields)


async def start(store: Store, **fields: Any) -> BulkRun:
    run = bulk_run(**fields)
    await store.dead_letters.start_bulk(run, event(act=run.id))
    return run


async def the_run(store: Store, run_id: UUID) -> BulkRun:
    run = await store.dead_letters.bulk_run(run_id)
    assert run is not None
    return run


def same(left: BulkRun | None, right: BulkRun) -> bool:
    """Compare as JSON, because a store may return lists for tuples."""
    return msgspec.json.encode(left) == msgspec.json.encode(right)


def step_of(run: BulkRun, page: list[DeadLetter], **fields: Any) -> BulkStep:
    to = page[-1].cursor if page else None
    return BulkStep(**{"run_id": run.id, "after": run.cursor, "to": to} | fields)


async def take_step(store: Store, run_id: UUID, size: int = 2) -> list[Reviewed]:
    """One step of a run: an act on each dead letter of a page, on condition that the cursor has not moved."""
    run = await the_run(store, run_id)
    page = await store.dead_letters.search(run.filter, after=run.cursor, limit=size)
    reviews = [act_on(letter, run.act, event=event(act=run.id)) for letter in page]
    return await store.dead_letters.review(reviews, step=step_of(run, page, last=len(page) < size), now=at(200))


async def fail_some(store: Store, count: int) -> list[DeadLetter]:
    return [await fail_one(store, TIMED_OUT, tenant="acme", now=at(n)) for n in range(count)]


class DeadLetterBulkSuite:
    async def test_a_run_is_stored_as_started_with_its_event(self, store: Store) -> None:
        run, started = bulk_run(), event()

        for _ in range(2):
            await store.dead_letters.start_bulk(run, started)

        assert same(await store.dead_letters.bulk_run(run.id), run)
        assert await store.audit.search(AuditFilter()) == [started]
        assert await store.dead_letters.bulk_run(new_id()) is None

    async def test_steps_handle_each_dead_letter_once_and_the_last_ends_the_run(self, store: Store) -> None:
        letters = await fail_some(store, 5)
        run = await start(store)

        handled = [[answer.id for answer in await take_step(store, run.id)] for _ in range(4)]

        newest = [letter.id for letter in reversed(letters)]
        assert handled == [newest[:2], newest[2:4], newest[4:], []]
        after = await the_run(store, run.id)
        assert (after.done, after.skipped, after.state, after.ended_at) == (5, 0, BulkState.DONE, at(200))
        assert after.cursor == letters[0].cursor
        assert len(await store.queries.jobs(JobFilter(queue="again"))) == 5
        assert len(await store.audit.search(AuditFilter(act=run.id))) == 6

    async def test_a_step_that_finds_nothing_ends_the_run_where_it_stands(self, store: Store) -> None:
        letters = await fail_some(store, 2)
        run = await start(store)
        await take_step(store, run.id)

        assert await take_step(store, run.id) == []

        after = await the_run(store, run.id)
        assert (after.done, after.state, after.cursor) == (2, BulkState.DONE, letters[0].cursor)

    async def test_dead_letters_that_cannot_be_handled_are_skipped_and_counted(self, store: Store) -> None:
        letters = await fail_some(store, 4)
        run = await start(store, act=ReviewAct.DISCARD)
        page = await store.dead_letters.search(run.filter)
        await applied(store, act_on(letters[1], ReviewAct.RESOLVE))
        reviews = [act_on(letter, ReviewAct.DISCARD) for letter in page[1:]]

        step = step_of(run, page, skipped=1, last=True, event=event(act=run.id), events=[event(act=run.id)])
        answers = await store.dead_letters.review(reviews, step=step, now=at(200))

        assert [answer.applied for answer in answers] == [True, False, True]
        after = await the_run(store, run.id)
        assert (after.done, after.skipped) == (2, 2)
        recorded = await store.audit.search(AuditFilter(act=run.id))
        assert step.event in recorded
        assert step.events[0] in recorded

    async def test_a_step_behind_the_cursor_does_nothing(self, store: Store) -> None:
        letters = await fail_some(store, 3)
        run = await start(store, act=ReviewAct.DISCARD)
        await take_step(store, run.id)
        before = await the_run(store, run.id)

        for act_letter in letters:
            late = step_of(run, [act_letter], last=True, event=event(act=run.id), events=[event(act=run.id)])
            review = act_on(act_letter, ReviewAct.DISCARD, event=event(act=run.id))
            assert await store.dead_letters.review([review], step=late, now=at(201)) == []

        assert await the_run(store, run.id) == before
        assert await found(store, status=[PENDING]) == [letters[0].id]
        assert len(await store.audit.search(AuditFilter(act=run.id))) == 3

    async def test_a_step_of_an_unknown_run_does_nothing(self, store: Store) -> None:
        letters = await fail_some(store, 1)

        step = step_of(bulk_run(), letters, event=event())
        assert await store.dead_letters.review([act_on(letters[0], ReviewAct.DISCARD)], step=step, now=T0) == []

        assert await found(store, status=[PENDING]) == [letters[0].id]
        assert await store.audit.search(AuditFilter()) == []

    async def test_concurrent_steppers_handle_each_dead_letter_once(self, store: Store) -> None:
        await warm(store)
        letters = await fail_some(store, 12)
        run = await start(store)

        async def stepper() -> list[UUID]:
            met: list[UUID] = []
            while (await the_run(store, run.id)).state is BulkState.RUNNING:
                met += [answer.id for answer in await take_step(store, run.id)]
            return met

        met = await asyncio.gather(*(stepper() for _ in range(4)))

        assert sorted(id_ for some in met for id_ in some) == sorted(letter.id for letter in letters)
        after = await the_run(store, run.id)
        assert (after.done, after.skipped, after.state) == (12, 0, BulkState.DONE)
        assert len(await store.queries.jobs(JobFilter(queue="again"))) == 12
        assert len(await store.audit.search(AuditFilter(act=run.id, limit=100))) == 13

    async def test_a_run_that_was_stopped_stays_so(self, store: Store) -> None:
        await fail_some(store, 3)
        run = await start(store)
        await take_step(store, run.id)

        assert await store.dead_letters.stop_bulk(run.id, now=at(150))

        assert await take_step(store, run.id) == []
        after = await the_run(store, run.id)
        assert (after.done, after.state, after.ended_at) == (2, BulkState.STOPPED, at(150))
        assert not await store.dead_letters.stop_bulk(run.id, now=at(151))
        assert not await store.dead_letters.stop_bulk(new_id(), now=at(151))
        assert await the_run(store, run.id) == after

    async def test_a_run_that_is_done_cannot_be_stopped(self, store: Store) -> None:
        run = await start(store)
        await take_step(store, run.id)

        assert not await store.dead_letters.stop_bulk(run.id, now=at(300))

        assert (await the_run(store, run.id)).state is BulkState.DONE

    async def test_a_run_goes_on_where_it_was_when_the_store_is_opened_anew(self, store: Store) -> None:
        letters = await fail_some(store, 3)
        run = await start(store)
        await take_step(store, run.id)
        before = await the_run(store, run.id)

        await store.close()
        await store.open()

        assert await the_run(store, run.id) == before
        assert [answer.id for answer in await take_step(store, run.id)] == [letters[0].id]

    async def test_runs_are_listed_the_newest_first_and_running_ones_the_oldest_first(self, store: Store) -> None:
        old, stopped, new = [await start(store, created_at=at(n)) for n in (1, 2, 3)]
        await store.dead_letters.stop_bulk(stopped.id, now=at(9))

        assert [run.id for run in await store.dead_letters.bulk_runs()] == [new.id, stopped.id, old.id]
        assert [run.id for run in await store.dead_letters.bulk_runs(limit=1)] == [new.id]
        assert [run.id for run in await store.dead_letters.bulk_runs(running=True)] == [old.id, new.id]
        assert [run.id for run in await store.dead_letters.bulk_runs(running=True, limit=1)] == [old.id]

    async def test_runs_of_one_tenant_are_listed_without_others(self, store: Store) -> None:
        await start(store, created_at=at(1), filter=DeadLetterFilter())
        own = await start(store, created_at=at(2), filter=DeadLetterFilter(tenant="acme"))
        await start(store, created_at=at(3), filter=DeadLetterFilter(tenant="globex"))

        assert [run.id for run in await store.dead_letters.bulk_runs(tenant="acme", limit=1)] == [own.id]
        assert [run.id for run in await store.dead_letters.bulk_runs(tenant="acme", running=True)] == [own.id]

    async def test_a_survey_shows_whether_a_run_is_running(self, store: Store) -> None:
        async def reviewing() -> bool:
            return (await store.leadership.survey(ADA, timedelta(seconds=30), now=T0)).reviewing

        assert not await reviewing()
        run = await start(store)
        assert await reviewing()

        await store.dead_letters.stop_bulk(run.id, now=at(9))

        assert not await reviewing()

    async def test_a_run_is_deleted_when_it_ended_as_long_ago_as_jobs_that_are_deleted(self, store: Store) -> None:
        await fail_some(store, 1)
        over, stopped, young, running = [(await start(store)).id for _ in range(4)]
        await take_step(store, over)  # at 200
        await store.dead_letters.stop_bulk(stopped, now=at(300))
        await store.dead_letters.stop_bulk(young, now=at(301))

        async def kept() -> list[UUID]:
            return [
                run for run in (over, stopped, young, running) if await store.dead_letters.bulk_run(run) is not None
            ]

        await store.retention.delete_leftovers(WEEK, 100, now=at(200) + WEEK)
        assert await kept() == [over, stopped, young, running]
        await store.retention.delete_leftovers(WEEK, 100, now=at(201) + WEEK)
        assert await kept() == [stopped, young, running]
        assert not await store.retention.delete_leftovers(WEEK, 100, now=at(301) + WEEK)
        assert await kept() == [young, running]
        assert (await the_run(store, running)).state is BulkState.RUNNING
        assert len(await store.audit.search(AuditFilter(act=over))) > 0, "the audit trail keeps what it did"

    async def test_runs_are_deleted_in_steps(self, store: Store) -> None:
        for _ in range(3):
            await store.dead_letters.stop_bulk((await start(store)).id, now=at(200))

        assert await store.retention.delete_leftovers(WEEK, 2, now=at(201) + WEEK), "there is more"
        assert len(await store.dead_letters.bulk_runs()) == 1
        assert not await store.retention.delete_leftovers(WEEK, 2, now=at(201) + WEEK)
        assert await store.dead_letters.bulk_runs() == []
