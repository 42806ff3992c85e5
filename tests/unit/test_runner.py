"""When maintenance looks again, and what one service can do to the others."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.errors import DataRefused, StoreAway, StoreBusy
from dutiful.delivery.base import EVERYWHERE
from dutiful.maintenance import promotion
from dutiful.maintenance import runner as module
from dutiful.maintenance.runner import FOLLOWER_POLL, LEADER_POLL, MIN_PAUSE, MaintenanceRunner
from dutiful.store.leadership import Patience, Survey

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WORKER = UUID(int=0xADA)
LEVELS = frozenset({("default", 100)})


class Ticked:
    """A service that answers, fails or hangs as the test says."""

    def __init__(self, name: str, answer: Any = None) -> None:
        self.name = name
        self.answer = answer
        self.ticks = 0
        self.hang: asyncio.Event | None = None

    async def tick(self, survey: Survey) -> Any:
        self.ticks += 1
        if self.hang is not None:
            await self.hang.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Maintaining:
    def __init__(self, *services: Ticked, slow: tuple[Ticked, ...] = (), **survey: Any) -> None:
        self.survey = Survey(**{"leading": True, "now": NOON, **survey})
        self.promoted = 0
        self.hints: list[Any] = []
        self.webhooks = Ticked("webhooks")
        self.webhooks.wants_jobs = False  # type: ignore[attr-defined]
        store: Any = SimpleNamespace(leadership=self, promotion=self)
        ours = SimpleNamespace(hint=lambda levels, known_to: self.hints.append(levels))
        parts: Any = (store, services, slow, ours, lambda now: [], None, self.webhooks, {}, [])
        self.runner = MaintenanceRunner(*parts)
        leadership = SimpleNamespace(survey=self._survey, resign=self._resign, is_vacant=self._is_vacant)
        self.runner._store.leadership = leadership  # type: ignore[misc]
        self.resigned = self.asked = 0
        self.vacant = False
        self.ready: list[Any] = []

    async def _survey(self, worker_id: UUID, term: timedelta, patience: Patience) -> Survey:
        return self.survey

    async def _resign(self, worker_id: UUID) -> bool:
        self.resigned += 1
        return True

    async def _is_vacant(self) -> bool:
        self.asked += 1
        return self.vacant

    async def promote(self, limit: int) -> Any:
        self.promoted += 1
        return SimpleNamespace(levels=LEVELS)

    def on_ready(self, levels: Any, below: Any = None) -> None:
        self.ready.append(levels)

    async def once(self) -> float:
        return await self.runner.run_once(WORKER, self.ready.append)


async def test_a_service_that_fails_or_hangs_does_not_keep_the_others_from_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TICK_TIMEOUT", 0.001)
    failing, hanging, last = Ticked("failing", ValueError("bug")), Ticked("hanging"), Ticked("last", LEVELS)
    hanging.hang = asyncio.Event()
    maintaining = Maintaining(failing, hanging, last)
    assert await maintaining.once() == MIN_PAUSE, "what was due is done; there may be more"
    assert [one.ticks for one in (failing, hanging, last)] == [1, 1, 1]
    assert (maintaining.ready, maintaining.hints) == ([LEVELS], [EVERYWHERE])


async def test_a_slow_service_is_not_started_again_while_it_runs() -> None:
    slow = Ticked("slow")
    slow.hang = asyncio.Event()
    maintaining = Maintaining(slow=(slow,))
    for _ in range(2):
        assert await maintaining.once() == LEADER_POLL
        await asyncio.sleep(0)
    assert slow.ticks == 1
    slow.hang.set()
    await asyncio.gather(*maintaining.runner._tasks.values())
    await maintaining.once()
    await asyncio.sleep(0)
    assert slow.ticks == 2


@pytest.mark.parametrize(
    ("due", "pause"),
    [({}, LEADER_POLL), ({"next_run_at": 0.25}, 0.25), ({"next_run_at": 0.5, "next_fire_at": 0.25}, 0.25),
     ({"next_post_at": 0.25}, 0.25), ({"next_run_at": 60}, LEADER_POLL), ({"next_run_at": 0.000_1}, MIN_PAUSE),
     ({"next_run_at": -5}, LEADER_POLL), ({"next_run_at": 0}, LEADER_POLL)],
)  # fmt: skip
async def test_the_leader_looks_again_when_the_next_thing_is_due(due: dict[str, float], pause: float) -> None:
    times: dict[str, Any] = {name: NOON + timedelta(seconds=seconds) for name, seconds in due.items()}
    assert await Maintaining(Ticked("idle"), **times).once() == pytest.approx(pause)


async def test_a_follower_runs_no_service_but_promotes_what_it_knows_to_be_due() -> None:
    service = Ticked("service")
    maintaining = Maintaining(service, leading=False)
    assert await maintaining.once() == FOLLOWER_POLL
    assert (service.ticks, maintaining.promoted, maintaining.webhooks.ticks) == (0, 0, 1)
    maintaining.runner.job_scheduled(timedelta(0))
    await maintaining.once()
    await maintaining.once()
    assert maintaining.promoted == 1 and maintaining.ready == [LEVELS]


async def test_a_sleep_ends_when_a_job_of_this_worker_is_due_and_the_earliest_counts() -> None:
    maintaining = Maintaining()
    sleeping = asyncio.create_task(maintaining.runner._sleep(3600))
    await asyncio.sleep(0)
    maintaining.runner.job_scheduled(timedelta(seconds=1800))
    maintaining.runner.job_scheduled(timedelta(0))
    maintaining.runner.job_scheduled(timedelta(seconds=1800))
    await asyncio.wait_for(sleeping, 10)


@pytest.mark.parametrize("asleep", [True, False], ids=["while it sleeps", "before it sleeps"])
async def test_a_follower_that_hears_of_a_vacancy_surveys_at_once(asleep: bool) -> None:
    maintaining = Maintaining(leading=False)
    maintaining.vacant = True
    sleeping = asyncio.create_task(maintaining.runner._sleep(3600))
    if asleep:
        await asyncio.sleep(0)
    await maintaining.runner.look_ahead()
    await asyncio.wait_for(sleeping, 10)


async def test_a_flood_of_hints_is_asked_about_now_and_then_and_the_last_one_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ASK_EVERY", 0.05)
    maintaining = Maintaining(leading=False)
    sleeping = asyncio.create_task(maintaining.runner._sleep(3600))
    for _ in range(100):
        await maintaining.runner.look_ahead()
        await asyncio.sleep(0)
    assert maintaining.asked == 1 and not sleeping.done()
    maintaining.vacant = True
    await asyncio.wait_for(sleeping, 10)
    assert maintaining.asked == 2


async def test_who_has_stopped_does_not_ask_whether_anybody_leads() -> None:
    """On SQLite, to ask may reserve the leadership."""
    maintaining = Maintaining(leading=False)
    maintaining.vacant = True
    await maintaining.runner.look_ahead()
    assert maintaining.asked == 0


async def test_a_sleep_that_is_cancelled_in_the_moment_it_is_woken_is_cancelled() -> None:
    """A worker that stops while its last jobs end would go on to lead, and not resign."""
    runner = Maintaining().runner
    sleeping = asyncio.create_task(runner._sleep(60))
    await asyncio.sleep(0)
    runner._wake.set()
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(sleeping, 10)


@pytest.mark.parametrize(("late", "resigned"), [(0.0, 0), (60.0, 1)])
async def test_a_leader_that_wakes_too_late_lets_another_lead(
    monkeypatch: pytest.MonkeyPatch, late: float, resigned: int
) -> None:
    maintaining = Maintaining()
    turns, second = 0, asyncio.Event()

    async def sleep(seconds: float) -> None:
        nonlocal turns
        turns += 1
        maintaining.runner._wakes_at = time.monotonic() - late
        if turns == 2:
            second.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(maintaining.runner, "_sleep", sleep)
    running = asyncio.create_task(maintaining.runner.run(WORKER, maintaining.on_ready))
    await asyncio.wait_for(second.wait(), 5)
    assert maintaining.resigned == resigned
    running.cancel()
    await asyncio.wait([running])


async def test_without_schedules_a_start_does_not_say_that_the_database_is_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    maintaining = Maintaining()

    async def away(*_: Any) -> Survey:
        raise StoreAway("away")

    monkeypatch.setattr(maintaining.runner, "_survey", away)
    for _ in range(3):  # as a worker starts it again and again
        with pytest.raises(StoreAway):
            await maintaining.runner.run(WORKER, maintaining.on_ready)
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == ["the database is away"]


async def test_what_is_due_when_a_worker_starts_is_promoted_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    left = [1_000, 1_000, 1_000, 7]

    async def promote(limit: int) -> Any:
        clock.now += 1
        return SimpleNamespace(moved=left.pop(0) if left else 0)

    monkeypatch.setattr(promotion, "time", SimpleNamespace(monotonic=lambda: clock.now))
    store: Any = SimpleNamespace(promotion=SimpleNamespace(promote=promote))
    assert await promotion.promote_due(store, 2) and left == [1_000, 7], "a worker must start, however many are due"
    assert await promotion.promote_due(store, 60) and left == []
    assert not await promotion.promote_due(store, 60)


@pytest.mark.parametrize("error", [DataRefused("a duplicate key"), StoreBusy("locked"), TimeoutError()])
async def test_a_worker_starts_though_what_is_due_cannot_be_promoted(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def promote(limit: int) -> Any:
        raise error

    preparing = preparing_with(promote)
    await preparing.runner.prepare()
    assert [record.name for record in caplog.records] == ["dutiful.maintenance"] and preparing.hints == []


async def test_a_start_waits_for_a_store_that_is_away_when_it_promotes() -> None:
    async def promote(limit: int) -> Any:
        raise StoreAway("away")

    with pytest.raises(StoreAway):
        await preparing_with(promote).runner.prepare()


async def test_other_workers_are_told_of_what_a_start_has_promoted() -> None:
    left = [3, 0]

    async def promote(limit: int) -> Any:
        return SimpleNamespace(moved=left.pop(0))

    preparing = preparing_with(promote)
    await preparing.runner.prepare()
    await preparing.runner.prepare()
    assert preparing.hints == [EVERYWHERE]


def preparing_with(promote: Any) -> Maintaining:
    async def stored(*_: Any) -> None: ...

    maintaining = Maintaining()
    parts: Any = maintaining.runner
    parts._webhooks.declare = stored
    parts._rescuer = SimpleNamespace(rescue_orphans=stored)
    parts._store.jobs = SimpleNamespace(put_payload_rules=stored, put_defaults=stored)
    parts._store.promotion = SimpleNamespace(promote=promote)
    return maintaining


async def test_others_are_told_of_a_resignation_whose_answer_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    maintaining = Maintaining()

    async def resign(_: UUID) -> bool:
        raise StoreAway("away")

    maintaining.runner._store.leadership.resign = resign  # type: ignore[method-assign, assignment]
    await maintaining.runner._resign(WORKER)
    assert maintaining.hints == []
    maintaining.runner.leading = True
    await maintaining.runner._resign(WORKER)
    assert maintaining.hints == [EVERYWHERE]
