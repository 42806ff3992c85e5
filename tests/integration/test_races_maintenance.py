"""Services whose work changes under their hands: a lease renewed in between, a bad row beside good ones."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

import msgspec
import pytest
from running_workers import clocked, eventually, working

from dutiful import Dutiful, State, UsageError
from dutiful.core.webhooks.message import WebhookResponse
from dutiful.declare.schedule import ScheduleSpec
from dutiful.maintenance.rescuer import Rescuer
from dutiful.maintenance.scheduler import Scheduler
from dutiful.maintenance.webhooks.sender import MAX_RETRIES, WebhookSender
from dutiful.store import Store
from dutiful.store.leadership import Survey
from dutiful.store.queries import JobFilter
from dutiful.store.webhooks import PostResult, PostState, WebhookPost
from dutiful.testing import Clock, ClockedStore
from suite.builders import EXPIRED, KIND, at, renewing, start_one, state

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwwx4oUq4qNzE="
SQLITE = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


# --- rescue


async def test_a_lease_that_is_renewed_after_the_rescuer_has_seen_it_expired_is_not_taken_away(store: Store) -> None:
    clock = Clock(at(EXPIRED))
    renewed, dead = await start_one(store), await start_one(store)
    expired = store.claims.expired

    async with renewing(store) as renewer:

        async def renewed_in_between(limit: int, **options: Any) -> Any:
            found = await expired(limit, **options)
            await renewer.renew(renewed, now=clock.now())
            return found

        with patch.object(store.claims, "expired", renewed_in_between):
            rescuer = Rescuer(ClockedStore(store, clock), {})
            await rescuer.tick(Survey(True, clock.now(), expired=True))

    assert await state(store, renewed.job_id) is State.RUNNING
    assert await state(store, dead.job_id) is State.READY
    (still_held,) = await store.claims.held_by(UUID(int=0xADA))
    assert still_held.claim_id == renewed.claim_id, "its worker still holds it, and will complete it"


# --- webhooks


class Outbox:
    """Posts that have been tried before, given out as the sender asks for them."""

    def __init__(self, number: int) -> None:
        self.due = deque(self._post(n) for n in range(number))
        self.settled: list[PostResult] = []
        self.asked: list[int] = []
        self.all_settled = asyncio.Event()

    async def take(self, limit: int, hold: timedelta, *, retries: int, **options: Any) -> Sequence[WebhookPost]:
        self.asked.append(retries)
        return [self.due.popleft() for _ in range(min(limit, retries, len(self.due)))]

    async def settle(self, result: PostResult) -> bool:
        self.settled.append(result)
        if not self.due:
            self.all_settled.set()
        return True

    def _post(self, number: int) -> WebhookPost:
        now = datetime.now(UTC)
        return WebhookPost(
            id=uuid4(),
            job_id=uuid4(),
            webhook=None,
            url=f"https://r{number}.example/",
            event="job.completed",
            data={},
            state=PostState.PENDING,
            attempts=2,
            created_at=now,
            updated_at=now,
        )


class Answering:
    def __init__(self, status: int) -> None:
        self._status = status

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookResponse:
        return WebhookResponse(self._status)

    def close(self) -> None: ...


@pytest.mark.parametrize("status", [204, 500])
async def test_retries_that_have_ended_free_their_places_for_the_next(status: int) -> None:
    outbox = Outbox(3 * MAX_RETRIES)
    sender = WebhookSender(
        outbox,  # type: ignore[arg-type]
        [],
        lambda: Answering(status),
        lambda name: [SECRET],
        timedelta(seconds=5),
        lambda: None,
    )
    sender.wake()
    await asyncio.wait_for(outbox.all_settled.wait(), 10)
    await sender.close(5)
    assert len(outbox.settled) == 3 * MAX_RETRIES and max(outbox.asked) == MAX_RETRIES
    assert sender._retrying == 0, "otherwise there would be no room for others until a restart"


# --- schedules


@pytest.fixture
def declared(app: Dutiful) -> Dutiful:
    @app.job(name=KIND)
    async def greet(name: str = "") -> None: ...

    for name in ("a first", "b bad", "c last"):
        app.schedule(greet, every="10m", name=name)
    return app


BAD: dict[str, dict[str, Any]] = {
    "an expression that cannot be read": {"expression": "every moon"},
    "a catch-up of a later release": {"catch_up": "some"},
    "a job without a payload": {"job": {"queue": "default"}},
    "a key that cannot be read": {"job": {"payload": {}, "unique": {"key": 7}}},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_a_schedule_that_cannot_fire_does_not_keep_the_others_from_firing(
    declared: Dutiful, bad: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with clocked(declared, clock) as client:
        store = client.store
        records = declared.schedule_records(clock.now())
        await store.schedules.put(records)
        clock.advance("11m")
        found = [
            msgspec.structs.replace(one, **bad) if one.name == "b bad" else one for one in await store.schedules.all()
        ]

        async def read() -> Any:
            return found

        scheduler = Scheduler(store, declared.new_id)
        survey = Survey(True, clock.now(), next_fire_at=clock.now())
        with patch.object(store.schedules, "all", read, create=True):
            assert await scheduler.tick(survey) == frozenset({("default", 100)})
            await scheduler.tick(survey)
        jobs = await store.queries.jobs(JobFilter(limit=10))
    assert sorted(str(one.created_by) for one in jobs) == ["schedule a first", "schedule c last"]
    assert caplog.text.count("schedule b bad cannot fire") == 1, "it is due at every tick until it is mended"


@SQLITE
async def test_a_declared_schedule_that_cannot_be_stored_does_not_stop_the_others_or_the_services(
    declared: Dutiful, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = ScheduleSpec.record

    def refusing(self: ScheduleSpec, now: datetime) -> Any:
        if self.name == "b bad":
            raise UsageError("its payload breaks a rule")
        return record(self, now)

    monkeypatch.setattr(ScheduleSpec, "record", refusing)
    store = (await declared.client()).store

    async def stored() -> list[str]:
        return sorted(one.name for one in await store.schedules.all())

    async with working(declared) as worker:
        await eventually(stored)
        assert await stored() == ["a first", "c last"]

        async def leads() -> bool:
            return worker._maintenance is not None and worker._maintenance.leading

        await eventually(leads)
    assert "schedule b bad" in caplog.text
