"""Failing a job by hand, on both stores: one that runs, with or without a retry, and one that waits."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from operating import BROKEN, audited, dead_letter, now, operator, trail
from running_workers import working

from dutiful import Context, Dutiful, Retry
from dutiful.core import ids
from dutiful.core.errors import IllegalTransition, NotAllowed
from dutiful.core.events import events_of
from dutiful.core.principal import Role
from dutiful.core.retry.backoff import Fixed
from dutiful.core.review.state import ReviewState
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.dead_letters import DeadLetterFilter
from suite.builders import claim_one, complete, enqueue_one, finish_one, start_one, state

BY_HAND = {"type": "FailedByHand", "message": "failed by ada: the file is corrupt"}


def shown(error: dict[str, Any]) -> dict[str, Any]:
    return {name: error[name] for name in BY_HAND}


@pytest.mark.req("L26", "L42", "L88")
async def test_a_job_that_waits_is_moved_to_the_dead_letters_by_hand(store: Store) -> None:
    job_id = await enqueue_one(store, tenant="acme", correlation_id="c-1", payload='{"n": 1}', now=now())

    assert await operator(store).jobs.fail(job_id, "the file is corrupt") is State.FAILED

    letter = await operator(store).dead_letters.get(job_id)
    assert shown(letter.errors[0]) == BY_HAND
    assert (letter.message, letter.error_class) == (BY_HAND["message"], "non_retryable")
    assert (letter.payload, letter.correlation_id, letter.tenant) == ({"n": 1}, "c-1", "acme")
    assert (letter.job["kind"], letter.status) == ("greet", ReviewState.PENDING_REVIEW)
    asked, done = await trail(store, target=ids.public(job_id))
    assert (asked.action, asked.before, done.reason) == ("job.fail", {"state": "ready"}, "the file is corrupt")
    assert (done.outcome, done.after) == ("succeeded", {"state": "failed", "retry": False})


@pytest.mark.req("L41")
@pytest.mark.parametrize(("retry", "becomes"), [(False, State.FAILED), (True, State.SCHEDULED)])
async def test_a_job_that_runs_fails_by_hand_and_its_handler_stops(app: Dutiful, retry: bool, becomes: State) -> None:
    running, stopped, returned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.job(retry=Retry(backoff=Fixed("1h")))
    async def hangs() -> None:
        try:
            running.set()
            await asyncio.sleep(60)
            returned.set()
        finally:
            stopped.set()

    async with working(app):
        job = await hangs.enqueue()
        await asyncio.wait_for(running.wait(), 20)

        assert await (await app.operator("ada")).jobs.fail(job.id, "the file is corrupt", retry=retry) is becomes

        await asyncio.wait_for(stopped.wait(), 20)
    record = await job.record()
    assert (record.state, record.attempt, returned.is_set()) == (becomes, 1, False)
    store = (await app.client()).store
    errors = record.errors if becomes is State.FAILED else [one.error for one in await store.queries.attempts(job.id)]
    assert errors and errors[0] is not None
    assert shown(errors[0]) == BY_HAND
    assert (await store.dead_letters.find(job.id) is None) is retry


@pytest.mark.req("L41")
async def test_what_comes_back_from_a_job_that_was_failed_by_hand_is_refused(store: Store) -> None:
    final, tried = await start_one(store, now=now()), await start_one(store, now=now())

    await operator(store).jobs.fail(final.job_id)
    await operator(store).jobs.fail(tried.job_id, retry=True)

    assert len(await complete(store, final, tried, now=now())) == 2
    assert await state(store, final.job_id) is State.FAILED
    assert await state(store, tried.job_id) is State.SCHEDULED


@pytest.mark.req("L41")
@pytest.mark.parametrize("wait", [timedelta(0), timedelta(hours=1)])
async def test_a_waiting_job_that_fails_by_hand_with_a_retry_has_spent_an_attempt(
    store: Store, wait: timedelta
) -> None:
    job_id = await enqueue_one(store, max_attempts=2, now=now(), run_at=now() + wait)
    ada = operator(store)

    assert await ada.jobs.fail(job_id, "the file is not there yet", retry=True) is State.SCHEDULED

    record = await store.queries.job(job_id)
    (spent,) = await store.queries.attempts(job_id)
    assert record is not None and (record.state, record.attempt) == (State.SCHEDULED, 1)
    assert (spent.attempt, spent.outcome, spent.claimed_at) == (1, "failed", None)
    assert spent.error is not None and spent.error["message"] == "failed by ada: the file is not there yet"
    assert (await store.promotion.promote(10)).moved == 0, "its kind's backoff is not over"
    assert await store.dead_letters.find(job_id) is None
    assert await audited(store, job_id) == ["job.fail requested", "job.fail succeeded"]
    stats = {one.outcome: one.count for one in await store.metrics.recent(timedelta(minutes=5))}
    assert stats == {"retried": 1}

    assert await ada.jobs.fail(job_id, retry=True) is State.FAILED, "no attempt is left"
    letter = await store.dead_letters.find(job_id)
    assert letter is not None and (letter.attempt, letter.message) == (2, "failed by ada, who gave no reason")
    assert await store.queries.check_places() == []


@pytest.mark.req("L41")
async def test_a_waiting_job_runs_after_it_was_failed_with_a_retry(app: Dutiful) -> None:
    ran = []

    @app.job(retry=Retry(max_attempts=3, backoff=Fixed("1ms")))
    async def send(ctx: Context) -> None:
        ran.append(ctx.attempt)

    job = await send.enqueue()
    await (await app.operator("ada")).jobs.fail(job.id, retry=True)
    async with working(app):
        await asyncio.wait_for(job.result(), 20)
    assert ran == [2]
    (view,) = await (await app.client()).store.events.views([job.id])
    assert [event.type for event in events_of(view)] == ["enqueued", "retrying", "started", "completed"]


@pytest.mark.req("L41")
async def test_the_last_attempt_that_fails_by_hand_is_final_though_a_retry_was_asked_for(store: Store) -> None:
    last = await start_one(store, max_attempts=1, now=now())

    assert await operator(store).jobs.fail(last.job_id, retry=True) is State.FAILED
    letter = await store.dead_letters.find(last.job_id)
    assert letter is not None and letter.message == "failed by ada, who gave no reason"


@pytest.mark.req("L41")
async def test_what_cannot_be_failed_is_left_as_it_is_and_the_refusal_is_on_record(store: Store) -> None:
    waiting, done = await enqueue_one(store, now=now()), await finish_one(store, queue="other", now=now())
    stopping = (await start_one(store, queue="third", now=now())).job_id
    await store.control.cancel(stopping, "no use")
    ada = operator(store)

    refused = ((done, True, "has ended"), (done, False, "has ended"), (stopping, True, "stop"))
    for job_id, retry, why in refused:
        with pytest.raises(IllegalTransition, match=why):
            await ada.jobs.fail(job_id, retry=retry)
        assert (await audited(store, job_id))[-1] == "job.fail refused"
    with pytest.raises(NotAllowed):
        await operator(store, role=Role.STAFF).jobs.fail(waiting)

    assert await state(store, waiting) is State.READY
    assert await ada.jobs.fail(stopping) is State.CANCELLED
    record = await store.queries.job(stopping)
    assert record is not None and record.errors == [{"type": "Cancelled", "message": "no use"}]


@pytest.mark.req("L41")
async def test_a_job_that_is_claimed_while_it_is_being_failed_fails_as_a_running_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, ada = await enqueue_one(store, now=now()), operator(store)
    find = store.queries.job

    async def find_and_start(wanted: UUID) -> Any:
        found = await find(wanted)
        if found is not None and found.state is State.READY:
            monkeypatch.setattr(ada.actor.store.queries, "job", find)
            await claim_one(store, now=now())
        return found

    monkeypatch.setattr(ada.actor.store.queries, "job", find_and_start)

    assert await ada.jobs.fail(job_id) is State.FAILED
    record = await find(job_id)
    assert record is not None and record.attempt == 1


@pytest.mark.req("L41", "L42")
@pytest.mark.parametrize(("subject", "call"), [("control", "fail"), ("claims", "settle")])
async def test_a_failing_whose_answer_was_lost_is_known_for_done(
    store: Store, monkeypatch: pytest.MonkeyPatch, subject: str, call: str
) -> None:
    job_id = (await start_one(store, now=now())).job_id if call == "settle" else await enqueue_one(store, now=now())
    ada = operator(store)
    done = getattr(getattr(store, subject), call)

    async def twice(*given: Any) -> Any:  # as a connection does that was lost before it had the answer
        await done(*given)
        return await done(*given)

    monkeypatch.setattr(getattr(ada.actor.store, subject), call, twice)

    assert await ada.jobs.fail(job_id) is State.FAILED
    assert await audited(store, job_id) == ["job.fail requested", "job.fail succeeded"]


@pytest.mark.req("L41")
async def test_a_failing_that_came_too_late_is_not_taken_for_an_earlier_one_with_the_same_reason(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, job_id = operator(store), (await start_one(store, now=now())).job_id
    await ada.jobs.fail(job_id, "stuck", retry=True)
    await store.control.run_now(job_id)
    second = await claim_one(store, now=now())
    settle = store.claims.settle

    async def too_late(changes: Any) -> Any:
        monkeypatch.setattr(ada.actor.store.claims, "settle", settle)
        await complete(store, second)
        return await settle(changes)

    monkeypatch.setattr(ada.actor.store.claims, "settle", too_late)

    with pytest.raises(IllegalTransition, match="completed"):
        await ada.jobs.fail(job_id, "stuck", retry=True)


@pytest.mark.req("L60", "L86", "L87", "L102")
async def test_those_that_are_not_acknowledged_are_listed_the_newest_first(store: Store) -> None:
    first, seen, last = [await dead_letter(store) for _ in range(3)]
    ada = operator(store)

    acknowledged = await ada.dead_letters.acknowledge(seen, "I am on it")

    unseen = await ada.dead_letters.search(DeadLetterFilter(status=[ReviewState.PENDING_REVIEW]))
    assert [letter.id for letter in unseen] == [last, first]
    assert (acknowledged.reviewed_by, acknowledged.notes) == ("ada", "I am on it")
    assert acknowledged.reviewed_at is not None and acknowledged.reviewed_at >= acknowledged.died_at
    assert (acknowledged.message, acknowledged.errors) == (BROKEN["message"], [BROKEN])
