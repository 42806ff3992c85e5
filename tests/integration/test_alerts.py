"""Alerts through the real service: from rows to webhooks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from operating import of_acme, operator
from receivers import SECRET, Receiver, receiving
from running_workers import eventually, working

from dutiful import Dutiful, UsageError
from dutiful.core.errors import NotAllowed
from dutiful.core.metrics.alert import Alert, AlertRule, AlertState
from dutiful.core.metrics.catalogue import Sample
from dutiful.core.outcome import Failed
from dutiful.declare.alert import BUILT_IN, read_alert
from dutiful.maintenance.alerts import KEEP, AlertChecker
from dutiful.observe.measure import measure
from dutiful.store import Store
from dutiful.store.alerts import AlertChange
from dutiful.store.claims import QueueLevel
from dutiful.store.metrics import AttemptStats
from dutiful.store.webhooks import WebhookPost
from dutiful.store.workers import LaneRecord, WorkerRecord
from suite.builders import (
    ADA,
    KIND,
    OOPS,
    claim,
    enqueue,
    enqueue_one,
    new_job,
    settle,
    start_one,
)
from suite.webhooks import webhook

OK, PENDING, FIRING = AlertState.OK, AlertState.PENDING, AlertState.FIRING
MINUTE = timedelta(minutes=1)
HOUR = 60 * MINUTE  # the declared interval, where a test checks only when something is to change
RULE = AlertRule(name="deep", metric="pending_total", above=5, hold=5 * MINUTE, summary="too deep")


@pytest.fixture
def now() -> datetime:
    """Real time, for what is stored goes by it; tests move on from here."""
    return datetime.now(UTC)


class Watch:
    """All five built-in rules on what the store really holds."""

    def __init__(self, store: Store) -> None:
        self.service = AlertChecker(store.alerts, BUILT_IN, lambda now: measure(store, now=now), HOUR)
        self.store = store

    async def states(self, now: datetime) -> dict[str, AlertState]:
        """By "rule series", after a check at this time."""
        await self.service.check(now)
        return {f"{alert.rule} {alert.series}".strip(): alert.state for alert in await self.store.alerts.all()}


@pytest.fixture
async def watch(store: Store) -> Watch:
    await store.webhooks.put([webhook("pager", alerts=True, states=[])])
    return Watch(store)


async def events(store: Store) -> list[str]:
    """What the pager has received, the oldest first."""
    return [
        f"{post.event} {post.data['rule']} {post.data['series']}".strip()
        for post in (await store.webhooks.posts())[::-1]
    ]


@pytest.mark.req("L81")
async def test_more_than_500_jobs_that_wait_for_5_minutes_fire_until_they_are_fewer(
    watch: Watch, now: datetime
) -> None:
    await enqueue(watch.store, *(new_job() for _ in range(500)), now=now)
    assert await watch.states(now) == {}
    await enqueue_one(watch.store, now=now)

    assert await watch.states(now) == {"backlog": PENDING}
    assert await watch.states(now + 4.9 * MINUTE) == {"backlog": PENDING}
    assert await watch.states(now + 5 * MINUTE) == {"backlog": FIRING}
    assert await events(watch.store) == ["alert.firing backlog"]

    await claim(watch.store, limit=100, now=now)
    assert await watch.states(now + 6 * MINUTE) == {"backlog": FIRING}  # 401 are not few enough
    await claim(watch.store, limit=1, now=now)
    assert await watch.states(now + 6 * MINUTE) == {"backlog": OK}
    assert await events(watch.store) == ["alert.firing backlog", "alert.cleared backlog"]


@pytest.mark.req("L82")
async def test_a_kind_that_fails_more_than_1_in_10_fires_and_no_other_does(watch: Watch, now: datetime) -> None:
    def stats(kind: str, failed: int, completed: int) -> list[AttemptStats]:
        return [
            AttemptStats(kind=kind, outcome="retried", count=failed),
            AttemptStats(kind=kind, outcome="completed", count=completed),
        ]

    counted = [*stats("bad", 2, 17), *stats("good", 1, 9), *stats("rare", 1, 0), *stats("retried", 4, 1)]
    await watch.store.metrics.add(ADA, 1, counted, now=now)

    assert await watch.states(now) == {"errors kind=bad": FIRING}
    await watch.store.metrics.add(ADA, 2, stats("bad", 0, 20), now=now)
    assert await watch.states(now) == {"errors kind=bad": FIRING}  # 2 of 39 are more than 5 %
    await watch.store.metrics.add(ADA, 3, stats("bad", 0, 2), now=now)
    assert await watch.states(now + timedelta(seconds=1)) == {"errors kind=bad": OK}
    assert await events(watch.store) == ["alert.firing errors kind=bad", "alert.cleared errors kind=bad"]


@pytest.mark.req("L82")
@pytest.mark.parametrize("gap", [HOUR, 24 * HOUR])
async def test_a_kind_that_fails_1_of_1_every_hour_or_day_fires_until_ten_attempts_were_good(
    watch: Watch, now: datetime, gap: timedelta
) -> None:
    async def run(turn: int, outcome: str) -> dict[str, AlertState]:
        moment = now + turn * gap
        await watch.store.metrics.add(ADA, turn, [AttemptStats(kind="rare", outcome=outcome, count=1)], now=moment)
        unrolled = await watch.states(moment)
        await watch.store.metrics.roll_up(7 * 24 * HOUR, now=moment)
        assert await watch.states(moment) == unrolled
        return unrolled

    assert await run(1, "failed") == {}
    assert await run(2, "failed") == {"errors kind=rare": FIRING}
    for turn in range(3, 12):
        assert await run(turn, "completed") == {"errors kind=rare": FIRING}
    assert await run(12, "completed") == {"errors kind=rare": OK}
    assert await events(watch.store) == ["alert.firing errors kind=rare", "alert.cleared errors kind=rare"]


@pytest.mark.req("L82")
async def test_failures_that_are_long_past_are_over(watch: Watch, now: datetime) -> None:
    await watch.store.metrics.add(ADA, 1, [AttemptStats(kind="bad", outcome="failed", count=10)], now=now)

    assert await watch.states(now) == {"errors kind=bad": FIRING}
    assert await watch.states(now + 10 * MINUTE) == {"errors kind=bad": FIRING}  # it may only run rarely
    assert await watch.states(now + 20 * MINUTE) == {"errors kind=bad": OK}


@pytest.mark.req("L84")
async def test_a_job_that_was_to_be_tried_later_is_not_late_when_it_is_due_again(watch: Watch, now: datetime) -> None:
    tried = await start_one(watch.store, queue="mail", now=now)
    await settle(watch.store, tried, Failed(OOPS, retry_after=120 * MINUTE), now=now)
    await watch.store.promotion.promote(10, now=now + 121 * MINUTE)

    assert await watch.states(now + 121 * MINUTE) == {}
    assert await watch.states(now + 181 * MINUTE) == {"late queue=mail": FIRING}


async def test_a_series_that_below_names_is_0_when_it_is_not_there(store: Store, now: datetime) -> None:
    rule = read_alert("idle", "running", below=1, where={"queue": "mail", "kind": KIND})
    service = AlertChecker(store.alerts, {"idle": rule}, lambda now: measure(store, now=now), MINUTE)
    await service.check(now)
    (fires,) = await store.alerts.all()
    await start_one(store, queue="mail", now=now)

    await service.check(now + MINUTE)

    (over,) = await store.alerts.all()
    assert (fires.state, fires.value, over.state, over.value) == (FIRING, 0, OK, 1)


@pytest.mark.req("L83")
async def test_a_fast_lane_that_is_full_for_2_minutes_fires_until_there_is_room(watch: Watch, now: datetime) -> None:
    async def beat(busy: int) -> None:
        fast = LaneRecord(slots=20, busy=busy, utilisation=busy / 20, queues=("fast",))
        lanes = {"fast": fast, "general": msgspec.structs.replace(fast, queues=("*",))}
        record = WorkerRecord(
            id=ADA, name="ada", host="here", pid=1, started_at=now, seen_at=now, lanes=lanes, kinds=[]
        )
        await watch.store.workers.heartbeat(record, timedelta(hours=1))

    await beat(18)
    assert await watch.states(now) == {}
    await beat(19)

    assert await watch.states(now) == {"fast-lane-full lane=fast": PENDING}
    assert await watch.states(now + 1.9 * MINUTE) == {"fast-lane-full lane=fast": PENDING}
    assert await watch.states(now + 2 * MINUTE) == {"fast-lane-full lane=fast": FIRING}
    await beat(16)
    assert await watch.states(now + 3 * MINUTE) == {"fast-lane-full lane=fast": FIRING}  # not room enough
    await beat(15)
    assert await watch.states(now + 3 * MINUTE) == {"fast-lane-full lane=fast": OK}
    assert len(await events(watch.store)) == 2


@pytest.mark.req("L84")
async def test_a_job_that_is_due_for_over_an_hour_fires_for_its_queue_until_it_is_claimed(
    watch: Watch, now: datetime
) -> None:
    await enqueue_one(watch.store, queue="mail", now=now)
    await enqueue_one(watch.store, queue="other", now=now + 30 * MINUTE)
    await enqueue_one(watch.store, queue="later", run_at=now + 50 * MINUTE, now=now)

    assert await watch.states(now + 59 * MINUTE) == {}
    assert await watch.states(now + 61 * MINUTE) == {"late queue=mail": FIRING}
    await claim(watch.store, levels=[QueueLevel("mail", 100)], now=now)
    assert await watch.states(now + 62 * MINUTE) == {"late queue=mail": OK}
    assert await events(watch.store) == ["alert.firing late queue=mail", "alert.cleared late queue=mail"]


@pytest.mark.req("L85")
async def test_a_breaker_that_is_open_fires_until_it_is_closed(watch: Watch, now: datetime) -> None:
    await watch.store.breakers.open("email-service", timedelta(hours=1), now=now)

    assert await watch.states(now) == {"breaker-open breaker=email-service": FIRING}
    await watch.store.breakers.reset("email-service", now=now)
    assert await watch.states(now) == {"breaker-open breaker=email-service": OK}
    assert len(await events(watch.store)) == 2


def saying(*values: float | None) -> Any:
    """A measurement that gives these, one a time."""
    left = list(values)

    async def measured(now: datetime) -> Sequence[Sample]:
        value = left.pop(0)
        return [] if value is None else [Sample("pending_total", value)]

    return measured


async def states(store: Store) -> list[AlertState]:
    return [alert.state for alert in await store.alerts.all()]


async def test_a_hold_outlives_the_worker_that_checked(store: Store, now: datetime) -> None:
    died = asyncio.Event()

    async def measured(at: datetime) -> Sequence[Sample]:
        if at != now:
            died.set()
            await asyncio.Event().wait()
        return [Sample("pending_total", 6)]

    first = AlertChecker(store.alerts, {"deep": RULE}, measured, MINUTE)
    await first.check(now)
    dying = asyncio.create_task(first.check(now + MINUTE))
    await died.wait()
    dying.cancel()
    await asyncio.wait({dying})

    second = AlertChecker(store.alerts, {"deep": RULE}, saying(7, 7, 7, 8), MINUTE)
    for minutes in (1.9, 3, 4):  # no worker leads for a while, and the next may have to try again
        await second.check(now + minutes * MINUTE)
        assert await states(store) == [PENDING]
    await second.check(now + 5 * MINUTE)

    (alert,) = await store.alerts.all()
    assert (alert.state, alert.value, alert.fired_at) == (FIRING, 8, now + 5 * MINUTE)


async def test_a_hold_begins_anew_after_a_time_without_checks(store: Store, now: datetime) -> None:
    await store.webhooks.put([webhook("pager", alerts=True, states=[])])
    rule = replace(RULE, clear_hold=5 * MINUTE)
    values = iter([6, 7, 7, 8, 2, 2, 2, 2])
    evening, morning, next_morning = now, now + 10 * HOUR, now + 34 * HOUR

    async def check(at: datetime) -> None:
        """By another worker every time."""
        await AlertChecker(store.alerts, {"deep": rule}, saying(next(values)), 4 * MINUTE).check(at)

    async def state() -> tuple[AlertState, datetime, datetime | None]:
        (alert,) = await store.alerts.all()
        return alert.state, alert.since, alert.calm_since

    await check(evening)
    await check(morning)
    assert await state() == (PENDING, morning, None)
    await check(morning + 4 * MINUTE)
    assert await events(store) == []
    await check(morning + 5 * MINUTE)
    assert await events(store) == ["alert.firing deep"]

    await check(morning + 6 * MINUTE)
    await check(next_morning)
    assert await state() == (FIRING, morning + 5 * MINUTE, next_morning)
    await check(next_morning + 4 * MINUTE)
    assert await events(store) == ["alert.firing deep"]
    await check(next_morning + 5 * MINUTE)
    assert await state() == (OK, next_morning + 5 * MINUTE, None)
    assert await events(store) == ["alert.firing deep", "alert.cleared deep"]


async def test_a_process_that_slept_begins_a_hold_anew_too(store: Store, now: datetime) -> None:
    service = AlertChecker(store.alerts, {"deep": RULE}, saying(6, 6, 6), 4 * MINUTE)
    await service.check(now)

    await service.check(now + 10 * HOUR)
    assert await states(store) == [PENDING]
    await service.check(now + 10 * HOUR + 5 * MINUTE - timedelta(seconds=1))
    assert await states(store) == [PENDING]


async def test_two_checks_at_once_announce_once(store: Store, now: datetime, caplog: pytest.LogCaptureFixture) -> None:
    await store.webhooks.put([webhook("pager", alerts=True, states=[])])
    both = asyncio.Barrier(2)
    rule = AlertRule(name="deep", metric="pending_total", above=5, summary="too deep")

    async def together(now: datetime) -> Sequence[Sample]:
        await both.wait()  # both have read its state
        return [Sample("pending_total", 6)]

    services = [AlertChecker(store.alerts, {"deep": rule}, together, MINUTE) for _ in range(2)]
    with caplog.at_level(logging.INFO, "dutiful.alerts"):
        applied = await asyncio.gather(*(service.check(now) for service in services))

    assert sorted(map(len, applied)) == [0, 1]
    assert await events(store) == ["alert.firing deep"]
    assert len(caplog.records) == 1


async def test_the_log_has_the_beginning_and_the_end_and_nothing_between(
    store: Store, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    service = AlertChecker(store.alerts, {"deep": RULE}, saying(6, 7, 8, 2), HOUR)

    with caplog.at_level(logging.INFO, "dutiful.alerts"):
        for minutes in (0, 5, 6, 7):
            await service.check(now + minutes * MINUTE)

    begins, ends = caplog.records
    assert (begins.levelname, ends.levelname) == ("WARNING", "INFO")
    assert begins.getMessage() == "alert deep fires: too deep, pending_total is 7"
    assert ends.getMessage() == "alert deep is over: too deep, pending_total is 2"
    fields = vars(begins)
    assert (fields["rule"], fields["series"], fields["value"], fields["summary"]) == ("deep", "", 7, "too deep")


async def test_an_alert_whose_rule_is_removed_is_over_and_then_deleted(store: Store, now: datetime) -> None:
    await store.webhooks.put([webhook("pager", alerts=True, states=[])])
    first = AlertChecker(store.alerts, {"deep": RULE}, saying(6, 6), HOUR)
    await first.check(now)
    await first.check(now + 5 * MINUTE)

    second = AlertChecker(store.alerts, {}, saying(), MINUTE)
    await second.check(now + 6 * MINUTE)

    assert await states(store) == [OK]
    assert await events(store) == ["alert.firing deep", "alert.cleared deep"]
    await second.check(now + 7 * MINUTE)
    assert await states(store) == []


async def test_what_has_long_been_over_is_deleted(store: Store, now: datetime) -> None:
    service = AlertChecker(store.alerts, {"deep": RULE}, saying(6, None, None, None), MINUTE)
    await service.check(now)
    await service.check(now + MINUTE)
    await service.check(now + KEEP)
    assert await states(store) == [OK]

    await service.check(now + KEEP + 2 * MINUTE)

    assert await states(store) == []


async def test_a_check_that_fails_is_not_repeated_at_once(store: Store, now: datetime) -> None:
    checks = 0

    async def fail(now: datetime) -> Sequence[Sample]:
        nonlocal checks
        checks += 1
        raise OSError("the database is away")

    service = AlertChecker(store.alerts, {"deep": RULE}, fail, timedelta(hours=1))
    survey = await store.leadership.survey(ADA, timedelta(seconds=8))
    with pytest.raises(OSError, match="away"):
        await service.tick(survey)

    await service.tick(survey)

    assert checks == 1 and await store.alerts.last_check() is None


async def test_a_check_that_hangs_is_given_up_and_logged(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(now: datetime) -> Sequence[Sample]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr("dutiful.maintenance.alerts.CHECK_TIMEOUT", timedelta(milliseconds=50))
    service = AlertChecker(store.alerts, {"deep": RULE}, hang, MINUTE)
    await service.tick(await store.leadership.survey(ADA, timedelta(seconds=8)))

    assert "was given up" in caplog.text and await store.alerts.last_check() is None


async def test_a_new_leader_logs_once_what_fires_already(
    store: Store, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    rules = {name: AlertRule(name=name, metric="pending_total", above=5, summary="deep") for name in ("a", "b")}
    await AlertChecker(store.alerts, rules, saying(6), MINUTE).check(now)
    caplog.clear()
    second = AlertChecker(store.alerts, {"a": rules["a"]}, saying(6, 6), MINUTE)

    with caplog.at_level(logging.INFO, "dutiful.alerts"):
        for minutes in (1, 2):
            await second.check(now + minutes * MINUTE)

    over, known = [record.getMessage() for record in caplog.records]
    assert over.startswith("alert b is over")
    assert known == f"alert a has been firing since {now.isoformat(timespec='seconds')}: deep"


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_worker_that_does_not_count_says_which_alerts_are_blind(
    app: Dutiful, caplog: pytest.LogCaptureFixture
) -> None:
    app.configure(metrics=False)
    async with app:
        app.make_worker(await app.client())

    assert "these alerts do not see them: errors" in caplog.text


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def test_a_worker_posts_signed_messages_to_a_pager(app: Dutiful, receiver: Receiver) -> None:
    app.configure(webhook_secrets=SECRET, webhook_networks="127.0.0.0/8", alert_interval="100ms")
    app.alert("waits", "scheduled", above=0, where={"queue": "mail"}, summary="mail waits", runbook="ask Ada")
    app.webhook("pager", receiver.url, alerts=True)

    @app.job(queue="mail")
    async def send() -> None: ...

    async with working(app):
        job = await send.options(delay="1h").enqueue()
        await receiver.called(1)
        await app.cancel(job.id)
        fires, over = [call.verified() for call in await receiver.called(2)]

        async def delivered() -> list[WebhookPost] | None:
            posts = await (await app.client()).store.webhooks.posts()
            return posts if [post.status for post in posts] == [204, 204] else None

        posts = await eventually(delivered)

    assert [post.job_id for post in posts] == [None, None]
    assert [post.event for post in posts] == ["alert.cleared", "alert.firing"]
    said: dict[str, Any] = {"rule": "waits", "series": "kind=send, queue=mail", "metric": "scheduled", "above": 0,
                            "below": None, "summary": "mail waits", "runbook": "ask Ada"}  # fmt: skip
    assert (fires["type"], over["type"]) == ("alert.firing", "alert.cleared")
    assert fires["data"] | said | {"state": "firing", "value": 1} == fires["data"]
    assert over["data"] | said | {"state": "ok", "fired_at": fires["data"]["fired_at"]} == over["data"]
    began, ended = (datetime.fromisoformat(over["data"][name]) for name in ("fired_at", "cleared_at"))
    assert began < ended


async def test_those_that_fire_are_listed_first_and_what_never_fired_is_not(store: Store, now: datetime) -> None:
    rules = {name: AlertRule(name=name, metric="workers", above=1, summary=name) for name in ("a", "b", "c", "d")}
    known = [
        Alert(rule="a", series="", state=OK, since=now, fired_at=now, cleared_at=now),
        Alert(rule="b", series="", state=PENDING, since=now),
        Alert(rule="c", series="", state=OK, since=now),
        Alert(rule="d", series="1", state=FIRING, since=now, fired_at=now),
        Alert(rule="gone", series="", state=FIRING, since=now + MINUTE, fired_at=now + MINUTE),
    ]
    await store.alerts.change([AlertChange(None, alert) for alert in known])
    ada = operator(store)
    ada.actor.alert_rules = rules

    found = await ada.alerts.all()

    assert [(one.alert.rule, one.rule) for one in found] == [
        ("gone", None), ("d", rules["d"]), ("b", rules["b"]), ("a", rules["a"]),
    ]  # fmt: skip
    assert ada.alerts.rules() == list(rules.values())


async def test_alerts_are_closed_to_a_tenant(store: Store) -> None:
    with pytest.raises(NotAllowed, match="about all tenants"):
        await of_acme(store).alerts.all()
    with pytest.raises(NotAllowed, match="about all tenants"):
        await of_acme(store).alerts.last_check()
    with pytest.raises(NotAllowed, match="about all tenants"):
        of_acme(store).alerts.rules()


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_worker_does_not_start_with_a_setting_that_turns_off_what_there_is_not(app: Dutiful) -> None:
    app.configure(alerts_off="backlok")

    async with app:
        with pytest.raises(UsageError, match=r"'backlok'.* there are: backlog, errors"):
            app.make_worker(await app.client())
    with pytest.raises(UsageError, match="alert_interval"):
        Dutiful(alert_interval="1ms").settings  # noqa: B018
