"""What retention deletes, and what it must not."""

from datetime import timedelta
from uuid import UUID

from dutiful.core.job import Scope, Unique
from dutiful.core.outcome import Failed
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.retention import RetentionStep
from suite.builders import (
    OOPS,
    T0,
    at,
    claim_one,
    complete,
    enqueue_one,
    finish_one,
    settle,
    start_one,
    state,
)

WEEK = timedelta(days=7)
LATER = T0 + WEEK + timedelta(hours=1)


class RetentionSuite:
    async def test_an_old_job_is_deleted_with_its_attempts(self, store: Store) -> None:
        claimed = await start_one(store)
        await settle(store, claimed, Failed(OOPS))
        await store.promotion.promote(10, now=at(60))
        await complete(store, await claim_one(store, now=at(60)), now=at(60))

        retained = await store.retention.delete(WEEK, 10, None, now=LATER)

        assert retained == RetentionStep(1, [], None)
        assert await store.queries.job(claimed.job_id) is None
        assert await store.queries.attempts(claimed.job_id) == []
        assert await store.queries.check_places() == []

    async def test_a_jobs_age_counts_from_its_end(self, store: Store) -> None:
        claimed = await start_one(store, now=T0)
        await complete(store, claimed, now=LATER - timedelta(days=1))

        assert (await store.retention.delete(WEEK, 10, None, now=LATER)).count == 0
        assert await state(store, claimed.job_id) is State.COMPLETED

    async def test_a_live_job_is_never_deleted(self, store: Store) -> None:
        running = await start_one(store)
        waiting = [await enqueue_one(store), await enqueue_one(store, run_at=at(60))]
        waiting += [await enqueue_one(store, depends_on=(running.job_id,))]

        assert (await store.retention.delete(WEEK, 10, None, now=LATER)).count == 0
        for job_id in (running.job_id, *waiting):
            assert await store.queries.job(job_id) is not None

    async def test_a_job_is_kept_while_another_depends_on_it(self, store: Store) -> None:
        need = await finish_one(store)
        other = await start_one(store)
        dependent = await enqueue_one(store, depends_on=(need, other.job_id))

        await store.retention.delete(WEEK, 10, None, now=LATER)

        assert await state(store, need) is State.COMPLETED
        await complete(store, other, now=LATER)
        await store.promotion.sweep(10, now=LATER)
        assert await state(store, dependent) is State.READY

    async def test_a_need_is_deleted_once_its_dependent_is_gone_too(self, store: Store) -> None:
        need = await finish_one(store)
        await finish_one(store, depends_on=(need,))

        await retain_all(store)

        assert await store.queries.job(need) is None
        assert await store.queries.check_places() == []

    async def test_a_dead_letter_outlives_retention(self, store: Store) -> None:
        await finish_one(store, Failed(OOPS, final=True))

        await retain_all(store)

        assert (await store.queries.stats(timedelta(hours=1), now=LATER)).dead_letters == 1
        assert await store.queries.check_places() == []

    async def test_unique_keys_whose_window_is_over_are_deleted_in_steps(self, store: Store) -> None:
        for n in range(3):
            await enqueue_one(store, unique=Unique(f"key {n}", Scope.WINDOW, window=timedelta(seconds=60)))

        assert not await store.retention.delete_leftovers(WEEK, 2, now=at(59)), "none has expired"
        assert await store.retention.delete_leftovers(WEEK, 2, now=at(60)), "there is one more"
        assert not await store.retention.delete_leftovers(WEEK, 2, now=at(60))

    async def test_a_step_deletes_no_more_than_its_limit(self, store: Store) -> None:
        for _ in range(5):
            await finish_one(store)

        first = await store.retention.delete(WEEK, 2, None, now=LATER)

        assert first.count == 2
        assert first.cursor is not None
        assert (await store.retention.delete(WEEK, 2, first.cursor, now=LATER)).count == 2

    async def test_steps_that_follow_the_cursor_reach_every_old_job(self, store: Store) -> None:
        old = []
        for _ in range(4):
            old.append(await finish_one(store))
            await enqueue_one(store, queue="slow")
            await finish_one(store, now=LATER)

        assert await retain_all(store, limit=1) == 4
        assert [await store.queries.job(job_id) for job_id in old] == [None] * 4


async def retain_all(store: Store, *, limit: int = 10) -> int:
    """Deletes in steps until nothing is left; a dependency is deleted in a later round than its dependent."""
    total, cursor = 0, None
    for _ in range(100):
        retained = await store.retention.delete(WEEK, limit, cursor, now=LATER)
        total += retained.count
        if retained.cursor is None and retained.count == 0:
            return total
        cursor = _forward(cursor, retained.cursor)
    raise AssertionError("retention does not come to an end")


def _forward(before: UUID | None, after: UUID | None) -> UUID | None:
    assert before is None or after is None or after > before, "the cursor must go forward"
    return after
