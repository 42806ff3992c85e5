"""`queues`, `workers`, `stats`, `pause`, `resume`, `schedules` and `doctor`, on both stores."""

import os
import socket
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import Project

from dutiful.client.client import Client
from dutiful.core.ids import from_parts
from dutiful.core.metrics.alert import Alert, AlertState
from dutiful.core.outcome import Failed
from dutiful.core.principal import Origin
from dutiful.core.review.audit import AuditEvent, AuditOutcome
from dutiful.core.review.state import ReviewAct
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.operator import Operator
from dutiful.store import Store
from dutiful.store.alerts import AlertChange
from dutiful.store.control import PauseScope
from dutiful.store.dead_letters import DeadLetterFilter
from dutiful.store.locks import LockMode
from dutiful.store.schedules import ScheduleRecord
from dutiful.store.workers import LaneRecord, WorkerRecord
from suite.builders import OOPS, enqueue_one, finish_one, start_one


@pytest.fixture
def project(tmp_path: Path, backend: str, store: Store, request: pytest.FixtureRequest) -> Project:
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    return Project(tmp_path, url).write_jobs()


def now() -> datetime:
    return datetime.now(UTC)


async def start_worker(store: Store, kinds: list[str], locks: LockMode | None = None, leads: bool = False) -> None:
    """A worker that is alive as long as this process is."""
    worker = WorkerRecord(
        id=uuid4(), name="w1", host=socket.gethostname(), pid=os.getpid(), started_at=now(), seen_at=now(),
        lanes={"general": LaneRecord(slots=5, queues=("default",), busy=1)}, kinds=kinds,
        locks=locks,
    )  # fmt: skip
    if leads:
        await store.leadership.survey(worker.id, timedelta(minutes=1))
    await store.workers.heartbeat(worker, timedelta(minutes=5))


async def test_the_state_is_shown_to_people_and_programs(project: Project, store: Store) -> None:
    await start_worker(store, ["greet"])
    await enqueue_one(store, queue="mail", now=now())
    await finish_one(store, Failed(OOPS, final=True), now=now())

    (queue,) = project.run("queues", "--json").json["queues"]
    (worker,) = project.run("workers", "--json").json["workers"]
    stats = project.run("stats", "--since", "10m", "--json").json

    assert (queue["queue"], queue["ready"], queue["paused"]) == ("mail", 1, False)
    assert (worker["name"], worker["alive"], worker["kinds"]) == ("w1", True, ["greet"])
    assert (stats["live"]["ready"], stats["finished"]["failed"]) == (1, 1)
    assert (stats["dead_letters"], stats["workers"]) == (1, 1)
    assert "mail" in project.run("queues").out
    assert "general 1/5: default" in project.run("workers").out
    assert "dead letters 1" in project.run("stats").out


async def test_a_pause_can_be_repeated_and_what_is_not_paused_cannot_be_resumed(project: Project, store: Store) -> None:
    await enqueue_one(store, now=now())

    paused = project.run("pause", "queue", "default", "--reason", "incident 12")
    again = project.run("pause", "queue", "default")

    assert (paused.code, paused.out, paused.err) == (0, "queue default is paused\n", "")
    assert "incident 12" in again.out
    (held,) = await store.control.pauses()
    assert (held.scope, held.name, held.reason) == (PauseScope.QUEUE, "default", "incident 12")
    assert held.by
    assert "check the spelling" in project.run("pause", "kind", "gret").err
    assert project.run("resume", "queue", "default").out == "queue default is resumed\n"
    nothing = project.run("resume", "queue", "default")
    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err == "dutiful: queue default was not paused; paused is: kind gret\n"


async def test_schedules_are_listed_disabled_and_enabled(project: Project, store: Store) -> None:
    assert "hourly" in project.run("schedules").err  # declared, and not stored yet
    await store.schedules.put(
        [
            ScheduleRecord(
                name="hourly",
                kind="greet",
                expression="0 * * * *",
                timezone="UTC",
                catch_up="one",
                job={"queue": "default", "payload": {"name": "Ada"}},
                next_at=now() + timedelta(hours=1),
            )
        ]
    )

    (listed,) = project.run("schedules", "--json").json["schedules"]
    assert (listed["name"], listed["enabled"], listed["last_job_id"]) == ("hourly", True, None)
    assert project.run("schedules", "disable", "hourly").code == 0
    assert "disabled" in project.run("schedules", "list").out
    assert project.run("schedules", "enable", "hourly").code == 0
    assert (await store.schedules.all())[0].enabled
    unknown = project.run("schedules", "disable", "daily")
    assert (unknown.code, "there are: hourly" in unknown.err) == (1, True)


async def test_a_schedule_that_the_code_no_longer_declares_is_removed(project: Project, store: Store) -> None:
    record = ScheduleRecord(
        name="forgotten",
        kind="greet",
        expression="0 * * * *",
        timezone="UTC",
        catch_up="one",
        job={"queue": "default", "payload": {"name": "Ada"}},
        next_at=now() + timedelta(hours=1),
    )
    await store.schedules.put([record])

    declared = project.run("schedules", "remove", "hourly")
    assert (declared.code, "disable it" in declared.err) == (2, True)
    assert project.run("schedules", "remove", "forgotten").out == "schedule forgotten is removed\n"
    assert await store.schedules.all() == []
    assert project.run("schedules", "remove", "forgotten").code == 1


