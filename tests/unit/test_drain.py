"""When a drain may be called safe: nothing of it runs anywhere, as far as anyone can know."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.job import JobRecord
from dutiful.core.states import State
from dutiful.operator.drain import (
    EVERYTHING,
    SILENCE,
    DrainSnapshot,
    DrainTarget,
    UnclaimedRun,
    has_ended,
    is_claimed,
    may_run,
)
from dutiful.operator.jobs.fail import FAILED_BY_HAND
from dutiful.store.control import Pause, PauseScope
from dutiful.store.workers import LaneRecord, Process, WorkerRecord

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ADA, BOB = UUID(int=0xADA), UUID(int=0xB0B)
GENERAL = DrainTarget(PauseScope.LANE, "general")
MINUTE = timedelta(minutes=1)


def job(number: int = 1, worker: UUID | None = ADA, **fields: Any) -> JobRecord:
    return JobRecord(
        **{
            "id": UUID(int=number),
            "kind": "email",
            "queue": "mail",
            "state": State.RUNNING,
            "payload": {},
            "priority": 100,
            "attempt": 1,
            "crashes": 0,
            "max_attempts": 5,
            "created_at": NOON,
            "run_at": None,
            "worker_id": worker,
            **fields,
        }
    )


def lane(*jobs: JobRecord, queues: tuple[str, ...] = ("*",), **fields: Any) -> LaneRecord:
    return LaneRecord(slots=5, queues=queues, jobs=tuple(one.id for one in jobs), **fields)


def worker(worker_id: UUID = ADA, **fields: Any) -> WorkerRecord:
    known: dict[str, Any] = {
        "lanes": {"general": lane()},
        "kinds": ["email"],
        "started_at": NOON - SILENCE,
        "seen_at": NOON,
    }
    return WorkerRecord(id=worker_id, name=f"host:{worker_id.int}", host="host", pid=1, **{**known, **fields})


def pause(name: str = "general", since: datetime = NOON - MINUTE, scope: PauseScope = PauseScope.LANE) -> Pause:
    return Pause(scope, name, since)


def snapshot(
    *targets: DrainTarget,
    pauses: list[Pause] | None = None,
    running: list[JobRecord] | None = None,
    workers: list[WorkerRecord] | None = None,
) -> DrainSnapshot:
    found = [pause()] if pauses is None else pauses
    return DrainSnapshot(targets or (GENERAL,), found, running or [], workers or [], NOON)


def claimed(*targets: DrainTarget, running: list[JobRecord], workers: list[WorkerRecord] | None = None) -> list[int]:
    return [one.id.int for one in snapshot(*targets, running=running, workers=workers).claimed]


# --- running jobs


@pytest.mark.parametrize("by", [None, BOB])
def test_a_job_of_an_unknown_worker_may_run_in_any_lane(by: UUID | None) -> None:
    assert claimed(running=[job(1, by)], workers=[worker(ADA)]) == [1]
    assert claimed(DrainTarget(PauseScope.KIND, "import"), running=[job(1, by)]) == [], "but it is of no such kind"


def test_a_job_of_a_live_worker_runs_in_the_lane_that_reports_it() -> None:
    here, there = job(1), job(2)
    workers = [worker(lanes={"general": lane(here), "fast": lane(there)})]
    assert claimed(running=[here, there], workers=workers) == [1]


def test_a_job_of_a_silent_worker_may_run_in_each_lane_that_serves_its_queue() -> None:
    workers = [worker(alive=False, lanes={"general": lane(queues=("mail",)), "fast": lane(queues=("fast",))})]
    assert claimed(running=[job(1), job(2, queue="fast")], workers=workers) == [1]


def test_a_job_of_a_drained_kind_or_queue_counts_in_whatever_lane_it_runs() -> None:
    running = [job(1), job(2, kind="import"), job(3, kind="import", queue="bulk")]
    workers = [worker(lanes={"fast": lane(*running)})]
    assert claimed(DrainTarget(PauseScope.KIND, "email"), running=running, workers=workers) == [1]
    assert claimed(DrainTarget(PauseScope.QUEUE, "mail"), running=running, workers=workers) == [1, 2]
    assert claimed(EVERYTHING, running=running, workers=workers) == [1, 2, 3]


def test_a_claimed_ahead_job_keeps_its_lane_from_being_safe() -> None:
    workers = [worker(lanes={"general": lane(buffered=2), "fast": lane(buffered=5)}), worker(BOB)]
    assert snapshot(workers=workers).prefetched() == 2
    assert snapshot(DrainTarget(PauseScope.QUEUE, "mail"), workers=workers).prefetched() == 0
    assert snapshot(EVERYTHING, workers=workers).prefetched() == 0, "there it is counted as running"
    ended = [worker(process=Process.ENDED, lanes={"general": lane(buffered=2)})]
    assert snapshot(workers=ended).prefetched() == 0


# --- runs without a claim


def test_a_handler_that_runs_on_without_its_claim_is_found() -> None:
    held, taken, given = job(1), job(2, None), job(3, BOB)
    found = snapshot(running=[held, given], workers=[worker(lanes={"general": lane(held, taken, given)})]).unclaimed()
    assert [one.job_id.int for one in found] == [2, 3], "a claim of another worker is no claim of this one"
    ended = snapshot(workers=[worker(process=Process.ENDED, lanes={"general": lane(taken)})])
    assert list(ended.unclaimed()) == []


def test_a_job_that_was_failed_by_hand_has_not_ended() -> None:
    run = UnclaimedRun(worker(seen_at=NOON), "general", UUID(int=1))
    over = job(state=State.FAILED, finished_at=NOON)
    assert has_ended(run, over)
    by_hand = job(state=State.FAILED, finished_at=NOON, errors=[{"type": "ValueError"}, {"type": FAILED_BY_HAND}])
    assert not has_ended(run, by_hand), "a person has ended the job, not its handler"


def test_a_job_that_ended_before_its_workers_last_heartbeat_still_runs_there() -> None:
    run = UnclaimedRun(worker(seen_at=NOON), "general", UUID(int=1))
    assert not has_ended(run, job(state=State.COMPLETED, finished_at=NOON - timedelta(microseconds=1)))
    assert not has_ended(run, job(finished_at=None))
    assert has_ended(run, None), "retention has deleted it"


def test_a_job_that_was_claimed_by_the_same_worker_meanwhile_is_no_left_over() -> None:
    run = UnclaimedRun(worker(), "general", UUID(int=1))
    assert is_claimed(run, job())
    assert not is_claimed(run, job(worker=BOB)) and not is_claimed(run, job(state=State.READY))
    assert not is_claimed(run, None)


def test_what_runs_without_a_claim_concerns_a_drain_of_its_lane_kind_or_queue() -> None:
    run, of_kind, of_queue = UnclaimedRun(worker(), "fast", UUID(int=1)), job(), job(kind="x")
    assert not snapshot().concerns(run, of_kind)
    assert snapshot().concerns(UnclaimedRun(worker(), "general", UUID(int=1)), of_kind)
    assert snapshot(DrainTarget(PauseScope.KIND, "email")).concerns(run, of_kind)
    assert not snapshot(DrainTarget(PauseScope.KIND, "email")).concerns(run, of_queue)
    assert snapshot(DrainTarget(PauseScope.QUEUE, "mail")).concerns(run, of_queue)
    assert snapshot(EVERYTHING).concerns(run, of_kind)


# --- pauses


def test_every_pause_has_to_be_old_enough() -> None:
    kind = DrainTarget(PauseScope.KIND, "email")
    young = Pause(PauseScope.KIND, "email", NOON - timedelta(seconds=0.9))
    second = timedelta(seconds=1)
    assert not snapshot(GENERAL, kind, pauses=[pause(), young]).paused_for(second), "a claim may be under way"
    assert not snapshot(kind, GENERAL, pauses=[young, pause()]).paused_for(second)
    assert snapshot(pauses=[pause(since=NOON - second)]).paused_for(second)


def test_a_target_that_is_not_paused_is_named() -> None:
    kind = DrainTarget(PauseScope.KIND, "email")
    seen = snapshot(GENERAL, kind)
    assert seen.not_paused == ["kind email"] and list(seen.paused) == [GENERAL]


@pytest.mark.parametrize(
    ("target", "waits"),
    [
        (DrainTarget(PauseScope.KIND, "email"), True),
        (DrainTarget(PauseScope.KIND, "import"), False),
        (DrainTarget(PauseScope.QUEUE, "mail"), True),
        (DrainTarget(PauseScope.QUEUE, "bulk"), False),
        (GENERAL, True),
        (DrainTarget(PauseScope.LANE, "fast"), False),
        (EVERYTHING, True),
    ],
)
def test_a_worker_that_may_take_from_a_target_has_to_confirm_its_pause(target: DrainTarget, waits: bool) -> None:
    made = pause(target.name, scope=target.scope)
    seen = snapshot(target, pauses=[made], workers=[worker(lanes={"general": lane(queues=("mail",))})])
    assert seen.unconfirmed_ids() == ({ADA} if waits else set())
    confirmed = worker(lanes={"general": lane(queues=("mail",), pauses_seen=(made.mark,))})
    assert snapshot(target, pauses=[made], workers=[confirmed]).unconfirmed_ids() == set()


def test_the_pause_of_an_earlier_drain_is_no_confirmation_of_this_one() -> None:
    earlier = worker(lanes={"general": lane(pauses_seen=(pause(since=NOON - 2 * MINUTE).mark,))})
    assert snapshot(workers=[earlier]).unconfirmed_ids() == {ADA}


# --- silent workers


def test_a_worker_may_run_until_its_process_is_known_to_have_ended() -> None:
    def runs(gone: tuple[str, ...] = (), others: tuple[WorkerRecord, ...] = (), **fields: Any) -> bool:
        one = worker(**fields)
        return may_run(one, [one, *others], gone, NOON)

    silent: dict[str, Any] = {"alive": False, "seen_at": NOON - MINUTE}
    assert runs() and runs(**silent) and runs(alive=False, seen_at=NOON - SILENCE + MINUTE)
    assert not runs(alive=False, seen_at=NOON - SILENCE), "after an hour it counts as ended"
    assert not runs(process=Process.ENDED)
    assert not runs(gone=(worker().name,), **silent)
    assert runs(gone=(worker().name,)), "one that is alive is not gone"
    assert runs(gone=(worker().name,), process=Process.STOPPED, **silent)
    successor = worker(started_at=NOON)
    assert not runs(others=(successor,), **silent), "another process has its host and pid"
    assert runs(others=(worker(started_at=NOON - MINUTE),), **silent)
