"""Workers that keep locks in different ways do not see each other's, so they must not both take them."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest
from lock_jobs import Room
from running_workers import final, working

from dutiful import Context, Dutiful, LaneSettings, Retry, State, UsageError
from dutiful.store import Store
from dutiful.store.locks import LockMode
from dutiful.store.workers import WorkerRecord
from dutiful.worker.locks.manager import LockModeCheck

ONCE = Retry(max_attempts=1)


@pytest.mark.req("D51")
@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_a_worker_behind_a_pooler_takes_no_lock_beside_one_that_is_not(app: Dutiful, pgbouncer: str) -> None:
    room = Room()
    app.configure(lanes=(LaneSettings("here", 2, ("here",)),))
    other = Dutiful(pgbouncer, poll="100ms", lanes=(LaneSettings("other", 2, ("other",)),))

    async def update(ctx: Context) -> None:
        async with ctx.lock("edition", 42), room.guest():
            await asyncio.sleep(0)

    direct = app.job(queue="here", retry=ONCE, name="direct")(update)
    pooled = other.job(queue="other", retry=ONCE, name="pooled")(update)
    async with working(app):
        async with working(other, services=False):
            assert (await final(app, await direct.enqueue())).state is State.COMPLETED
            refused = await final(other, await pooled.enqueue())
            assert (await final(app, await direct.enqueue())).state is State.COMPLETED
        assert refused.state is State.FAILED and refused.errors is not None
        assert refused.errors[0]["type"] == UsageError.__name__ and "direct_url" in refused.errors[0]["message"]
    # With the other one gone, locks may be kept as rows.
    async with working(other):
        assert (await final(other, await pooled.enqueue())).state is State.COMPLETED
    await other.close()


@pytest.mark.req("D52")
@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_a_worker_with_other_classes_takes_no_lock_beside_one_that_has_none(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("here", 2, ("here",)),))
    url, lanes = app.settings.database_url, (LaneSettings("other", 2, ("other",)),)
    other = Dutiful(url, poll="100ms", lanes=lanes, lock_classes={"edition": 1})

    @other.job(queue="other", retry=ONCE)
    async def update(ctx: Context) -> None:
        async with ctx.lock("edition", 42):
            pass

    async with working(app), working(other, services=False):
        refused = await final(other, await update.enqueue())
    await other.close()
    assert refused.errors is not None
    message = refused.errors[0]["message"]
    assert "keeps locks as sessions edition=1, but worker" in message and "with the same lock_classes" in message


def worker(locks: LockMode | None) -> WorkerRecord:
    now = datetime.now(UTC)
    return WorkerRecord(
        id=uuid4(), name="w", host="elsewhere", pid=1, started_at=now, seen_at=now, lanes={}, kinds=[], locks=locks
    )


async def test_of_two_workers_that_differ_the_one_that_looks_later_takes_none(store: Store) -> None:
    ours = await store.locks.mode()
    (theirs,) = set(LockMode) - {ours}
    early, late, silent = worker(ours), worker(theirs), worker(None)
    for one in (early, silent):
        await store.workers.heartbeat(one, timedelta(minutes=1))
    mode_check = LockModeCheck(store, early.id)
    await mode_check.check()

    await store.workers.heartbeat(late, timedelta(minutes=1))
    await mode_check.check()  # the other one has seen this one

    mode_check.reset()
    with pytest.raises(UsageError, match=f"as {ours}, but worker w as {theirs}"):
        await mode_check.check()
    await store.workers.heartbeat(late, -timedelta(minutes=1))
    await mode_check.check()
    assert msgspec.structs.replace(early, seen_at=None, alive=None) in [
        msgspec.structs.replace(one, seen_at=None, alive=None) for one in await store.workers.all()
    ]
