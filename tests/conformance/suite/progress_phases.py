"""What the end of a job does to its phases."""

import asyncio

import msgspec
import pytest

from dutiful.core.job import Insertion, OnConflict, PhaseRecord, PhaseState, Progress, Unique
from dutiful.core.outcome import Cancelled, Done, Failed, Lost, Outcome, Released, Snoozed, TimedOut
from dutiful.core.settle import Policy
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import RefusalReason
from suite.builders import (
    BACKOFF,
    EXPIRED,
    OOPS,
    PHASES,
    PIPELINE,
    T0,
    at,
    change,
    claim,
    claim_one,
    enqueue,
    enqueue_one,
    mark,
    new_job,
    phases,
    progress,
    progress_of,
    refusal,
    renewing,
    report_all,
    rescue,
    settle,
    start_one,
    state,
    warm,
)
from suite.control import waiting

RUNNING, COMPLETED, SKIPPED = PhaseState.RUNNING, PhaseState.COMPLETED, PhaseState.SKIPPED
FAILED, INTERRUPTED, CANCELLED = PhaseState.FAILED, PhaseState.INTERRUPTED, PhaseState.CANCELLED


class ProgressPhaseSuite:
    async def test_a_failed_phase_keeps_its_error_and_those_before_it_their_results(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(store, mark(claimed, "download"), mark(claimed, "download", COMPLETED, result='"kept"'))
        await report_all(store, mark(claimed, "process"))

        assert await settle(store, claimed, Failed(OOPS, more=({"type": "Other"},)), now=at(2)) == []

        first, second = await store.progress.phases(claimed.job_id)
        assert (first.state, first.result, first.ended_at) == (COMPLETED, "kept", T0)
        assert (second.state, second.attempt, second.error, second.ended_at) == (FAILED, 1, OOPS, at(2))

    @pytest.mark.req("J39")
    async def test_finished_phases_and_their_results_survive_a_retry(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(store, mark(claimed, "download"), mark(claimed, "download", COMPLETED, result='"kept"'))
        await report_all(store, mark(claimed, "process"))
        await settle(store, claimed, Failed(OOPS))
        await store.promotion.promote(1, now=at(60))
        again = await claim_one(store, now=at(60))

        await report_all(store, mark(again, "process"), now=at(60))

        assert await phases(store, claimed.job_id) == [("download", COMPLETED, 1), ("process", RUNNING, 2)]
        first, second = await store.progress.phases(claimed.job_id)
        assert (first.result, second.started_at, second.ended_at, second.error) == ("kept", at(60), None, None)

    async def test_a_phase_that_timed_out_has_failed(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(store, mark(claimed, "download"))

        await settle(store, claimed, TimedOut(BACKOFF, OOPS))

        (phase,) = await store.progress.phases(claimed.job_id)
        assert (phase.state, phase.error) == (FAILED, OOPS)

    @pytest.mark.parametrize("outcome", [Lost(), Released(), Snoozed(BACKOFF)])
    async def test_an_interrupted_phase_has_spent_no_attempt(self, store: Store, outcome: Outcome) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(
            store, mark(claimed, "download"), mark(claimed, "download", COMPLETED), mark(claimed, "process")
        )

        for _ in range(2):  # the second call repeats a lost reply
            await settle(store, claimed, outcome, now=at(2))

        assert await phases(store, claimed.job_id) == [("download", COMPLETED, 1), ("process", INTERRUPTED, 0)]
        assert (await store.progress.phases(claimed.job_id))[1].ended_at == at(2)
        await store.promotion.promote(1, now=at(60))
        (again,) = await claim(store, now=at(60))
        await report_all(store, mark(again, "process"), now=at(60))
        assert await phases(store, claimed.job_id) == [("download", COMPLETED, 1), ("process", RUNNING, 1)]

    async def test_the_phase_of_a_released_claim_is_interrupted(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(store, mark(claimed, "download"))

        async with renewing(store) as renewer:
            await renewer.release(claimed)

        assert await phases(store, claimed.job_id) == [("download", INTERRUPTED, 0)]

    @pytest.mark.req("J11")
    async def test_the_phase_in_which_a_job_was_lost_is_kept(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(store, mark(claimed, "download"), mark(claimed, "download", COMPLETED, result="1"))
        await report_all(store, mark(claimed, "process"), progress(claimed, phase="process", percent=50.0))

        assert await rescue(store, now=at(EXPIRED), policy=Policy(retry_crashes=False)) == []

        assert await state(store, claimed.job_id) is State.FAILED
        assert await phases(store, claimed.job_id) == [("download", COMPLETED, 1), ("process", INTERRUPTED, 0)]
        found = await progress_of(store, claimed.job_id)
        assert found is not None and found.phase == "process"

    async def test_a_job_that_ends_between_its_phases_changes_none_of_them(self, store: Store) -> None:
        ends: list[Outcome] = [Done(), Failed(OOPS), Failed(OOPS, final=True), Lost(), Snoozed(BACKOFF)]
        await enqueue(store, *(new_job(options=PIPELINE) for _ in ends))
        claims = await claim(store)
        for claimed in claims:
            await report_all(store, mark(claimed, "download", SKIPPED), mark(claimed, "process"))
            await report_all(store, mark(claimed, "process", COMPLETED, result="1"), now=at(1))
        before = [await store.progress.phases(claimed.job_id) for claimed in claims]

        changes = [change(claimed, end) for claimed, end in zip(claims, ends, strict=True)]
        assert await store.claims.settle(changes, now=at(2)) == []

        assert [await store.progress.phases(claimed.job_id) for claimed in claims] == before

    @pytest.mark.req("J48", "J49")
    async def test_a_cancelled_pipeline_has_cancelled_all_unfinished_phases(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(store, mark(claimed, "download"), mark(claimed, "download", COMPLETED, result="1"))
        await report_all(store, mark(claimed, "process"), now=at(1))

        assert await settle(store, claimed, Cancelled("no use"), now=at(2)) == []

        assert await state(store, claimed.job_id) is State.CANCELLED
        expected = [("download", COMPLETED, 1), ("process", CANCELLED, 1), ("upload", CANCELLED, 0)]
        assert await phases(store, claimed.job_id) == expected
        first, second, third = await store.progress.phases(claimed.job_id)
        assert (first.result, first.ended_at) == (1, T0)
        assert (second.started_at, second.ended_at) == (at(1), at(2))
        assert third == PhaseRecord(name="upload", position=2, state=CANCELLED, attempt=0, ended_at=at(2))

    @pytest.mark.req("J53", "J54")
    @pytest.mark.parametrize("place", [State.READY, State.SCHEDULED, State.BLOCKED])
    async def test_a_waiting_pipeline_that_is_cancelled_has_cancelled_all_its_phases(
        self, store: Store, place: State
    ) -> None:
        job_id = await waiting(store, place, options=PIPELINE)

        await store.control.cancel(job_id, "no use", now=at(1))

        assert await state(store, job_id) is State.CANCELLED
        assert await phases(store, job_id) == [(name, CANCELLED, 0) for name in PHASES]
        assert [(phase.position, phase.ended_at) for phase in await store.progress.phases(job_id)] == [
            (0, at(1)), (1, at(1)), (2, at(1))
        ]  # fmt: skip

    @pytest.mark.req("J54")
    async def test_what_a_pipeline_had_finished_before_it_was_cancelled_is_kept(self, store: Store) -> None:
        await enqueue(store, *(new_job(options=PIPELINE) for _ in range(3)))
        failed, given_up, interrupted = await claim(store)
        for claimed in (failed, given_up, interrupted):
            await report_all(store, mark(claimed, "download"), mark(claimed, "download", COMPLETED, result="1"))
            await report_all(store, mark(claimed, "process"))
        await report_all(store, mark(given_up, "process", FAILED, error='{"given_up": true}'))
        await settle(store, failed, Failed(OOPS), now=at(1))
        for claimed in (given_up, interrupted):
            await settle(store, claimed, Snoozed(BACKOFF), now=at(1))

        for claimed in (failed, given_up, interrupted):
            await store.control.cancel(claimed.job_id, "no use", now=at(2))

        first, last = ("download", COMPLETED, 1), ("upload", CANCELLED, 0)
        assert await phases(store, failed.job_id) == [first, ("process", CANCELLED, 1), last]
        assert await phases(store, given_up.job_id) == [first, ("process", FAILED, 1), last]
        assert await phases(store, interrupted.job_id) == [first, ("process", CANCELLED, 0), last]
        ended = [phase.ended_at for phase in await store.progress.phases(failed.job_id)]
        assert ended == [T0, at(2), at(2)]
        assert (await store.progress.phases(failed.job_id))[1].error == OOPS

    async def test_a_pipeline_that_is_cancelled_by_another_job_has_cancelled_its_phases(self, store: Store) -> None:
        await enqueue(store, old := new_job(options=PIPELINE, unique=Unique("k", on_conflict=OnConflict.REPLACE)))
        dependent = await enqueue_one(store, options=PIPELINE, depends_on=(old.id,))

        (inserted,) = await store.jobs.insert([new_job(unique=Unique("k", on_conflict=OnConflict.REPLACE))], now=at(1))
        await store.promotion.sweep(10, now=at(1))

        assert inserted.insertion is Insertion.REPLACED
        for job_id in (old.id, dependent):
            assert await state(store, job_id) is State.CANCELLED
            assert await phases(store, job_id) == [(name, CANCELLED, 0) for name in PHASES]

    async def test_a_cancelled_job_without_phases_gets_none(self, store: Store) -> None:
        claimed, ready = await start_one(store, options='{"scheduled_for": null}'), await waiting(store, State.READY)
        await settle(store, claimed, Cancelled("no use"))
        await store.control.cancel(ready, "no use", now=T0)

        assert await store.progress.phases(claimed.job_id) == await store.progress.phases(ready) == []

    @pytest.mark.req("J30")
    async def test_an_ended_phase_keeps_the_last_progress_before_its_end(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(store, mark(claimed, "download"), progress(claimed, phase="download", percent=0.0))
        await report_all(store, progress(claimed, phase="download", percent=40.0, message="stored"), now=at(1))
        stored = mark(claimed, "download", COMPLETED)
        await report_all(store, stored, progress(claimed, phase="download", percent=100.0), now=at(2))
        last = progress(claimed, phase="process", percent=80.0, overall=60, message="not stored", items='{"total": 3}')
        unstored = msgspec.structs.replace(mark(claimed, "process", COMPLETED), progress=last.as_json())
        for _ in range(2):  # a repeated report changes nothing
            await report_all(store, mark(claimed, "process"), unstored, progress(claimed, percent=100.0), now=at(3))

        download, process = await store.progress.phases(claimed.job_id)

        assert download.progress == Progress(phase="download", percent=40, message="stored", updated_at=at(1))
        assert process.progress is not None and process.ended_at == at(3) > process.progress.updated_at
        assert (process.progress.percent, process.progress.overall, process.progress.items) == (80, 60, {"total": 3})
        assert await store.progress.phases(claimed.job_id) == (await store.events.views([claimed.job_id]))[0].phases

    @pytest.mark.req("J48")
    async def test_a_phase_that_ends_after_a_cancel_request_is_cancelled(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(store, mark(claimed, "download"))
        await store.control.cancel(claimed.job_id, "no use", now=at(1))

        assert await store.progress.report([progress(claimed, percent=50.0)], now=at(1)) == frozenset()
        marks = [mark(claimed, "download", COMPLETED, result="1"), mark(claimed, "process")]
        assert await store.progress.report([progress(claimed, percent=100.0)], marks, now=at(2)) == {claimed.claim_id}

        found = await progress_of(store, claimed.job_id)
        assert found is not None and found.percent == 50
        assert await settle(store, claimed, Cancelled("no use"), now=at(3)) == []
        assert [state for _, state, _ in await phases(store, claimed.job_id)] == [CANCELLED] * len(PHASES)

    async def test_a_change_that_is_refused_leaves_the_phase_running(self, store: Store) -> None:
        lost, unwanted = [await start_one(store, options=PIPELINE) for _ in range(2)]
        now = at(EXPIRED)
        (expired,) = [held for held in await store.claims.expired(10, now=now) if held.job_id == lost.job_id]
        assert await store.claims.settle([change(expired, Lost())], expired_only=True, now=now) == []
        held = await claim_one(store, limit=0, suspects=1, now=now)
        await report_all(store, mark(held, "download"), mark(unwanted, "download"), now=now)
        await store.control.cancel(unwanted.job_id, "no use", now=now)

        for outcome in (Failed(OOPS), Cancelled("no use")):
            assert await settle(store, lost, outcome, now=now) == [refusal(lost, RefusalReason.LOST)]
        assert await settle(store, unwanted, Failed(OOPS), now=now) == [
            refusal(unwanted, RefusalReason.CANCEL_REQUESTED)
        ]

        for claimed in (held, unwanted):
            assert await phases(store, claimed.job_id) == [("download", RUNNING, 1)]

    async def test_a_report_and_an_end_at_once_leave_no_phase_running(self, store: Store) -> None:
        await warm(store)
        await enqueue(store, *(new_job(options=PIPELINE) for _ in range(16)))
        claims = await claim(store)

        async def report(n: int) -> frozenset[int]:
            return await store.progress.report([], [mark(claims[n], "download")], now=T0)

        # Either may come first: half of the reports are sent before the end, half after it.
        answers = await asyncio.gather(
            *(report(n) for n in range(8)),
            *(settle(store, claimed, Failed(OOPS, final=True)) for claimed in claims),
            *(report(n) for n in range(8, 16)),
        )

        refused = [bool(answer) for answer in (*answers[:8], *answers[-8:])]
        for claimed, late in zip(claims, refused, strict=True):
            assert await phases(store, claimed.job_id) == ([] if late else [("download", FAILED, 1)])