async def test_doctor_is_content_with_a_healthy_system(project: Project, store: Store) -> None:
    await start_worker(store, ["greet"])
    await enqueue_one(store, now=now())

    report = project.run("doctor", "--json").json

    assert report["healthy"]
    assert report["facts"]["workers_alive"] == 1
    assert int(report["facts"]["schema_version"]) >= 1


async def test_doctor_names_each_problem_and_its_remedy(project: Project, store: Store) -> None:
    await start_worker(store, ["greet"])
    await enqueue_one(store, queue="mail", now=now())
    await enqueue_one(store, kind="unheard_of", now=now())
    await start_one(store, queue="slow", now=now() - timedelta(hours=1))

    answer = project.run("doctor")

    assert answer.code == 1
    problems = [line for line in answer.out.splitlines() if line.startswith("problem:")]
    assert len(problems) == 3
    for part in ("queue 'mail' has 1 ready job(s)", "kind 'unheard_of'", "1 running job(s) lost their worker"):
        assert part in answer.out
    assert answer.out.count("  → ") >= 3


@pytest.mark.req("L82")
async def test_doctor_reports_firing_alerts_as_a_problem_while_a_worker_evaluates_them(
    project: Project, store: Store
) -> None:
    fires = Alert(rule="errors", series="kind=mail", state=AlertState.FIRING, since=now(), summary="Mail fails")
    await store.alerts.change([AlertChange(None, fires)])
    stale = project.run("doctor")
    assert stale.code == 0 and "warning: alert 'errors' (kind=mail)" in stale.out
    assert "no worker evaluates alerts any more" in stale.out
    await store.alerts.note_check(timedelta(hours=1))
    watched = project.run("doctor")
    assert watched.code == 1 and "problem: alert 'errors' (kind=mail)" in watched.out
    assert "→ read docs/runbooks/high-error-rate.md" in watched.out


async def test_doctor_warns_of_what_waits_for_services_that_no_worker_runs(project: Project, store: Store) -> None:
    ada = Operator(Client(store, InProcessDelivery()), "ada")
    await finish_one(store, Failed(OOPS, final=True), now=now())
    await ada.bulk.start(ReviewAct.DISCARD, DeadLetterFilter())
    young = project.run("doctor")
    await store.audit.append([old_event()])
    old = project.run("doctor")

    assert "of 1, and no worker is alive to continue it" in young.out
    assert "wait for their seal" not in young.out
    assert "waited for their seal for 6m" in old.out


async def test_doctor_finds_events_that_a_worker_that_leads_does_not_seal(project: Project, store: Store) -> None:
    await store.audit.append([old_event()])
    await start_worker(store, ["greet"])
    assert "though a worker leads" not in project.run("doctor").out, "the sealer is not at fault"
    await start_worker(store, ["greet"], leads=True)

    answer = project.run("doctor")

    assert answer.code == 1
    [problem] = [line for line in answer.out.splitlines() if line.startswith("problem:")]
    assert "waited for their seal" in problem
    assert "though a worker leads" in problem
    assert "group worker" in answer.out


def old_event() -> AuditEvent:
    # Its id says when it was made: the oldest is sealed first.
    at = now() - timedelta(minutes=6)
    id_ = from_parts(int(at.timestamp() * 1000), bytes(10))
    return AuditEvent(
        id=id_, act=id_, at=at, principal="ada", origin=Origin.CLI, action="x", outcome=AuditOutcome.SUCCEEDED
    )


async def test_doctor_sees_workers_whose_locks_do_not_exclude_each_other(project: Project, store: Store) -> None:
    for mode in LockMode:
        await start_worker(store, ["greet"], mode)

    answer = project.run("doctor")

    assert answer.code == 1
    assert "problem: live workers keep named locks as rows (w1) and as sessions (w1)" in answer.out


def test_doctor_names_one_remedy_for_a_schema_of_another_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jobs.db"
    project = Project(tmp_path, f"sqlite:///{file}").write_jobs()
    assert project.call(monkeypatch, capsys, "migrate").code == 0
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("update dutiful_migration set checksum = 'other'")

    reported = project.call(monkeypatch, capsys, "doctor").out

    assert "→ install the release that made this database, or start with a new file" in reported
    assert "migrate`" not in reported and reported.count("install the release") == 1
    assert reported.endswith("1 finding\n")


def test_what_is_misspelt_is_reported_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}").write_jobs()
    for args, problem in (
        (["pause", "foo", "x"], "Invalid value for 'queue|kind|lane': 'foo' is not one of 'queue', 'kind', 'lane'."),
        (["jobs", "list", "--limit", "0"], "Invalid value for '--limit': it should be greater than or equal to 1"),
    ):
        answer = project.call(monkeypatch, capsys, *args)
        assert (answer.code, answer.err) == (2, f"dutiful: {problem}\n")


@pytest.mark.parametrize("backend", ["sqlite"])
async def test_doctor_reports_a_database_that_it_cannot_reach(project: Project, store: Store) -> None:
    answer = project.run("doctor", "--database-url", "postgresql://nobody@127.0.0.1:1/x")

    assert answer.code == 1
    assert "problem:" in answer.out
