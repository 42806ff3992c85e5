from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutiful.core.events import Event, EventType, JobView, PostView, events_of
from dutiful.core.job import AttemptRecord, JobRecord, PhaseRecord, PhaseState, Progress
from dutiful.core.states import State

JOB, WORKER = UUID(int=1), UUID(int=2)
POST, OTHER_POST = UUID(int=3), UUID(int=4)
T0 = datetime(2024, 1, 1, 12, 0, tzinfo=UTC)
OOPS: dict[str, Any] = {"type": "ValueError", "message": "oops", "traceback": "File x, line 1"}
BRIEF = {"type": "ValueError", "message": "oops"}


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def job(**fields: Any) -> JobRecord:
    plain: dict[str, Any] = {
        "id": JOB, "kind": "greet", "queue": "fast", "state": State.READY, "payload": {"secret": 1}, "priority": 100,
        "attempt": 0, "crashes": 0, "max_attempts": 5, "created_at": T0, "run_at": None, "tenant": "acme",
        "correlation_id": "order-17",
    }  # fmt: skip
    return JobRecord(**plain | fields)


def attempt(claim_id: int, outcome: str, *, start: datetime | None, end: datetime, number: int = 1) -> AttemptRecord:
    return AttemptRecord(JOB, claim_id, number, outcome, WORKER, start, end, OOPS)


def phase(name: str, state: PhaseState, *, end: datetime | None = None) -> PhaseRecord:
    return PhaseRecord(name=name, position=0, state=state, attempt=1, ended_at=end, result={"n": 1})


def post(state: str, *, id: UUID = POST, end: datetime | None = None) -> PostView:
    return PostView(id=id, url="https://ops.example/secret", state=state, attempts=1, ended_at=end, status=200)


STORY = JobView(
    job=job(
        state=State.COMPLETED,
        attempt=2,
        started_at=at(20),
        finished_at=at(40),
        result={"sum": 3},
        errors=[],
        progress=Progress(percent=100.0, overall=100, updated_at=at(40)),
        stale_at=at(90),
    ),
    claim_id=8,
    attempts=[attempt(7, "failed", start=at(1), end=at(10))],
    phases=[phase("download", PhaseState.COMPLETED, end=at(30)), phase("upload", PhaseState.COMPLETED, end=at(40))],
    posts=[post("delivered", end=at(50)), post("failed", id=OTHER_POST, end=at(60))],
    stale_sent_at=at(91),
)


def types(events: list[Event]) -> list[str]:
    return [event.type.value for event in events]


def test_a_whole_life_becomes_events_in_the_order_in_which_it_happened() -> None:
    assert types(events_of(STORY)) == [
        "enqueued", "started", "retrying", "started", "phase_completed", "phase_completed", "progress", "completed",
        "webhook_delivered", "webhook_failed", "stale",
    ]  # fmt: skip


def test_at_one_moment_the_phase_comes_before_the_progress_and_that_before_the_end() -> None:
    assert types([event for event in events_of(STORY) if event.at == at(40)]) == [
        "phase_completed", "progress", "completed"
    ]  # fmt: skip


def test_events_of_one_moment_are_in_the_order_of_a_life() -> None:
    view = JobView(
        job=job(state=State.FAILED, attempt=2, started_at=T0, finished_at=T0, progress=Progress(updated_at=T0)),
        claim_id=8,
        attempts=[attempt(7, "failed", start=None, end=T0)],
        phases=[phase("download", PhaseState.COMPLETED, end=T0)],
        posts=[post("delivered", end=T0)],
        stale_sent_at=T0,
    )

    types_ = [event.type for event in events_of(view)]

    assert types_ == [kind for kind in EventType if kind in types_]
    assert len(types_) == 8


def test_the_url_of_a_webhook_is_shown_without_what_may_be_a_secret() -> None:
    urls = [event.data["url"] for event in events_of(STORY) if event.type is EventType.WEBHOOK_DELIVERED]

    assert urls == ["https://ops.example/"]


def test_every_event_says_whose_it_is() -> None:
    whose = {(event.job_id, event.kind, event.queue, event.tenant, event.correlation_id) for event in events_of(STORY)}

    assert whose == {(JOB, "greet", "fast", "acme", "order-17")}


def test_no_two_facts_of_a_job_share_a_key() -> None:
    keys = [event.key for event in events_of(STORY)]

    assert len(set(keys)) == len(keys)


@given(st.sets(st.sampled_from([event.key for event in events_of(STORY)])))
def test_only_what_was_not_seen_becomes_an_event(seen: set[str]) -> None:
    rest = events_of(STORY, seen)

    assert rest == [event for event in events_of(STORY) if event.key not in seen]


def test_a_start_is_the_same_fact_whether_the_attempt_runs_or_is_over() -> None:
    running = JobView(job=job(state=State.RUNNING, attempt=1, started_at=at(1)), claim_id=7)
    waiting = JobView(job=job(state=State.SCHEDULED), attempts=[attempt(7, "failed", start=at(1), end=at(2))])
    seen = {event.key for event in events_of(running)}

    assert types(events_of(running)) == ["enqueued", "started"]
    assert types(events_of(waiting, seen)) == ["retrying"]


def test_what_a_claim_found_after_it_had_looked_at_the_clock_is_still_enqueued_first() -> None:
    view = JobView(job=job(state=State.RUNNING, attempt=1, started_at=at(-1)), claim_id=7)
    assert [(event.type, event.at) for event in events_of(view)] == [("enqueued", T0), ("started", T0)]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("failed", ["started", "retrying"]),
        ("timed_out", ["started", "retrying"]),
        ("lost", ["started", "retrying"]),
        ("snoozed", ["started"]),
    ],
)
def test_an_attempt_that_failed_is_a_retry_and_one_that_was_put_off_is_not(outcome: str, expected: list[str]) -> None:
    view = JobView(job=job(), attempts=[attempt(7, outcome, start=at(1), end=at(2))])

    assert types(events_of(view))[1:] == expected


