"""`jobs`: list, show, cancel, fail and retry, on both stores."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import Project
from uuid_utils.compat import uuid7

from dutiful.core import ids
from dutiful.core.ids import from_parts
from dutiful.core.job import Unique
from dutiful.core.outcome import Failed
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.stores.listing import SEARCHED
from suite.builders import (
    OOPS,
    enqueue_one,
    finish_one,
    new_id,
    new_job,
    settle,
    start_one,
    state,
)


@pytest.fixture
def project(tmp_path: Path, backend: str, store: Store, request: pytest.FixtureRequest) -> Project:
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    return Project(tmp_path, url).write_jobs()


def now() -> datetime:
    return datetime.now(UTC)


async def test_jobs_are_listed_by_filter_and_page_by_page(project: Project, store: Store) -> None:
    made = [await enqueue_one(store, tenant="acme", correlation_id="c", now=now()) for _ in range(3)]
    await enqueue_one(store, kind="other", queue="fast", now=now())

    mine = ("--kind", "greet", "--queue", "default", "--tenant", "acme", "--correlation-id", "c", "--state", "ready")
    first = project.run("jobs", "list", *mine, "--limit", "2", "--json").json
    second = project.run("jobs", "list", *mine, "--limit", "2", "--before", first["next_before"], "--json").json

    assert [job["uuid"] for job in first["jobs"] + second["jobs"]] == [str(job_id) for job_id in reversed(made)]
    assert second["next_before"] is None
    table = project.run("jobs", "list")
    assert len(table.out.splitlines()) == 5
    assert ids.public(made[0]) in table.out
    assert "\x1b" not in table.out
    assert "acme" in table.out
    brief, whole = first["jobs"][0], project.run("jobs", "list", "--limit", "1", "--json", "--details").json["jobs"][0]
    assert not {"payload", "result", "subject"} & brief.keys(), "a list costs the same however large those are"
    assert whole["payload"] == {}
    assert "tenant" not in project.run("jobs", "list", "--kind", "other").out, "a column for nothing"


@pytest.mark.req("W51")
async def test_jobs_are_searched_by_time_error_subject_and_text(project: Project, store: Store) -> None:
    error = OOPS | {"message": "gateway 50% down", "class": "transient"}
    old = from_parts(int(now().timestamp() * 1000) - 7_200_000, bytes(10))
    about = '{"order": 7, "shop": "berlin"}'
    await finish_one(store, Failed(error, final=True), now=now(), id=old, subject=about)
    await enqueue_one(store, id=uuid7(), payload='{"name": "50 down"}', now=now())

    error_and_text = ("--error-class", "transient", "--text", "50% DOWN")
    mine = ("--subject", "order=7", "--subject", "shop=berlin", "--since", "3h", "--until", "1h", *error_and_text)
    assert [job["uuid"] for job in project.run("jobs", "list", *mine, "--json").json["jobs"]] == [str(old)]


async def test_a_job_that_waits_for_its_retry_is_listed_with_its_last_error(project: Project, store: Store) -> None:
    error = OOPS | {"message": "gateway down " + "x" * 300, "class": "transient"}
    failed = await finish_one(store, Failed(error | {"message": "no use"}, final=True), now=now(), queue="mail")
    waits = await start_one(store, now=now())
    await settle(store, waits, Failed(error), now=now())
    await enqueue_one(store, kind="other", now=now())

    table = project.run("jobs", "list").out
    found = project.run("jobs", "list", "--error-class", "transient", "--json").json["jobs"]

    line = next(line for line in table.splitlines() if ids.public(waits.job_id) in line)
    assert "transient" in line and "ValueError: gateway down xxx" in line
    assert "x" * 201 not in table, "a long message is cut"
    assert "ValueError: no use" in table
    assert [job["uuid"] for job in found] == [str(waits.job_id), str(failed)]
    assert [job["last_error"] for job in found] == [error, None]
    assert "error" not in project.run("jobs", "list", "--kind", "other").out, "a column for nothing"


@pytest.mark.parametrize("backend", ["sqlite"])
@pytest.mark.parametrize(
    ("option", "value", "phrase"),
    [
        ("--since", "yesterday", "length of time"),
        ("--error-class", "bad", "rate_limited"),
        ("--subject", "x", "order=17"),
    ],
)
async def test_a_filter_that_cannot_be_read_is_refused(project: Project, option: str, value: str, phrase: str) -> None:
    refused = project.run("jobs", "list", option, value)

    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert option in refused.err and phrase in refused.err


@pytest.mark.parametrize("backend", ["sqlite"])
async def test_a_search_that_is_not_over_says_how_to_go_on(project: Project, store: Store) -> None:
    rare = await enqueue_one(store, payload='{"name": "Ada"}', now=now())
    await store.jobs.insert([new_job() for _ in range(SEARCHED + 10)])

    first = project.run("jobs", "list", "--text", "ada")
    assert "no jobs so far" in first.out + first.err
    assert "searched back to 2024-01-01 12:00:00 UTC" in first.err
    cursor = first.err.split("--before ")[1].split()[0]

    assert ids.public(rare) in project.run("jobs", "list", "--text", "ada", "--before", cursor).out


async def test_a_job_is_shown_with_all_its_attempts(project: Project, store: Store) -> None:
    error = OOPS | {"message": "no\x1b[2J way", "traceback": "Traceback …\n  the line"}
    need = await enqueue_one(store, now=now())
    claimed = await start_one(store, queue="mail", payload='{"name": "[bold]Ada"}', tenant="acme", now=now())
    await settle(store, claimed, Failed(error), now=now() + timedelta(hours=1))  # so that its retry stays away

    shown = project.run("jobs", "show", ids.public(claimed.job_id))
    page = project.run("jobs", "show", str(claimed.job_id), "--json").json

    for part in (str(claimed.job_id), "scheduled", "acme", "[bold]Ada", "waits to be retried", "ValueError: no"):
        assert part in shown.out
    assert "\x1b" not in shown.out
    assert "the line" not in shown.out
    assert "the line" in project.run("jobs", "show", str(claimed.job_id), "--full").out
    assert page["why"]["code"] == "retry"
    assert [(a["attempt"], a["outcome"]) for a in page["attempts"]] == [(1, "failed")]

    dependent = await enqueue_one(store, depends_on=(need,), now=now())
    page = project.run("jobs", "show", str(dependent), "--json").json
    assert page["depends_on"] == [{"id": ids.public(need), "uuid": str(need), "kind": "greet", "state": "ready"}]


async def test_jobs_are_cancelled_with_a_reason(project: Project, store: Store) -> None:
    waiting, done = await enqueue_one(store, queue="mail", now=now()), await finish_one(store, now=now())
    running = (await start_one(store, now=now())).job_id
    unknown = new_id()

    answer = project.run("jobs", "cancel", *map(str, (waiting, running, done, unknown)), "--reason", "by hand")

    assert answer.code == 1  # one was not found
    lines = answer.out.splitlines()
    assert [line.split("  ")[1].split(":")[0] for line in lines] == [
        "cancelled", "running", "had ended before", "not found"
    ]  # fmt: skip
    record = await store.queries.job(waiting)
    assert record is not None
    assert record.errors
    assert (record.state, record.errors[0]["message"]) == (State.CANCELLED, "by hand")


async def test_a_finished_job_is_retried_as_a_new_one(project: Project, store: Store) -> None:
    fields = {"queue": "mail", "priority": 7, "tenant": "acme", "correlation_id": "c", "subject": '{"order": 1}'}
    old = await finish_one(store, Failed(OOPS, final=True), payload='{"name": "Ada"}', now=now(), **fields)

    first, second = project.run("jobs", "retry", str(old)), project.run("jobs", "retry", ids.public(old))

    assert first.code == 0, first.err
    record = await store.queries.job(ids.parse(first.out.strip()))
    assert record is not None
    assert (record.retry_of, record.state, record.kind) == (old, State.READY, "greet")
    assert (record.queue, record.priority, record.tenant, record.correlation_id) == ("mail", 7, "acme", "c")
    assert (record.payload, record.subject) == ({"name": "Ada"}, {"order": 1})
    assert await state(store, old) is State.FAILED
    # While that one lives, a second click makes no third job.
    assert second.out == first.out
    assert await store.queries.check_places() == []


@pytest.mark.req("W18")
async def test_a_retry_is_refused_with_the_job_that_holds_its_key(project: Project, store: Store) -> None:
    old = await finish_one(store, unique=Unique("k"), now=now())
    holder = await enqueue_one(store, unique=Unique("k"), now=now())

    refused = project.run("jobs", "retry", str(old))

    assert (refused.code, refused.out) == (1, "")
    assert ids.public(holder) in refused.err and "'k'" in refused.err


async def test_a_waiting_retry_is_made_due_and_a_live_job_is_left_alone(project: Project, store: Store) -> None:
    claimed = await start_one(store, now=now())
    refused = project.run("jobs", "retry", str(claimed.job_id))
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "running already" in refused.err
    await settle(store, claimed, Failed(OOPS), now=now())

    expedited = project.run("jobs", "retry", str(claimed.job_id))

    assert expedited.out.strip() == ids.public(claimed.job_id)
    assert await state(store, claimed.job_id) is State.READY
    assert "ready already" in project.run("jobs", "retry", str(claimed.job_id)).err


@pytest.mark.req("L41", "L42")
async def test_a_job_is_failed_by_hand_with_or_without_a_retry(project: Project, store: Store) -> None:
    running, waiting = (await start_one(store, now=now())).job_id, await enqueue_one(store, now=now())

    tried = project.run("jobs", "fail", str(running), "--retry", "--reason", "it hangs")
    later = project.run("jobs", "fail", ids.public(waiting), "--retry", "--reason", "not there yet")
    dead = project.run("jobs", "fail", ids.public(waiting), "--reason", "the file is corrupt")
    again = project.run("jobs", "fail", str(waiting))

    assert (tried.code, tried.out) == (0, f"{ids.public(running)}  scheduled\n"), tried.err
    assert (later.code, later.out) == (0, f"{ids.public(waiting)}  scheduled\n"), later.err
    assert (dead.code, dead.out) == (0, f"{ids.public(waiting)}  failed\n"), dead.err
    assert (again.code, "has ended" in again.err) == (1, True)
    assert [await state(store, job_id) for job_id in (running, waiting)] == [State.SCHEDULED, State.FAILED]
    assert "the file is corrupt" in project.run("dead-letters", "show", str(waiting)).out


@pytest.mark.parametrize("backend", ["sqlite"])
async def test_ids_that_are_wrong_and_ids_that_are_unknown_differ(project: Project, store: Store) -> None:
    malformed = project.run("jobs", "show", "01JCPZ5-nonsense")
    unknown = project.run("jobs", "show", ids.public(new_id()))

    assert (malformed.code, malformed.err.count("\n")) == (2, 1)
    assert (unknown.code, unknown.err.count("\n")) == (1, 1)
    assert "there is no job" in unknown.err


async def test_finished_jobs_are_deleted_on_demand(project: Project, store: Store) -> None:
    await finish_one(store, now=now() - timedelta(days=3))
    young = await finish_one(store, now=now())

    assert project.run("jobs", "delete-finished", "--older-than", "2d").out == "1 job deleted\n"
    assert project.run("jobs", "delete-finished", "--older-than", "2d").out == "0 jobs deleted\n"

    assert await store.queries.job(young) is not None
    wrong = project.run("jobs", "delete-finished", "--older-than", "soon")
    assert wrong.code == 2 and "--older-than" in wrong.err
    assert project.run("jobs", "delete-finished").code == 2, "all of them is never meant"
