"""The register of sports sites: its kinds at work, its lanes, its configuration, and what people do to its jobs."""

import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sports import SITES, Register, register, until

from dutiful import Context, Inject, JobHandle, PayloadInvalid, ReviewState, State, UnknownKind
from examples.sports_sites.config import Config
from examples.sports_sites.diversity import Cell, diversity, shannon
from examples.sports_sites.jobs import Jobs
from examples.sports_sites.places import SITE, analysis
from examples.sports_sites.service import sports_app
from examples.sports_sites.sites import Sites

FAST = {"email", "produce-reminders", "cleanup-jobs", "integration", "webhook"}
SLOW = {"analysis", "elevation"}
WELCOME: dict[str, Any] = {"to": "ada@club.example", "template": "welcome", "data": {"name": "Ada"}}
NEWS: dict[str, Any] = {"lipas-ids": [12345], "operation-type": "update", "initiated-by": "ada"}
ONLY = ["sqlite"]  # where the store makes no difference


@pytest.fixture
async def sports(app_url: str, tmp_path: Path) -> AsyncIterator[Register]:
    async with register(app_url, tmp_path) as made:
        yield made


# --- the kinds


@pytest.mark.req("L30", "L31", "L33", "L44", "L45", "L46", "L72")
async def test_each_type_finds_its_handler_and_does_its_work(sports: Register) -> None:
    sports.sites.remind(12346, "caretaker@club.example", datetime.now(UTC) - timedelta(days=1))
    sports.sites.remind(12347, "early@club.example", datetime.now(UTC) + timedelta(days=1))
    async with sports.working():
        await sports.jobs.enqueue("email", WELCOME)
        await sports.jobs.enqueue("produce-reminders")
        await sports.jobs.enqueue("cleanup-jobs", {"days-old": 7})
        await sports.jobs.enqueue("integration", {"lipas-id": 12345})
        await sports.jobs.enqueue("webhook", NEWS)
        for kind in ("analysis", "elevation"):
            await sports.jobs.enqueue(kind, {"lipas-id": 12345})
        await sports.quiet()
    jobs = await sports.app.jobs()
    assert {job.kind for job in jobs} == FAST | SLOW == set(sports.app.kinds)
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert {str(mail["To"]): str(mail["Subject"]) for mail in sports.services.delivered} == {
        "ada@club.example": "Welcome to the register",
        "caretaker@club.example": "Hill tracks needs a look",
    }
    assert list(sports.services.copies) == [12345] and len(sports.services.received) == 2
    site = sports.sites.get(12345)
    assert site.elevation is not None and site.population
    assert site.diversity is not None and 0 < site.diversity < math.log(len(SITES))


def test_diversity_is_shannons_index_weighed_by_who_lives_there() -> None:
    assert shannon([]) == shannon(["a", "a"]) == 0
    assert shannon(["a", "b"]) == pytest.approx(math.log(2))
    pool, tracks, _, courts = SITES
    here, beyond = Cell(pool.east, pool.north, 30), Cell(courts.east, courts.north, 10)
    empty, far = Cell(pool.east, pool.north, 0), Cell(pool.east + 5_000, pool.north, 99)
    found = diversity(pool, [here, beyond, empty, far], [pool, tracks, courts])
    assert (found.cells, found.population) == (2, 40)
    assert found.index == pytest.approx(math.log(2) * 30 / 40), "swimming and skiing here, volleyball alone there"


@pytest.mark.parametrize(
    ("kind", "payload", "field"),
    [
        ("email", {"to": "ada@club.example"}, "template"),
        ("email", {**WELCOME, "to": "ada"}, "to"),
        ("email", {**WELCOME, "template": "love-letter"}, "template"),
        ("analysis", {"lipas_id": 12345}, "lipas-id"),
        ("analysis", {"lipas-id": "12345"}, "lipas-id"),
        ("elevation", {"lipas-id": 12345, "metres": 3}, "metres"),
        ("integration", {}, "lipas-id"),
        ("webhook", {**NEWS, "operation-type": "burn"}, "operation-type"),
        ("webhook", {**NEWS, "lipas-ids": [1, "two"]}, "lipas-ids"),
        ("cleanup-jobs", {"days-old": "many"}, "days-old"),
        ("produce-reminders", {"lipas-id": 1}, "lipas-id"),
    ],
)
@pytest.mark.req("L32")
async def test_a_payload_that_does_not_fit_its_type_is_refused(
    tmp_path: Path, kind: str, payload: dict[str, Any], field: str
) -> None:
    async with sports_app(Config(folder=tmp_path), f"sqlite:///{tmp_path}/jobs.db") as app:
        assert field in [problem.field.partition("[")[0] for problem in app.validate(kind, payload)]
        with pytest.raises(PayloadInvalid, match=field):
            await Jobs(app).enqueue(kind, payload)
        assert len(await app.jobs()) == 0