def test_what_came_too_late_adds_nothing() -> None:
    attempts = [attempt(7, "lost", start=at(1), end=at(2)), attempt(7, "refused", start=None, end=at(3))]

    assert types(events_of(JobView(job=job(), attempts=attempts))) == ["enqueued", "started", "retrying"]


def test_a_retry_has_its_error_without_the_traceback() -> None:
    (_, _, retrying) = events_of(JobView(job=job(), attempts=[attempt(7, "failed", start=at(1), end=at(2), number=3)]))

    assert retrying.data == {"attempt": 3, "outcome": "failed", "error": BRIEF}
    assert retrying.at == at(2)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (State.COMPLETED, EventType.COMPLETED),
        (State.COMPLETED_WITH_ERRORS, EventType.COMPLETED),
        (State.FAILED, EventType.FAILED),
        (State.CANCELLED, EventType.CANCELLED),
    ],
)
def test_an_end_has_its_state_its_result_and_brief_errors(state: State, kind: EventType) -> None:
    view = JobView(job=job(state=state, attempt=2, finished_at=at(5), result={"sum": 3}, errors=[OOPS]))

    (_, end) = events_of(view)

    assert (end.type, end.key, end.at) == (kind, kind.value, at(5))
    assert end.data == {"state": state, "attempt": 2, "result": {"sum": 3}, "errors": [BRIEF]}


def test_an_end_never_shows_the_delivery_of_its_webhook() -> None:
    (end,) = [event for event in events_of(STORY) if event.type is EventType.COMPLETED]

    assert set(end.data) == {"state", "attempt", "result", "errors"}


@pytest.mark.parametrize("state", [state for state in PhaseState if state is not PhaseState.COMPLETED])
def test_a_phase_becomes_an_event_only_when_it_is_completed(state: PhaseState) -> None:
    assert types(events_of(JobView(job=job(), phases=[phase("download", state, end=at(5))]))) == ["enqueued"]


def test_a_completed_phase_has_its_result() -> None:
    (_, event) = events_of(JobView(job=job(), phases=[phase("download", PhaseState.COMPLETED, end=at(5))]))

    assert (event.at, event.data) == (at(5), {"phase": "download", "position": 0, "result": {"n": 1}})


def test_a_phase_that_is_completed_again_is_another_fact() -> None:
    once, again = (JobView(job=job(), phases=[phase("download", PhaseState.COMPLETED, end=at(n))]) for n in (5, 6))

    assert types(events_of(again, {event.key for event in events_of(once)})) == ["phase_completed"]


def test_each_progress_is_a_fact_of_its_own() -> None:
    items = {"total": 2, "in_progress": [], "completed": ["a"], "skipped": [], "failed": []}
    old, new = (
        JobView(job=job(progress=Progress(phase="p", percent=n, message="m", items=items, updated_at=at(n))))
        for n in (1, 2)
    )

    (event,) = events_of(new, {event.key for event in events_of(old)})

    assert (event.type, event.at) == (EventType.PROGRESS, at(2))
    assert event.data["percent"] == 2
    assert (event.data["phase"], event.data["message"], event.data["items"]) == ("p", "m", items)


def test_a_post_becomes_an_event_when_it_has_ended_and_again_when_it_has_ended_again() -> None:
    waiting, failed = JobView(job=job(), posts=[post("pending")]), JobView(job=job(), posts=[post("failed", end=at(5))])
    failed_again = JobView(job=job(), posts=[post("failed", end=at(7))])
    delivered = JobView(job=job(), posts=[post("delivered", end=at(9))])

    assert types(events_of(waiting)) == ["enqueued"]
    assert types(events_of(failed)) == ["enqueued", "webhook_failed"]
    assert types(events_of(failed_again, {event.key for event in events_of(failed)})) == ["webhook_failed"]
    (event,) = events_of(delivered, {event.key for event in events_of(failed)})
    assert (event.type, event.at, event.data["status"]) == (EventType.WEBHOOK_DELIVERED, at(9), 200)


def test_a_webhook_was_sent_when_every_post_was_delivered() -> None:
    delivered, failed = post("delivered", end=at(5)), post("failed", id=OTHER_POST, end=at(5))

    assert not JobView(job=job()).webhook_sent
    assert JobView(job=job(), posts=[delivered]).webhook_sent
    assert not JobView(job=job(), posts=[delivered, failed]).webhook_sent


def test_a_job_for_later_says_when() -> None:
    (now,), (later,) = events_of(JobView(job=job())), events_of(JobView(job=job(run_at=at(60))))

    assert (now.data, later.data) == ({}, {"run_at": at(60)})


def test_a_stale_mark_without_a_notification_is_no_event_yet() -> None:
    assert types(events_of(JobView(job=job(stale_at=at(90))))) == ["enqueued"]


def test_the_last_progress_of_a_phase_is_an_event_of_its_own_until_the_job_reports_the_same() -> None:
    last = Progress(percent=90, updated_at=at(3))
    ended = PhaseRecord(name="download", position=0, state=PhaseState.RUNNING, attempt=1, progress=last)
    later = Progress(percent=5, updated_at=at(4))

    def reported(progress: Progress | None) -> list[Any]:
        events = events_of(JobView(job=job(progress=progress), phases=[ended]))
        return [(event.at, event.data["percent"]) for event in events if event.type is EventType.PROGRESS]

    assert reported(later) == [(at(3), 90), (at(4), 5)]
    assert reported(ended.progress) == [(at(3), 90)]
    assert reported(None) == [(at(3), 90)]
