"""Which jobs something happened to, and whether anybody wants to know."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.ids import from_parts
from dutiful.core.job import Claim, NewJob
from dutiful.core.outcome import Failed
from dutiful.core.pipeline import PhaseState
from dutiful.outbox import PostState
from dutiful.store import Store
from dutiful.testing.store_suite.builders import (
    ADA,
    BOB,
    OOPS,
    PIPELINE,
    T0,
    at,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_one,
    finish_one,
    mark,
    new_id,
    new_job,
    progress,
    settle,
    start_one,
    track,
)
from dutiful.testing.store_suite.outbox import settled, take_one, webhook
from dutiful.watching import Stir, Stirred

MINUTE, WEEK = timedelta(minutes=1), timedelta(days=7)
LATER = T0 + WEEK + timedelta(hours=1)


class StirSuite:
    """The suite's jobs are of long ago; so every look is at what happened since a time that is past, too."""

    async def test_each_change_is_found_by_its_time_and_has_a_new_mark(self, store: Store) -> None:
        await store.put_webhooks([webhook()])
        seen: set[Stir] = set()

        async def look(since: float) -> bool:
            """Whether the job is among what happened since, with a mark that was not there before."""
            stirs = set((await store.stirred(at(since), 100)).stirs) - seen
            seen.update(stirs)
            return job_id in {stir.job_id for stir in stirs}

        job_id = await enqueue_one(store, options=PIPELINE)
        assert await look(0)
        assert not await look(0)
        first = await claim_one(store, now=at(100))
        assert await look(99)
        for n in (200, 201):
            await track(store, progress(first, percent=1.0), now=at(n))
            assert await look(n - 1)
        await track(store, mark(first, "download"), mark(first, "download", PhaseState.COMPLETED), now=at(300))
        assert await look(299)
        await settle(store, first, Failed(OOPS), now=at(400))
        assert await look(399)
        await store.promote(10, now=at(500))
        second = await claim_one(store, now=at(500))
        assert await look(499)
        await complete(store, second, now=at(600))
        assert await look(599)
        post = await take_one(store, now=at(700))
        await settled(store, post, PostState.FAILED, now=at(701))
        assert await look(700)
        await store.post_again(post.id, now=at(800))
        await settled(store, await take_one(store, now=at(801)), now=at(802))
        assert await look(801)
        await store.mark_stale(WEEK, 10, None, told=True, now=LATER)
        assert await look((LATER - T0).total_seconds() - 1)
        assert not await look(0)

    async def test_a_waiting_job_that_is_cancelled_is_found(self, store: Store) -> None:
        job_id = await enqueue_one(store)
        await store.cancel(job_id, "no use", now=at(100))

        assert [stir.job_id for stir in (await store.stirred(at(99), 10)).stirs] == [job_id]

    async def test_what_ended_before_is_not_found(self, store: Store) -> None:
        await finish_one(store)
        recent = await finish_one(store, now=at(100))

        looked = await store.stirred(at(99), 10)

        assert {stir.job_id for stir in looked.stirs} == {recent}
        assert not looked.more

    async def test_a_first_look_begins_now(self, store: Store) -> None:
        await finish_one(store)
        first = await store.stirred(None, 100)
        assert first.stirs == []

        job = new_job(id=_id_of_now())
        await store.insert([job])

        looked = await store.stirred(first.until, 100)
        assert [stir.job_id for stir in looked.stirs] == [job.id]
        assert looked.until >= first.until
        assert looked.tombstones == []

    @pytest.mark.parametrize("apart", [0.0, 0.05, 1.0], ids=["at once", "quickly", "slowly"])
    @pytest.mark.parametrize("ended", [True, False], ids=["ended", "made"])
    async def test_a_long_backlog_is_walked_without_loss(self, store: Store, apart: float, ended: bool) -> None:
        running = [await start_one(store) for _ in range(3)]
        jobs = [_job_of(100 + n * apart) for n in range(40)]
        if apart == 1.0:
            for n, job in enumerate(jobs):
                await enqueue(store, job, now=at(100 + n))
        else:  # an id is made before its job is stored, and a batch is stored at one moment
            await enqueue(store, *jobs, now=at(100 + 40 * apart))
        if ended:
            for n, claimed in enumerate(await claim(store, now=at(150))):
                await complete(store, claimed, now=at(200 + n * apart))

        found = await walk(store, at(160 if ended else 100), limit=7)

        assert {job.id for job in jobs} <= {stir.job_id for stir in found}
        assert {stir.job_id for stir in found} <= {job.id for job in jobs} | {one.job_id for one in running}

    async def test_what_follows_a_moment_that_fills_a_look_is_not_passed_over(self, store: Store) -> None:
        batches = [[_job_of(n) for _ in range(12)] for n in (100, 200)]
        for n, batch in zip((100, 200), batches, strict=True):
            await enqueue(store, *batch, now=at(n))

        found = await walk(store, at(100), limit=7)

        assert {stir.job_id for stir in found} == {job.id for batch in batches for job in batch}

    async def test_somebody_listens_until_the_time_is_over(self, store: Store) -> None:
        assert not await store.listened(now=T0)

        await store.listen(ADA, MINUTE, now=T0)
        await store.listen(BOB, MINUTE, now=T0)
        await store.listen(ADA, MINUTE, now=at(50))

        assert await store.listened(now=at(59))
        assert await store.listened(now=at(109))
        assert not await store.listened(now=at(111))

    async def test_nobody_listens_when_the_last_has_left(self, store: Store) -> None:
        for listener in (ADA, BOB):
            await store.listen(listener, MINUTE, now=T0)

        await store.unlisten(ADA)
        assert await store.listened(now=at(1))
        await store.unlisten(BOB)
        await store.unlisten(BOB)
        assert not await store.listened(now=at(1))


async def walk(store: Store, since: datetime, *, limit: int) -> set[Stir]:
    """Look until all has been found; a look that is cut short must go on where it ended."""
    found: set[Stir] = set()
    for _ in range(100):
        looked = await store.stirred(since, limit)
        assert looked.until >= since
        found.update(looked.stirs)
        if not looked.more:
            return found
        since = looked.until
    raise AssertionError("the walk does not come to an end")


async def check_a_late_commit_is_found(store: Store, begin: Callable[[Claim], Any]) -> None:
    """`begin` completes the job on a connection of its own, and returns how to commit that."""
    claimed = await start_one(store, now=datetime.now(UTC), id=_id_of_now())
    before: Stirred = await store.stirred(None, 100)
    commit = await begin(claimed)
    while_open = await store.stirred(before.until, 100)

    await commit()

    seen = {*before.stirs, *while_open.stirs}
    assert await store.outcomes([claimed.job_id]) != []
    after = await store.stirred(while_open.until, 100)
    assert claimed.job_id in {stir.job_id for stir in set(after.stirs) - seen}


def _job_of(seconds: float) -> NewJob:
    """A job whose id was made then."""
    job = new_job()
    return new_job(id=from_parts(int(at(seconds).timestamp() * 1000), job.id.bytes[6:]))


def _id_of_now() -> UUID:
    return from_parts(int(datetime.now(UTC).timestamp() * 1000), new_id().bytes[6:])