@pytest.mark.parametrize("app_url", ONLY, indirect=True)
@pytest.mark.req("L32")
async def test_a_mail_needs_an_address_and_a_template_but_no_data(sports: Register) -> None:
    async with sports.working():
        job = await sports.jobs.enqueue("email", {"to": "ada@club.example", "template": "welcome"})
        await sports.becomes(job.id, State.COMPLETED)
    (mail,) = sports.services.delivered
    assert (mail["To"], mail["Subject"]) == ("ada@club.example", "Welcome to the register")


@pytest.mark.parametrize("app_url", ONLY, indirect=True)
@pytest.mark.req("L49")
async def test_a_mail_that_cannot_be_written_is_not_tried_again_nor_held_against_the_mail_server(
    sports: Register,
) -> None:
    async with sports.working():
        mail = {"to": "ada@club.example", "template": "site-changed", "data": {"site": "Pool\nBcc: eve@club.example"}}
        job = await sports.jobs.enqueue("email", mail)
        await sports.becomes(job.id, State.FAILED)
    assert (await sports.row(job.id))["attempts"] == 1
    (breaker,) = await sports.views.rows("select * from circuit_breakers where service_name = 'email-service'")
    assert (breaker["state"], breaker["failure_count"], sports.services.delivered) == ("closed", 0, [])


@pytest.mark.req("L13", "L24", "L38", "L47", "L48")
async def test_a_job_is_tried_three_times_or_as_often_as_was_asked_for(sports: Register) -> None:
    sports.services.fail("mail")
    app = sports.another_app(retry_base="1ms", retry_max="2ms", breaker_failures=100)
    async with app, sports.working(app):
        default = await Jobs(app).enqueue("email", WELCOME)
        once = await Jobs(app).enqueue("email", WELCOME, max_attempts=1)
        often = await Jobs(app).enqueue("email", WELCOME, max_attempts=5)
        for job in (default, once, often):
            await sports.becomes(job.id, State.FAILED)
    rows = [await sports.row(job.id) for job in (default, once, often)]
    assert [(row["status"], row["attempts"], row["max_attempts"]) for row in rows] == [
        ("dead", 3, 3), ("dead", 1, 1), ("dead", 5, 5),
    ]  # fmt: skip
    assert sports.services.called["mail"] == 9
    assert {letter.id for letter in await sports.jobs.dead_letters()} == {default.id, once.id, often.id}


@pytest.mark.parametrize("app_url", ONLY, indirect=True)
@pytest.mark.req("L44", "L99")
async def test_a_new_type_is_one_decorated_function(sports: Register) -> None:
    app = sports.another_app()
    with pytest.raises(UnknownKind, match="inspection"):
        await Jobs(app).enqueue("inspection", {"grade": 4})

    @app.job(queue="fast")
    async def inspection(ctx: Context, grade: int, db: Sites = Inject("db")) -> str:
        return f"{ctx.kind} {grade} of {len(db.all())} at attempt {ctx.attempt}"

    async with app, sports.working(app):
        with pytest.raises(PayloadInvalid, match="grade"):
            await Jobs(app).enqueue("inspection", {"grade": "good"})
        job = await Jobs(app).enqueue("inspection", {"grade": 4})
        assert await job.result("30s") == "inspection 4 of 4 at attempt 1"


@pytest.mark.parametrize("app_url", ONLY, indirect=True)
@pytest.mark.req("L71")
async def test_the_scheduler_in_the_worker_makes_the_periodic_jobs(sports: Register) -> None:
    sports.sites.remind(12346, "caretaker@club.example", datetime.now(UTC) - timedelta(days=1))
    often = Config(**{**vars(sports.config), "reminders_every": "1s"})
    app = sports_app(often, sports.database_url)
    assert {spec.kind.name for spec in app.schedules.values()} == {"produce-reminders", "cleanup-jobs"}

    async def produced() -> bool:
        done = await sports.app.jobs(kind="produce-reminders", state=State.COMPLETED)
        return len(done) >= 2 and len(sports.services.delivered) == 1

    async with sports.working(app):
        await until(produced)
    assert len(sports.services.delivered) == 1, "one mail, however often the reminders are produced"


