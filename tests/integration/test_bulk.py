"""Bulk runs over dead letters: by hand, by the services, and after one of them is killed; on both stores."""

import asyncio
import os
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any
from uuid import UUID

import msgspec
import pytest
from operating import BROKEN, audited, dead_letter, now, of_acme, operator, trail
from running_workers import eventually, working

from dutiful import Dutiful, Retry, Rules
from dutiful.core import ids
from dutiful.core.errors import DataRefused, IllegalTransition, PayloadInvalid, UsageError
from dutiful.core.job import NewJob
from dutiful.core.outcome import Failed
from dutiful.core.review.audit import AuditEvent, AuditOutcome
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.maintenance import requeue
from dutiful.maintenance.bulk_step import NOT_APPLIED
from dutiful.maintenance.reviewer import Reviewer
from dutiful.operator import Operator
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.dead_letters import BulkRun, BulkState, DeadLetter, DeadLetterFilter, LetterCursor, Review, Reviewed
from suite.builders import change, claim, new_job

EVERYTHING = DeadLetterFilter()
MANY = 2_000


async def make_dead_letters(store: Store, count: int, **fields: object) -> None:
    """So many dead letters, quickly."""
    for start in range(0, count, 1_000):
        batch = [new_job(**fields) for _ in range(min(1_000, count - start))]
        await store.jobs.insert(batch, now=now())
        left = len(batch)
        while left:
            claimed = await claim(store, now=now(), limit=left)
            await store.claims.settle([change(one, Failed(BROKEN, final=True)) for one in claimed], now=now())
            left -= len(claimed)


async def finished(ada: Operator, run: BulkRun) -> BulkRun:
    while run.state is BulkState.RUNNING:
        run = await ada.bulk.step(run.id)
    return run


async def letters(store: Store) -> AsyncIterator[DeadLetter]:
    after: LetterCursor | None = None
    while page := await store.dead_letters.search(EVERYTHING, after=after, limit=1_000):
        for letter in page:
            yield letter
        after = page[-1].cursor


async def events_of(store: Store, run_id: UUID) -> AsyncIterator[AuditEvent]:
    before: UUID | None = None
    while page := await store.audit.search(AuditFilter(act=run_id, before=before, limit=1_000)):
        for event in page:
            yield event
        before = page[-1].id


async def check_each_once(store: Store, run: BulkRun, count: int) -> None:
    """Every dead letter was reprocessed by the run, none twice, and all of it is on record."""
    assert (run.state, run.done, run.skipped, run.total) == (BulkState.DONE, count, 0, count)
    seen = [letter async for letter in letters(store)]
    new_jobs = {letter.new_job_id for letter in seen}
    assert {letter.status for letter in seen} == {ReviewState.REPROCESSING}
    assert (len(seen), len(new_jobs)) == (count, count)
    (queue,) = await store.queries.queues()
    assert queue.ready == count or (queue.estimated and count > 10_000)  # no job but those
    events = [event async for event in events_of(store, run.id)]
    assert Counter(f"{event.action} {event.outcome}" for event in events) == {
        "dead_letter.bulk requested": 1,
        "dead_letter.bulk succeeded": 1,
        "dead_letter.reprocess succeeded": count,
        "dead_letter.bulk_done succeeded": 1,
    }
    targets = {event.target for event in events if event.action == "dead_letter.reprocess"}
    assert targets == {ids.public(letter.id) for letter in seen}
    assert await store.queries.check_places() == []


async def test_a_preview_shows_how_many_and_which_and_changes_nothing(store: Store) -> None:
    await make_dead_letters(store, 12, kind="greet")
    other = await dead_letter(store, error={**BROKEN, "type": "Timeout", "fingerprint": "f2"})
    closed = await dead_letter(store)
    ada = operator(store)
    await ada.dead_letters.discard(closed)

    preview = await ada.bulk.preview(ReviewAct.REPROCESS, EVERYTHING)

    assert (preview.count, len(preview.sample), preview.sample[0].id) == (13, 10, other)
    assert [(group.fingerprint, group.count) for group in preview.groups] == [("f1", 12), ("f2", 1)]
    assert await store.dead_letters.count(DeadLetterFilter(status=[ReviewState.PENDING_REVIEW])) == 13


async def test_a_run_acts_on_what_it_found_and_nothing_else(store: Store) -> None:
    await make_dead_letters(store, 3, tenant="acme")
    theirs = await dead_letter(store, tenant="globex")
    ann = of_acme(store)

    run = await ann.bulk.start(ReviewAct.DISCARD, EVERYTHING, "an incident")
    later = await dead_letter(store, tenant="acme")
    run = await finished(ann, run)

    assert (run.done, run.total, run.filter.tenant) == (3, 3, "acme")
    for other in (theirs, later):
        letter = await store.dead_letters.find(other)
        assert letter is not None
        assert letter.status is ReviewState.PENDING_REVIEW
    seen = [letter async for letter in letters(store) if letter.status is ReviewState.DISCARDED]
    assert {(letter.reviewed_by, letter.notes) for letter in seen} == {("ann of acme", "an incident")}
    assert {event.tenant for event in await trail(store)} == {"acme"}


