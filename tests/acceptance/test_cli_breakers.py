"""`breakers`: looked at, closed and opened by people, on both stores."""

import getpass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import Answer, Project

from dutiful.client.client import Client
from dutiful.core.breaker.state import BreakerPolicy, BreakerState, CallResult, Entry
from dutiful.core.errors import NotAllowed
from dutiful.core.job import ClaimToken
from dutiful.core.outcome import Snoozed
from dutiful.core.principal import Principal
from dutiful.core.states import State
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.observe.measure import measure
from dutiful.operator import Operator
from dutiful.operator.explain import Why
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from suite.builders import OOPS, enqueue_one, settle, start_one
from suite.workers import serve

MAIL, KIND = "email-service", "work"
TWO = BreakerPolicy(failures=2, open_for=timedelta(minutes=30))


@pytest.fixture
def project(tmp_path: Path, backend: str, store: Store, request: pytest.FixtureRequest) -> Project:
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    return Project(tmp_path, url).write_jobs()


@pytest.fixture
def operator(store: Store) -> Operator:
    return Operator(Client(store, InProcessDelivery()), "ada")


async def trip(store: Store) -> None:
    """Two calls that fail, by a job of its own each."""
    for _ in range(2):
        held = await start_one(store, now=datetime.now(UTC))
        entry = await store.breakers.enter(MAIL, TWO, ClaimToken(held.job_id, held.claim_id))
        assert isinstance(entry, Entry)
        await store.breakers.exit(MAIL, TWO, ClaimToken(held.job_id, held.claim_id), entry, CallResult.BAD)
        await settle(store, held, Snoozed(timedelta(hours=1)))


@pytest.mark.req("L75", "L85", "L90", "L91")
async def test_a_breaker_is_looked_at_closed_and_opened(project: Project, store: Store) -> None:
    await trip(store)
    await store.breakers.put_kinds({KIND: MAIL}, {MAIL: TWO})
    await enqueue_one(store, kind=KIND, now=datetime.now(UTC))

    (found,) = project.run("breakers", "--not-closed", "--json").json["breakers"]
    assert (found["name"], found["state"], found["failures"], found["trips"]) == (MAIL, "open", 2, 1)
    assert (found["failures_allowed"], found["open_seconds"], found["kinds"]) == (2, 1800.0, [KIND])
    assert found["waiting"] == 1
    assert found["last_failure_at"]

    assert project.run("breakers", "reset", MAIL, "--reason", "it is back").out == f"breaker {MAIL} is closed\n"
    (closed,) = await store.breakers.all()
    assert (closed.breaker.state, closed.breaker.failures) == (BreakerState.CLOSED, 0)
    before = datetime.now(UTC)
    opened = project.run("breakers", "open", MAIL, "--for", "2h", "--reason", "moving it")
    assert (opened.code, opened.err) == (0, "")
    assert opened.out.startswith(f"breaker {MAIL} is open until ")
    (held,) = await store.breakers.all()
    assert held.breaker.state is BreakerState.OPEN
    assert held.breaker.opened_at is not None and held.breaker.opened_at >= before
    assert held.breaker.open_until == held.breaker.opened_at + timedelta(hours=2)

    events = await store.audit.search(AuditFilter(target=MAIL))
    reported = [(event.action, event.outcome, event.principal, event.reason) for event in reversed(events)]
    assert reported == [
        (action, outcome, getpass.getuser(), reason)
        for action, reason in (("breaker.reset", "it is back"), ("breaker.open", "moving it"))
        for outcome in ("requested", "succeeded")
    ]


def test_the_table_is_for_people_and_what_is_misspelt_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}").write_jobs()

    def run(*args: str) -> Answer:
        return project.call(monkeypatch, capsys, *args)

    run("migrate")
    unknown = run("breakers", "reset", "mial")
    assert (unknown.code, "there is no breaker 'mial'; there are: none" in unknown.err) == (1, True)
    for wrong in (["open", "mail\nserver"], ["open", MAIL, "--for", "soon"], ["open", MAIL, "--for", "0s"]):
        answer = run("breakers", *wrong)
        assert (answer.code, answer.out) == (2, ""), wrong
        assert len(answer.err.splitlines()) == 1, answer.err
    assert run("breakers").out == "no breakers\n"

    misspelt = run("breakers", "open", MAIL, "--for", "30d")
    assert (misspelt.code, f"there is no breaker '{MAIL}'" in misspelt.err) == (2, True)
    assert misspelt.err.endswith("or create it with --new\n")
    assert run("breakers").out == "no breakers\n"
    assert run("breakers", "open", MAIL, "--for", "30d", "--new").code == 0
    table = run("breakers", "--not-closed").out
    assert all(part in table for part in (MAIL, "open", "0 of 5", " UTC (in ")), table
    run("breakers", "reset", MAIL)
    assert run("breakers", "list", "--not-closed").out == "no breaker is open or half-open\n"


