"""Jobs that run for too long are found and released; the outcome of their first worker is refused."""

import asyncio
import threading
from datetime import timedelta

import pytest
from operating import audited, now, of_acme, operator, trail
from running_workers import eventually, state, working

from dutiful import Dutiful
from dutiful.core import ids
from dutiful.core.errors import IllegalTransition, JobNotFound, StoreUnavailable
from dutiful.core.states import State
from dutiful.store import Store
from suite.builders import claim_one, complete, counted_ever, enqueue_one, start_one

HOURS = timedelta(hours=2)
HOUR = timedelta(hours=1)


@pytest.mark.req("L73")
async def test_a_job_is_stuck_if_its_attempt_has_been_running_for_over_an_hour(store: Store) -> None:
    long = await start_one(store, kind="analysis", now=now() - HOURS)
    longer = await start_one(store, kind="elevation", now=now() - 2 * HOURS)
    await start_one(store, kind="email", now=now())
    await enqueue_one(store, now=now() - HOURS)

    found = await operator(store).jobs.stuck()

    assert [job.id for job in found] == [longer.job_id, long.job_id]
    assert [(job.kind, job.state, job.attempt) for job in found] == [
        ("elevation", State.RUNNING, 1),
        ("analysis", State.RUNNING, 1),
    ]
    assert all(job.started_at is not None and job.created_at <= job.started_at <= now() - HOUR for job in found)
    assert [job.id for job in await operator(store).jobs.stuck(kind="analysis")] == [long.job_id]


@pytest.mark.req("L95")
async def test_a_released_job_is_in_line_again_unspent_and_its_old_claim_has_no_say(store: Store) -> None:
    hung = await start_one(store, now=now() - HOURS)

    record = await operator(store).jobs.release(hung.job_id, "it hangs", older_than=HOUR)

    assert (record.state, record.attempt, record.crashes) == (State.READY, 0, 0)
    assert len(await complete(store, hung, now=now())) == 1, "refused"
    again = await claim_one(store, now=now())
    assert (again.job_id, again.attempt) == (hung.job_id, 1)
    assert again.claim_id != hung.claim_id
    assert len(await complete(store, hung, now=now())) == 1, "refused though the job runs again"
    assert await complete(store, again, now=now()) == []
    asked, done = await trail(store, target=ids.public(hung.job_id))
    assert (asked.action, asked.before, done.reason) == ("job.release", {"state": "running"}, "it hangs")
    assert done.outcome == "succeeded" and done.after["state"] == "ready"


@pytest.mark.req("L95")
async def test_attempts_that_people_end_are_counted_as_those_of_workers_are(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [await start_one(store, kind=kind, now=now()) for kind in ("released", "retried", "failed", "not counted")]
    ada = operator(store)

    await ada.jobs.release(claims[0].job_id)
    await ada.jobs.fail(claims[1].job_id, retry=True)
    await of_acme(store).jobs.fail((await start_one(store, kind="failed", tenant="acme", now=now())).job_id)
    await ada.jobs.fail(claims[2].job_id)
    counted = [("failed", "failed", 2), ("released", "released", 1), ("retried", "retried", 1)]
    assert [(one.kind, one.outcome, one.count) for one in await counted_ever(store)] == counted

    async def away(*args: object) -> None:
        raise StoreUnavailable

    monkeypatch.setattr(store.metrics, "add", away)
    assert (await ada.jobs.release(claims[3].job_id)).state is State.READY, "to count it is not what was asked for"


@pytest.mark.req("L95")
async def test_what_cannot_be_released_is_left_as_it_is_and_the_refusal_is_on_record(store: Store) -> None:
    waiting, brief = await enqueue_one(store, now=now()), await start_one(store, queue="other", now=now())
    stopping = await start_one(store, queue="third", now=now() - HOURS)
    await store.control.cancel(stopping.job_id, "no use")
    ada = operator(store)

    for job_id, why in ((waiting, "ready"), (brief.job_id, "not been running for 1h"), (stopping.job_id, "jobs fail")):
        with pytest.raises(IllegalTransition, match=why):
            await ada.jobs.release(job_id, older_than=HOUR)
        assert await audited(store, job_id) == ["job.release refused"]
    with pytest.raises(JobNotFound):
        await of_acme(store).jobs.release(brief.job_id)
    assert await complete(store, brief, now=now()) == [], "its claim is as good as before"


@pytest.mark.req("L95")
async def test_an_attempt_that_ends_meanwhile_is_not_undone_by_a_release(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await start_one(store, now=now() - HOURS)
    append = store.audit.append

    async def ends_meanwhile(events: list[object]) -> None:
        monkeypatch.setattr(store.audit, "append", append)
        await append(events)  # type: ignore[arg-type]
        await complete(store, claim, now=now())

    monkeypatch.setattr(store.audit, "append", ends_meanwhile)
    with pytest.raises(IllegalTransition, match="that attempt has ended"):
        await operator(store).jobs.release(claim.job_id)
    found = await store.queries.job(claim.job_id)
    assert found is not None and found.state is State.COMPLETED


@pytest.mark.req("L95")
async def test_a_worker_that_hangs_loses_its_job_to_another_and_its_late_outcome_is_discarded(app: Dutiful) -> None:
    hangs, hung, ran, asked_to_stop = threading.Event(), threading.Event(), [], threading.Event()

    @app.job(timeout="never")
    def crawl() -> str:
        ran.append(threading.get_ident())
        if len(ran) > 1:
            return "by the second"
        hung.set()
        try:
            while not hangs.wait(0.05):
                pass
        except BaseException:
            asked_to_stop.set()  # and not followed
        hangs.wait(60)
        return "by the first, too late"

    async with working(app), working(app):
        try:
            job = await crawl.enqueue()
            await asyncio.to_thread(hung.wait, 60)
            ada = await app.operator("ada")
            assert [one.id for one in await ada.jobs.stuck(timedelta(0))] == [job.id]

            await ada.jobs.release(job.id, "it hangs")

            assert await job.result(timeout="60s") == "by the second"
            await asyncio.to_thread(asked_to_stop.wait, 60)
        finally:
            hangs.set()
    attempts = await (await app.client()).store.queries.attempts(job.id)
    outcomes = [attempt.outcome for attempt in attempts]
    assert outcomes == ["released", "refused"], "the first outcome came, and did not count"
    record = await job.record()
    assert (record.state, record.result, record.attempt) == (State.COMPLETED, "by the second", 1)
    assert asked_to_stop.is_set() and len(ran) == 2


@pytest.mark.req("L95")
async def test_a_job_that_is_released_while_its_kind_is_paused_waits(app: Dutiful) -> None:
    app.configure(heartbeat="200ms")
    running = asyncio.Event()

    @app.job
    async def email() -> None:
        running.set()
        await asyncio.sleep(60)

    async with working(app):
        job = await email.enqueue()
        await asyncio.wait_for(running.wait(), 60)
        ada = await app.operator("ada")
        await ada.fleet.drain(kinds=["email"])
        await ada.jobs.release(job.id)

        async def safe() -> bool:
            return (await ada.fleet.drain_status()).safe

        await eventually(safe)
        assert await state(app, job) is State.BLOCKED