@pytest.mark.parametrize(("kind", "payload"), [("integration", {"lipas-id": 12345}), ("produce-reminders", {})])
@pytest.mark.req("L37")
async def test_a_job_that_is_run_again_after_the_one_it_enqueued_has_ended_notifies_once(
    sports: Register, monkeypatch: pytest.MonkeyPatch, kind: str, payload: dict[str, Any]
) -> None:
    sports.sites.remind(12346, "caretaker@club.example", datetime.now(UTC) - timedelta(days=1))
    ask, asked = Jobs.enqueue, []

    async def broken(self: Jobs, *args: Any, **options: Any) -> JobHandle[Any]:
        """Ends the attempt between this line and the next, the first time when what was asked for is done."""
        job = await ask(self, *args, **options)
        asked.append(job)
        await job.result("30s")
        if len(asked) == 1:
            raise ConnectionError("the power goes")
        return job

    parent = await sports.jobs.enqueue(kind, payload)
    monkeypatch.setattr(Jobs, "enqueue", broken)
    app = sports.another_app(retry_base="10ms")
    async with app, sports.working(app):
        await sports.becomes(parent.id, State.COMPLETED)
        await sports.quiet()
    assert [job.created for job in asked] == [True, False], "the second attempt asked again, and found the first one's"
    assert len(sports.services.received) + len(sports.services.delivered) == 1


@pytest.mark.parametrize("app_url", ONLY, indirect=True)
@pytest.mark.req("L30")
async def test_a_cleanup_removes_old_completed_jobs_and_leaves_dead_letters(sports: Register) -> None:
    sports.services.closed.add("nobody@club.example")
    async with sports.working():
        dead = await sports.jobs.enqueue("email", {**WELCOME, "to": "nobody@club.example"})
        await sports.jobs.enqueue("email", WELCOME)
        await sports.quiet()
        cleanup = await sports.jobs.enqueue("cleanup-jobs", {"days-old": 0})
        assert await cleanup.result("30s") == {"removed": 2}
    assert [job.kind for job in await sports.app.jobs()] == ["cleanup-jobs"]
    assert (await sports.jobs.dead_letter(dead.id)).payload["to"] == "nobody@club.example"


# --- lanes and order


@pytest.mark.req("L2", "L3", "L4", "L5", "L79")
async def test_analyses_fill_their_lane_and_mail_goes_out_all_the_same(sports: Register) -> None:
    assert {name for name, kind in sports.app.kinds.items() if kind.queue == "fast"} == FAST
    sports.services.hold("grid")
    analyses = [await sports.jobs.enqueue("analysis", {"lipas-id": 12345}) for _ in range(8)]

    async def filled() -> bool:
        return sports.services.called["grid"] == 5  # the general lane's slots

    async with sports.working():
        await until(filled)
        mails = [await sports.jobs.enqueue("email", WELCOME) for _ in range(4)]
        for mail in mails:
            await mail.result("60s")
        states = [(await sports.record(job.id)).state for job in analyses]
        assert State.COMPLETED not in states and sports.services.called["grid"] == 5
        sports.services.release("grid")
        await sports.quiet()


@pytest.mark.parametrize("app_url", ONLY, indirect=True)
@pytest.mark.req("L34", "L35", "L67")
async def test_lower_priorities_go_first_and_what_is_not_due_waits(sports: Register) -> None:
    for to, priority in {"third": 200, "first": 10, "second": 100}.items():
        await sports.jobs.enqueue("email", {**WELCOME, "to": f"{to}@club.example"}, priority=priority)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    later = await sports.jobs.enqueue("email", WELCOME, priority=0, run_at=tomorrow)
    other = await sports.jobs.enqueue("produce-reminders")

    async def sent() -> bool:
        return len(sports.services.delivered) == 3

    async with sports.working(sports.another_app(lanes="only=1:*", batch=1, kinds="email")):
        await until(sent)
    assert [str(mail["To"]).partition("@")[0] for mail in sports.services.delivered] == ["first", "second", "third"]
    assert (await sports.record(later.id)).state is State.SCHEDULED
    assert (await sports.record(other.id)).state is State.READY, "this worker takes a subset of the kinds"


# --- limits