async def test_why_names_the_breaker_that_a_job_waits_for(store: Store, operator: Operator) -> None:
    await store.breakers.put_kinds({KIND: MAIL})
    await operator.breakers.open(MAIL, timedelta(minutes=30), "moving it", new=True)
    job_id = await enqueue_one(store, kind=KIND, now=datetime.now(UTC))

    why = await operator.jobs.explain(job_id)
    assert why.code is Why.BREAKER
    assert f"waits for the breaker {MAIL!r}, which is open until" in why.sentence
    assert why.remedy is not None and f"dutiful breakers reset {MAIL}" in why.remedy

    await operator.breakers.open(MAIL, timedelta(milliseconds=10))
    later = datetime.now(UTC) + timedelta(seconds=1)
    held = await start_one(store, kind="other", now=later)
    await store.breakers.enter(MAIL, TWO, ClaimToken(held.job_id, held.claim_id), now=later)
    assert "half-open" in (await operator.jobs.explain(job_id)).sentence


async def test_a_job_that_was_rejected_inside_its_handler_is_counted_explained_and_made_due(
    store: Store, operator: Operator
) -> None:
    await store.breakers.open(MAIL, timedelta(minutes=30))
    held = await start_one(store, tenant="acme", now=datetime.now(UTC))
    await settle(store, held, Snoozed(timedelta(0), {**OOPS, "breaker": MAIL}), now=datetime.now(UTC))

    (found,) = await operator.breakers.all()
    assert found.waiting == 1
    (open_,) = [one for one in await measure(store) if one.metric == "breaker_open"]
    assert (open_.value, open_.labels) == (1, {"breaker": MAIL})
    why = await operator.jobs.explain(held.job_id)
    assert why.code is Why.BREAKER
    assert f"waits for the breaker {MAIL!r}, which is open until" in why.sentence
    assert why.remedy is not None and f"dutiful breakers reset {MAIL}" in why.remedy
    theirs = await Operator(Client(store, InProcessDelivery()), Principal(name="eve", tenant="acme")).jobs.explain(
        held.job_id
    )
    assert (theirs.code, theirs.sentence) == (Why.BREAKER, "waits because a service that it calls is failing")

    retried = await operator.jobs.retry(held.job_id, "see whether it is back")

    assert (retried.job_id, retried.state, retried.made) == (held.job_id, State.READY, False)


async def test_why_does_not_promise_a_probe_when_no_worker_serves_the_jobs(store: Store, operator: Operator) -> None:
    await store.breakers.put_kinds({KIND: MAIL})
    await store.breakers.open(MAIL, timedelta(seconds=1), now=datetime.now(UTC) - timedelta(minutes=1))
    job_id = await enqueue_one(store, kind=KIND, now=datetime.now(UTC))
    assert "released in turn" in (await operator.jobs.explain(job_id)).sentence
    await serve(store, [KIND], datetime.now(UTC), fast=["elsewhere"])
    assert (await store.promotion.sweep(10)).moved == 0

    assert (await operator.jobs.explain(job_id)).code is Why.QUEUE_UNSERVED
    await serve(store, [KIND], datetime.now(UTC), fast=["default"])
    assert "released in turn" in (await operator.jobs.explain(job_id)).sentence


async def test_one_that_is_opened_before_any_worker_has_its_declared_policy(store: Store) -> None:
    operator = Operator(Client(store, InProcessDelivery()), "ada", breaker_policies={MAIL: TWO})

    opened = await operator.breakers.open(MAIL)

    assert opened.opened_at is not None
    assert (opened.policy, opened.open_until) == (TWO, opened.opened_at + TWO.open_for)


async def test_breakers_are_closed_to_a_principal_of_one_tenant(store: Store) -> None:
    client = Client(store, InProcessDelivery())
    theirs = Operator(client, Principal(name="eve", tenant="acme"))
    for attempt in (theirs.breakers.all(), theirs.breakers.reset(MAIL), theirs.breakers.open(MAIL)):
        with pytest.raises(NotAllowed):
            await attempt
    assert await store.breakers.all() == []

    await store.breakers.put_kinds({KIND: MAIL})
    await store.breakers.open(MAIL, timedelta(minutes=30))
    job_id = await enqueue_one(store, kind=KIND, tenant="acme", now=datetime.now(UTC))
    why = await theirs.jobs.explain(job_id)
    assert (why.code, why.sentence) == (Why.BREAKER, "waits because a service that its kind needs is failing")