async def test_one_that_was_decided_meanwhile_is_skipped(store: Store) -> None:
    await make_dead_letters(store, 2)
    first = await dead_letter(store)
    ada = operator(store)
    run = await ada.bulk.start(ReviewAct.REPROCESS, EVERYTHING)
    await ada.dead_letters.discard(first)

    run = await finished(ada, run)

    assert (run.total, run.done) == (3, 2)
    assert await audited(store, first) == ["dead_letter.discard requested", "dead_letter.discard succeeded"]


async def test_why_one_was_skipped_is_on_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, faster, refused = [await dead_letter(store, options=f'{{"unique": "{n}"}}') for n in range(3)]
    ada = operator(store)
    run = await ada.bulk.start(ReviewAct.REPROCESS, EVERYTHING)
    review = store.dead_letters.review

    async def meanwhile(reviews: Sequence[Review], **more: Any) -> list[Reviewed]:
        if refused in (one.id for one in reviews):
            raise DataRefused("the payload lacks: firm")
        if faster in (one.id for one in reviews):
            await review([Review(id=faster, act=ReviewAct.DISCARD, by="bob")])
        return await review(reviews, **more)

    monkeypatch.setattr(store.dead_letters, "review", meanwhile)
    run = await finished(ada, run)

    assert (run.state, run.done, run.skipped, run.total) == (BulkState.DONE, 1, 2, 3)
    events = await trail(store, act=run.id, outcome=AuditOutcome.REFUSED)
    assert {event.target: event.after for event in events} == {
        ids.public(faster): {"error": NOT_APPLIED, "status": "discarded"},
        ids.public(refused): {"error": "the payload lacks: firm"},
    }
    assert (await audited(store, wanted)) == ["dead_letter.reprocess succeeded"]


class Span(msgspec.Struct):
    low: int
    high: int

    def __post_init__(self) -> None:
        assert self.low <= self.high


async def test_one_that_the_handlers_own_types_cannot_bear_is_skipped_and_the_run_goes_on(app: Dutiful) -> None:
    @app.job(name="greet", rules=Rules())
    async def greet(span: Span) -> None: ...

    store = (await app.client()).store
    good = await dead_letter(store, payload='{"span": {"low": 1, "high": 2}}')
    bad = await dead_letter(store, payload='{"span": {"low": 3, "high": 2}}')
    ada = Operator(await app.client(), "ada", app.kinds)

    run = await finished(ada, await ada.bulk.start(ReviewAct.REPROCESS, EVERYTHING))

    assert (run.done, run.skipped) == (1, 1)
    assert await audited(store, good) == ["dead_letter.reprocess succeeded"]
    assert await audited(store, bad) == ["dead_letter.reprocess refused"]
    with pytest.raises(PayloadInvalid, match="AssertionError"):
        await ada.dead_letters.reprocess(bad)


async def test_an_unexpected_error_in_one_does_not_delay_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = [await dead_letter(store) for _ in range(2)]

    def fail_for_one(letter: DeadLetter, **more: Any) -> NewJob:
        if letter.id == bad:
            raise KeyError("mailbox 7")
        return requeue.new_job(letter, **more)

    monkeypatch.setattr("dutiful.maintenance.bulk_step.new_job", fail_for_one)
    ada = operator(store)
    run = await finished(ada, await ada.bulk.start(ReviewAct.REPROCESS, EVERYTHING))

    assert (run.done, run.skipped) == (1, 1)
    assert await audited(store, good) == ["dead_letter.reprocess succeeded"]
    (refused,) = await trail(store, target=ids.public(bad))
    assert refused.after == {"error": "it could not be made a job: KeyError"}
    assert "mailbox 7" in caplog.text  # the trail is for good, and the text of such an error may hold anything


async def test_a_run_by_a_client_whose_clock_is_behind_finds_what_the_preview_showed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Behind(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) - timedelta(minutes=10)

    await make_dead_letters(store, 3)
    ada = operator(store)
    monkeypatch.setattr("dutiful.operator.bulk.datetime", Behind)

    preview = await ada.bulk.preview(ReviewAct.DISCARD, EVERYTHING)
    run = await finished(ada, await ada.bulk.start(ReviewAct.DISCARD, EVERYTHING))

    assert (preview.count, run.total, run.done) == (3, 3, 3)


async def test_a_stopped_run_takes_no_more_steps(store: Store) -> None:
    await make_dead_letters(store, 2)
    ada = operator(store)
    run = await ada.bulk.start(ReviewAct.REPROCESS, EVERYTHING)

    stopped = await ada.bulk.stop(run.id, "wrong filter")
    after = await ada.bulk.step(run.id)

    assert (stopped.state, after.state, after.done) == (BulkState.STOPPED, BulkState.STOPPED, 0)
    with pytest.raises(IllegalTransition, match="stopped"):
        await ada.bulk.stop(run.id)
    assert await store.dead_letters.count(DeadLetterFilter(status=[ReviewState.PENDING_REVIEW])) == 2