@pytest.mark.parametrize("app_url", ONLY, indirect=True)
@pytest.mark.req("L50", "L59")
async def test_every_attempt_has_a_limit_and_one_that_reaches_it_is_ended(sports: Register) -> None:
    app = sports.another_app(profile="production")
    limits = {name: kind.timeout for name, kind in app.kinds.items()}
    assert limits == {
        "analysis": timedelta(minutes=10), "elevation": timedelta(minutes=5),
        **dict.fromkeys(FAST, timedelta(minutes=2)),
    }  # fmt: skip
    sports.services.hold("grid")
    hurried = sports.another_app(retry_base="1h", retry_max="2h")
    hurried.job(name="hurried-analysis", timeout="200ms", rules=SITE)(analysis)
    async with hurried, sports.working(hurried):
        job = await Jobs(hurried).enqueue("hurried-analysis", {"lipas-id": 12345})
        await sports.becomes(job.id, State.SCHEDULED)
    row = await sports.row(job.id)
    assert (row["status"], row["attempts"]) == ("failed", 1) and "200ms" in row["error_message"]
    sports.services.release("grid")


@pytest.mark.parametrize("app_url", ONLY, indirect=True)
@pytest.mark.parametrize(
    ("kind", "payload", "service", "breaker"),
    [
        ("email", WELCOME, "mail", "email-service"),
        ("elevation", {"lipas-id": 12345}, "elevation", "elevation-service"),
        ("integration", {"lipas-id": 12345}, "copy", "partners"),
    ],
)
@pytest.mark.req("L49", "L56", "L57", "L90")
async def test_a_failing_service_is_not_called_until_its_breaker_is_reset(
    sports: Register, kind: str, payload: dict[str, Any], service: str, breaker: str
) -> None:
    sports.services.fail(service)
    operator = await sports.app.operator("ada")
    app = sports.another_app(breaker_failures=2, breaker_open_for="1h", retry_base="1h", retry_max="2h")
    async with app, sports.working(app):
        for _ in range(2):
            job = await sports.jobs.enqueue(kind, payload)
            assert (await sports.becomes(job.id, State.SCHEDULED)).attempt == 1
        calls = sports.services.called[service]
        blocked = await sports.jobs.enqueue(kind, payload)
        assert (await sports.becomes(blocked.id, State.BLOCKED)).attempt == 0, "it waits, and no attempt is counted"
        assert sports.services.called[service] == calls == 2
        sports.services.repair(service)
        await operator.breakers.reset(breaker, "it is well again")
        await sports.becomes(blocked.id, State.COMPLETED)
        await until(lambda: _quiet_but(sports, 2))
    assert sports.services.called[service] == 3


async def _quiet_but(sports: Register, waiting: int) -> bool:
    """Only those wait that are to be tried again later."""
    live = (await (await sports.app.operator()).queues.stats(timedelta(hours=1))).live
    return live["scheduled"] == waiting == sum(live.values())


# --- what people do


@pytest.mark.req("L26", "L41", "L42", "L60", "L86", "L87", "L88", "L89", "L102")
async def test_a_job_is_failed_by_hand_reviewed_acknowledged_and_requeued(sports: Register) -> None:
    sports.services.hold("copy")
    one = await sports.jobs.enqueue("integration", {"lipas-id": 12345}, correlation_id="user-action-123")
    two = await sports.jobs.enqueue("webhook", NEWS, run_at=datetime.now(UTC) + timedelta(days=1))
    async with sports.working():
        await sports.becomes(one.id, State.RUNNING)
        went = await sports.jobs.fail(one.id, "External service unavailable", will_retry=True)
        assert went is State.SCHEDULED and "unavailable" in (await sports.row(one.id))["last_error"]
        assert await sports.jobs.fail(one.id, "It will not come back", will_retry=False) is State.FAILED
        sports.services.release("copy")
    await sports.jobs.move_to_dead_letter(two.id, "Permanent validation error")
    assert [letter.id for letter in await sports.jobs.dead_letters()] == [two.id, one.id], "the newest first"
    letter = await sports.jobs.dead_letter(one.id)
    assert "It will not come back" in (letter.message or "") and letter.history[0]["error"] is not None

    await sports.jobs.acknowledge(one.id, "the partner has answered")
    assert [letter.id for letter in await sports.jobs.dead_letters()] == [two.id]
    row = await sports.row(one.id, "dead_letter_jobs")
    assert (bool(row["acknowledged"]), row["acknowledged_by"]) == (True, "ada") and row["acknowledged_at"] is not None
    again = await sports.jobs.requeue(one.id)
    assert (again.type, again.payload, again.correlation_id) == ("integration", {"lipas-id": 12345}, "user-action-123")
    async with sports.working():
        await sports.becomes(again.id, State.COMPLETED)

        async def resolved() -> bool:
            return (await sports.jobs.dead_letter(one.id)).status is ReviewState.RESOLVED

        await until(resolved)
    assert (await sports.jobs.dead_letter(one.id)).acknowledged_by == "ada"
