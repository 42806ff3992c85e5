"""SQLite searches on one thread and writes on another: what changed in between is looked at again before the write."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dutiful.core.outcome import Cancelled
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.core.states import State
from dutiful.store.control import PauseScope
from dutiful.stores.sqlite import SqliteStore
from suite.builders import (
    KIND,
    T0,
    at,
    claim,
    claim_one,
    enqueue,
    enqueue_one,
    finish_one,
    new_job,
    pause,
    settle,
    state,
    states,
)
from suite.dead_letters import act_on, applied, fail_one, the_letter
from suite.dead_letters_review import AGAIN

DAY = timedelta(days=1)
LATER = T0 + 2 * DAY

Meanwhile = Callable[[Callable[[], Awaitable[Any]]], None]


@pytest.fixture
async def store(migrated_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(migrated_path)
    await store.open()
    yield store
    assert await store.queries.check_places() == []
    await store.close()


@pytest.fixture
def meanwhile(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Does something once, after the next search and before the write that follows it."""

    def arrange(act: Callable[[], Awaitable[Any]]) -> None:
        waiting = [act]
        for name in ("browse", "read"):
            monkeypatch.setattr(store.engine, name, _then(getattr(store.engine, name), waiting))

    return arrange


def _then(search: Any, waiting: list[Callable[[], Awaitable[Any]]]) -> Any:
    async def searched(verb: Any) -> Any:
        act = waiting.pop() if waiting else None
        found = await search(verb)
        if act is not None:
            await act()
        return found

    return searched


async def test_a_job_that_another_has_come_to_depend_on_is_not_deleted(
    store: SqliteStore, meanwhile: Meanwhile
) -> None:
    need, free = await finish_one(store, Cancelled("no use")), await finish_one(store)
    dependent = new_job(depends_on=(need,))
    meanwhile(lambda: enqueue(store, dependent, now=LATER))

    deleted = await store.retention.delete(DAY, 10, None, tombstones=True, sent=True, now=LATER)

    assert [job.id for job in deleted.jobs] == [free]
    await store.promotion.sweep(10, now=LATER)
    assert await states(store, [need, dependent.id]) == [State.CANCELLED, State.CANCELLED]


async def test_a_job_that_was_deleted_does_not_become_stale(store: SqliteStore, meanwhile: Meanwhile) -> None:
    await finish_one(store)
    meanwhile(lambda: store.retention.delete(DAY, 10, None, now=LATER))

    assert (await store.retention.mark_stale(DAY, 10, None, sent=False, now=LATER)).jobs == []

    assert await store.engine.read(lambda db: db.value("SELECT count(*) FROM dutiful_stale")) == 0


async def test_a_job_that_is_stale_already_is_not_returned_again(store: SqliteStore, meanwhile: Meanwhile) -> None:
    await finish_one(store)
    meanwhile(lambda: store.retention.mark_stale(DAY, 10, None, sent=True, now=LATER))

    assert (await store.retention.mark_stale(DAY, 10, None, sent=False, now=LATER)).jobs == []

    assert await store.retention.unsent(10) == [], "its notice was sent"


async def test_a_blocked_job_that_is_due_gets_one_position(store: SqliteStore, meanwhile: Meanwhile) -> None:
    await pause(store, PauseScope.KIND, KIND)
    first = await enqueue_one(store, run_at=at(1))
    second = new_job()

    async def faster() -> None:
        assert (await store.promotion.unblock(10, now=at(2))).moved == 1
        await enqueue(store, second, now=at(2))

    meanwhile(faster)
    assert (await store.promotion.unblock(10, now=at(2))).moved == 0

    await store.control.resume(PauseScope.KIND, KIND)
    await store.promotion.unblock(10, now=at(2))
    assert [one.job_id for one in await claim(store, now=at(2))] == [first, second.id]


async def test_a_ready_job_whose_kind_was_resumed_is_not_blocked(store: SqliteStore, meanwhile: Meanwhile) -> None:
    job_id = await enqueue_one(store)
    await pause(store, PauseScope.KIND, KIND)
    meanwhile(lambda: store.control.resume(PauseScope.KIND, KIND))

    assert (await store.promotion.sweep(10, now=T0)).moved == 0

    assert await state(store, job_id) is State.READY


async def test_a_blocked_job_whose_kind_was_paused_again_is_not_moved(store: SqliteStore, meanwhile: Meanwhile) -> None:
    await pause(store, PauseScope.KIND, KIND)
    job_id = await enqueue_one(store)
    await store.control.resume(PauseScope.KIND, KIND)
    meanwhile(lambda: pause(store, PauseScope.KIND, KIND))

    assert (await store.promotion.unblock(10, now=T0)).moved == 0

    assert await state(store, job_id) is State.BLOCKED


async def test_a_dead_letter_that_was_reprocessed_again_is_not_resolved_by_its_former_job(
    store: SqliteStore, meanwhile: Meanwhile
) -> None:
    letter = await fail_one(store)
    await applied(store, act_on(letter, ReviewAct.REPROCESS))
    await settle(store, await claim_one(store, levels=[AGAIN]), Cancelled("wrong payload"))
    again = act_on(letter, ReviewAct.REPROCESS)

    async def faster() -> None:
        assert await store.dead_letters.resolve_reprocessed(10, now=at(1)) == 1
        await applied(store, again)

    meanwhile(faster)
    assert await store.dead_letters.resolve_reprocessed(10, now=at(2)) == 0

    after = await the_letter(store, letter.id)
    assert again.job is not None
    assert (after.status, after.new_job_id) == (ReviewState.REPROCESSING, again.job.id)


async def test_a_dead_letter_that_was_discarded_is_not_resolved(store: SqliteStore, meanwhile: Meanwhile) -> None:
    letter = await fail_one(store)
    await applied(store, act_on(letter, ReviewAct.REPROCESS))
    await settle(store, await claim_one(store, levels=[AGAIN]), Cancelled("wrong payload"))

    async def faster() -> None:
        await store.dead_letters.resolve_reprocessed(10, now=at(1))
        await applied(store, act_on(letter, ReviewAct.DISCARD), now=at(1))

    meanwhile(faster)
    assert await store.dead_letters.resolve_reprocessed(10, now=at(2)) == 0

    assert (await the_letter(store, letter.id)).status is ReviewState.DISCARDED
