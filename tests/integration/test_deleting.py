"""Finished jobs are deleted by hand, as retention would have done later."""

from datetime import timedelta

import pytest
from operating import BROKEN, now, of_acme, operator, trail
from running_workers import eventually, final, working

from dutiful import Dutiful, JobRecord
from dutiful.core.errors import NotAllowed, UsageError
from dutiful.core.outcome import Failed
from dutiful.core.principal import Role
from dutiful.store import Store
from suite.builders import enqueue_one, finish_one, start_one

DAY = timedelta(days=1)


@pytest.mark.req("L30")
async def test_what_ended_long_ago_is_deleted_and_what_retention_would_keep_stays(store: Store) -> None:
    failed = await finish_one(store, Failed(BROKEN, final=True), now=now() - 2 * DAY)
    gone = [failed, *[await finish_one(store, now=now() - 2 * DAY) for _ in range(3)]]
    stay = [
        await finish_one(store, now=now()),
        (await start_one(store, now=now())).job_id,
        await enqueue_one(store, now=now() - 2 * DAY),
    ]

    assert await operator(store).jobs.delete_finished(DAY, "a load test") == 4

    assert [await store.queries.job(job_id) for job_id in gone] == [None] * 4
    assert None not in [await store.queries.job(job_id) for job_id in stay]
    assert (await operator(store).dead_letters.get(failed)).payload == {}, "it stands for itself"
    asked, done = await trail(store, action="job.delete_finished")
    assert (asked.target, done.reason, done.outcome, done.after) == ("1d", "a load test", "succeeded", {"deleted": 4})


async def test_more_than_one_step_is_deleted_to_the_last(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dutiful.operator.jobs.jobs.STEP", 2)
    for _ in range(5):
        await finish_one(store, now=now() - 2 * DAY)
    assert await operator(store).jobs.delete_finished(DAY) == 5
    assert await operator(store).jobs.delete_finished(DAY) == 0


async def test_the_next_worker_calls_the_callbacks(app: Dutiful) -> None:
    received: list[JobRecord] = []
    app.on_delete(received.append)

    @app.job
    async def fine() -> str:
        return "yes"

    async with app.opened() as client:
        async with working(app, client):
            ended = await final(app, await fine.enqueue())
        assert await (await app.operator("ada")).jobs.delete_finished(timedelta(0)) == 1
        assert received == [], "only a worker calls them"
        async with working(app, client):
            await eventually(lambda: called(received))
    assert [(job.id, job.result) for job in received] == [(ended.id, "yes")]


async def called(received: list[JobRecord]) -> bool:
    return bool(received)


async def test_it_is_for_admins_of_all_tenants_and_for_spans_that_there_are(store: Store) -> None:
    await finish_one(store, tenant="acme", now=now() - 2 * DAY)
    for who, problem in (
        (of_acme(store), "about all tenants"),
        (operator(store, role=Role.MANAGER), "needs admin"),
    ):
        with pytest.raises(NotAllowed, match=problem):
            await who.jobs.delete_finished(DAY)
    with pytest.raises(UsageError, match="older_than"):
        await operator(store).jobs.delete_finished(-DAY)
    assert [one.outcome for one in await trail(store, action="job.delete_finished")] == ["refused"] * 3
