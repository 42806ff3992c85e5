"""Phases and progress of a running job: only the holder of its claim writes them."""

import asyncio
from datetime import timedelta

import pytest

from dutiful.core.errors import DataRefused
from dutiful.core.job import PhaseRecord, PhaseState, Progress
from dutiful.core.outcome import Failed
from dutiful.store import Store
from dutiful.store.queries import JobFilter
from suite.builders import (
    OOPS,
    PHASES,
    PIPELINE,
    T0,
    at,
    claim,
    claim_one,
    complete,
    crash,
    enqueue,
    finish_one,
    mark,
    new_id,
    new_job,
    phases,
    progress,
    progress_of,
    report_all,
    settle,
    start_one,
    warm,
)

RUNNING, COMPLETED, SKIPPED = PhaseState.RUNNING, PhaseState.COMPLETED, PhaseState.SKIPPED
FAILED, INTERRUPTED, CANCELLED = PhaseState.FAILED, PhaseState.INTERRUPTED, PhaseState.CANCELLED
WEEK = timedelta(days=7)


class ProgressSuite:
    @pytest.mark.req("D36")
    async def test_a_job_shows_its_progress(self, store: Store) -> None:
        claimed = await start_one(store)
        items = '{"total": 2, "in_progress": ["b"], "completed": ["a"], "skipped": [], "failed": []}'

        await report_all(
            store,
            progress(claimed, phase="process", percent=33.5, overall=45, message="Übung läuft", items=items),
            now=at(3),
        )

        found = await progress_of(store, claimed.job_id)
        assert found == Progress(
            phase="process",
            percent=33.5,
            overall=45,
            message="Übung läuft",
            items={"total": 2, "in_progress": ["b"], "completed": ["a"], "skipped": [], "failed": []},
            updated_at=at(3),
        )
        (listed,) = await store.queries.jobs(JobFilter())
        assert listed.progress == found

    @pytest.mark.req("D37")
    async def test_a_report_replaces_the_one_before_as_a_whole(self, store: Store) -> None:
        claimed = await start_one(store)
        await report_all(
            store, progress(claimed, phase="download", percent=80.0, message="almost", items="{}"), now=at(1)
        )

        await report_all(store, progress(claimed, phase="process", overall=33), now=at(2))

        expected = Progress(phase="process", overall=33, updated_at=at(2))
        assert await progress_of(store, claimed.job_id) == expected

    async def test_the_last_of_two_reports_of_one_call_counts(self, store: Store) -> None:
        claimed = await start_one(store)

        await report_all(store, progress(claimed, percent=1.0), progress(claimed, percent=2.0))

        assert await progress_of(store, claimed.job_id) == Progress(percent=2.0, updated_at=T0)

    async def test_a_job_that_has_not_reported_has_no_progress_and_no_phases(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)

        assert await store.progress.report([], []) == frozenset()

        assert await progress_of(store, claimed.job_id) is None
        assert await store.progress.phases(claimed.job_id) == []
        assert await store.progress.phases(new_id()) == []

    async def test_a_phase_has_its_times_and_its_attempt(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)

        await report_all(store, mark(claimed, "download"), now=at(1))

        begun = PhaseRecord(name="download", position=0, state=RUNNING, attempt=1, started_at=at(1))
        assert await store.progress.phases(claimed.job_id) == [begun]

    @pytest.mark.req("J36")
    async def test_a_phase_keeps_its_result(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(store, mark(claimed, "download"), now=at(1))

        await report_all(store, mark(claimed, "download", COMPLETED, result='{"files": [1, null, "ü"]}'), now=at(2))

        (phase,) = await store.progress.phases(claimed.job_id)
        assert (phase.state, phase.attempt, phase.started_at, phase.ended_at) == (COMPLETED, 1, at(1), at(2))
        assert (phase.result, phase.error) == ({"files": [1, None, "ü"]}, None)

    async def test_a_phase_that_is_skipped_was_never_begun(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)

        await report_all(store, mark(claimed, "download", SKIPPED), now=at(1))

        skipped = PhaseRecord(name="download", position=0, state=SKIPPED, attempt=0, ended_at=at(1))
        assert await store.progress.phases(claimed.job_id) == [skipped]

    async def test_the_marks_of_one_call_are_written_in_their_order(self, store: Store) -> None:
        claimed, other = [await start_one(store, options=PIPELINE) for _ in range(2)]
        await report_all(store, mark(claimed, "download"))

        await report_all(
            store,
            mark(claimed, "download", COMPLETED, result="1"),
            mark(other, "process", SKIPPED),
            mark(claimed, "process"),
            mark(claimed, "process", COMPLETED, result="2"),
            mark(other, "upload"),
            mark(claimed, "upload"),
            progress(claimed, phase="upload", percent=0.0),
        )

        expected = [("download", COMPLETED, 1), ("process", COMPLETED, 1), ("upload", RUNNING, 1)]
        assert await phases(store, claimed.job_id) == expected
        assert [phase.result for phase in await store.progress.phases(claimed.job_id)] == [1, 2, None]
        assert await phases(store, other.job_id) == [("process", SKIPPED, 0), ("upload", RUNNING, 1)]

    async def test_a_report_that_is_repeated_because_its_reply_was_lost_changes_nothing(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(store, mark(claimed, "download"))
        marks = [mark(claimed, "download", COMPLETED, result="1"), mark(claimed, "process")]
        await report_all(store, *marks, now=at(1))
        before = await store.progress.phases(claimed.job_id)

        await report_all(store, *marks, now=at(2))

        assert await store.progress.phases(claimed.job_id) == before

    async def test_a_phase_that_begins_again_has_no_end(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(
            store, mark(claimed, "download"), mark(claimed, "download", FAILED, error='{"message": "x"}', result="1")
        )

        await report_all(store, mark(claimed, "download"), now=at(5))

        again = PhaseRecord(name="download", position=0, state=RUNNING, attempt=2, started_at=at(5))
        assert await store.progress.phases(claimed.job_id) == [again]

    async def test_a_job_that_starts_over_forgets_its_phases_and_no_others(self, store: Store) -> None:
        claimed, other = [await start_one(store, options=PIPELINE) for _ in range(2)]
        for job in (claimed, other):
            await report_all(store, mark(job, "download"), mark(job, "download", COMPLETED), mark(job, "process"))

        await report_all(store, mark(claimed, "download", anew=True))

        assert await phases(store, claimed.job_id) == [("download", RUNNING, 1)]
        assert await phases(store, other.job_id) == [("download", COMPLETED, 1), ("process", RUNNING, 1)]

    async def test_a_lost_claim_cannot_report_and_the_others_of_its_batch_can(self, store: Store) -> None:
        lost = await start_one(store, options=PIPELINE)
        await report_all(store, mark(lost, "download"), progress(lost, percent=10.0))
        now = await crash(store)
        held = await claim_one(store, limit=0, suspects=1, now=now)
        other = await start_one(store, options=PIPELINE, now=now)
        await report_all(store, mark(held, "download"), mark(held, "download", COMPLETED, result="1"), now=now)

        refused = await store.progress.report(
            [progress(lost, percent=99.0), progress(other, percent=20.0)],
            [mark(lost, "download", anew=True), mark(lost, "process"), mark(other, "download")],
            now=now,
        )

        assert refused == {lost.claim_id}
        assert await progress_of(store, lost.job_id) == Progress(percent=10.0, updated_at=T0)
        assert await phases(store, lost.job_id) == [("download", COMPLETED, 1)]
        assert await progress_of(store, other.job_id) == Progress(percent=20.0, updated_at=now)
        assert await phases(store, other.job_id) == [("download", RUNNING, 1)]

    async def test_nothing_can_be_reported_of_a_job_that_has_ended(self, store: Store) -> None:
        gone = await start_one(store)
        await complete(store, gone)
        await store.retention.delete(WEEK, 10, None, now=T0 + 2 * WEEK)
        late = await start_one(store)
        await complete(store, late)

        reports = [progress(late, percent=1.0), progress(gone, percent=1.0)]
        assert await store.progress.report(reports, [mark(late, "upload"), mark(gone, "upload")], now=at(1)) == {
            late.claim_id, gone.claim_id
        }  # fmt: skip

        assert await progress_of(store, late.job_id) is None
        assert await store.progress.phases(late.job_id) == await store.progress.phases(gone.job_id) == []
        assert await store.queries.check_places() == []

    async def test_phases_and_progress_can_be_read_when_the_job_is_over(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(store, *(mark(claimed, name, COMPLETED, result=f'"{name}"') for name in PHASES))
        await report_all(store, progress(claimed, phase="upload", percent=100.0, overall=100), now=at(1))

        await complete(store, claimed, now=at(2))

        assert [phase.result for phase in await store.progress.phases(claimed.job_id)] == list(PHASES)
        (record,) = await store.queries.outcomes([claimed.job_id])
        assert record.progress == Progress(phase="upload", percent=100.0, overall=100, updated_at=at(1))

    async def test_phases_and_progress_are_deleted_with_their_job(self, store: Store) -> None:
        claimed = await start_one(store, options=PIPELINE)
        await report_all(store, mark(claimed, "download"), progress(claimed, percent=1.0))
        await settle(store, claimed, Failed(OOPS, final=True))
        await finish_one(store)

        await store.retention.delete(WEEK, 10, None, now=T0 + 2 * WEEK)

        assert await store.queries.job(claimed.job_id) is None
        assert await store.progress.phases(claimed.job_id) == []
        assert await store.queries.check_places() == []

    @pytest.mark.req("D44")
    async def test_concurrent_reports_are_all_stored(self, store: Store) -> None:
        await warm(store)
        await enqueue(store, *(new_job(options=PIPELINE) for _ in range(8)))
        claims = await claim(store)

        await asyncio.gather(
            *(
                report_all(store, progress(c, percent=float(n)), mark(c, name))
                for n, name in enumerate(PHASES)
                for c in claims
            )
        )

        for claimed in claims:
            assert await phases(store, claimed.job_id) == [(name, RUNNING, 1) for name in PHASES]
            assert await progress_of(store, claimed.job_id) is not None

    @pytest.mark.parametrize("text", ["\\u0000", "\\ud800"])
    async def test_a_report_that_cannot_be_stored_is_refused_and_changes_nothing(self, store: Store, text: str) -> None:
        odd, plain = await start_one(store), await start_one(store)

        try:
            reports = [progress(plain, percent=1.0), progress(odd, items=f'{{"completed": ["{text}"]}}')]
            assert (
                await store.progress.report(reports, [mark(odd, "download", COMPLETED, result=f'"{text}"')])
                == frozenset()
            )
        except DataRefused:
            assert await progress_of(store, plain.job_id) is None
            assert await store.progress.phases(odd.job_id) == []
        else:
            assert await progress_of(store, odd.job_id) is not None
            assert await phases(store, odd.job_id) == [("download", COMPLETED, 0)]