async def test_a_filter_that_leaves_nothing_to_act_on_is_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="pending_review"):
        await operator(store).bulk.start(ReviewAct.REPROCESS, DeadLetterFilter(status=[ReviewState.DISCARDED]))

    assert await store.dead_letters.bulk_runs() == []
    assert [event.outcome for event in await trail(store)] == [AuditOutcome.REFUSED]


async def test_two_leaders_share_a_run_and_neither_repeats_the_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_dead_letters(store, 1_200)
    ada = operator(store)
    run = await ada.bulk.start(ReviewAct.REPROCESS, EVERYTHING)
    review, both, first = store.dead_letters.review, asyncio.Barrier(2), list[int]()

    async def at_once(reviews: Sequence[Review], **more: Any) -> list[Reviewed]:
        if len(first) == 2:
            return await review(reviews, **more)
        await both.wait()  # both have read the same page
        answers = await review(reviews, **more)
        first.append(len(answers))
        return answers

    monkeypatch.setattr(store.dead_letters, "review", at_once)

    async def lead() -> None:
        reviewer = Reviewer(store.dead_letters, {}, lambda lines: None)
        while await reviewer.step_all():
            pass

    await asyncio.gather(lead(), lead())

    assert min(first) == 0 < max(first), "one took the step, and the other did not"
    await check_each_once(store, await ada.bulk.get(run.id), 1_200)


async def test_a_worker_takes_a_run_to_its_end_and_resolves_what_has_ended(app: Dutiful) -> None:
    broken = True

    @app.job(retry=Retry(max_attempts=1))
    async def send(n: int) -> None:
        if broken:
            raise ValueError("oops")

    async with working(app):
        ada = Operator(await app.client(), "ada")

        async def standing(status: str) -> bool:
            return (await ada.dead_letters.counts(EVERYTHING)).by_status == {status: 5}

        handles = await send.enqueue_many([{"n": n} for n in range(5)])
        await eventually(lambda: standing("pending_review"))
        broken = False
        run = await ada.bulk.start(ReviewAct.REPROCESS, EVERYTHING, "fixed")
        await eventually(lambda: standing("resolved"))

        assert (await ada.bulk.get(run.id)).state is BulkState.DONE
        for handle in handles:
            letter = await ada.dead_letters.get(handle.id)
            assert letter.new_job_id is not None
            assert letter.resolution == f"completed as {ids.public(letter.new_job_id)}"


def resumed(url: str, run_id: UUID) -> "subprocess.Popen[bytes]":
    """A process of its own that takes the run to its end."""
    command = [sys.executable, "-m", "dutiful.cli", "bulk", "resume", str(run_id), "--database-url", url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


async def killed_in_the_middle(ada: Operator, url: str, run: BulkRun) -> BulkRun:
    """As far as a process has come that took at least one step, and was killed."""
    process = resumed(url, run.id)

    async def moved() -> bool:
        return (await ada.bulk.get(run.id)).done > run.done or process.poll() is not None

    try:
        await eventually(moved)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"
    return await ada.bulk.get(run.id)


@pytest.mark.req("W46", "W48")
async def test_a_run_whose_stepper_is_killed_is_ended_by_another_and_acts_once_on_each(
    store: Store, backend: str, request: pytest.FixtureRequest
) -> None:
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    await make_dead_letters(store, MANY)
    ada = operator(store)
    run = await ada.bulk.start(ReviewAct.REPROCESS, EVERYTHING, "the mail server is back")

    left = await killed_in_the_middle(ada, url, run)
    assert left.state is BulkState.RUNNING
    last = resumed(url, run.id)
    out, err = await asyncio.to_thread(last.communicate)

    assert last.returncode == 0, err
    assert b"2,000 of 2,000" in out
    await check_each_once(store, await ada.bulk.get(run.id), MANY)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
async def test_a_hundred_thousand_are_reprocessed_in_memory_that_stays_flat(store: Store) -> None:
    count = int(os.environ.get("DUTIFUL_SOAK_LETTERS", "100000"))
    await make_dead_letters(store, count)
    ada = operator(store)
    run = await ada.bulk.start(ReviewAct.REPROCESS, EVERYTHING)
    tracemalloc.start()
    peaks: list[int] = []
    while run.state is BulkState.RUNNING:
        run = await ada.bulk.step(run.id)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
    tracemalloc.stop()

    early, late = max(peaks[:10]), max(peaks[-10:])
    assert late < 1.5 * early + 1_000_000, f"a step took {early:,} bytes at first, and {late:,} in the end"
    await check_each_once(store, run, count)
