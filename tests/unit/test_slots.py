"""How a handler is asked to stop: the first reason holds, and a late one is asked again."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from worker_parts import MovingClock, new_claim

from dutiful.core.states import State
from dutiful.kind import Mode
from dutiful.worker import slots as module
from dutiful.worker.slots import REPEAT_STOP, Slot, Slots, StopReason


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovingClock:
    moving = MovingClock()
    monkeypatch.setattr(module, "time", moving)
    return moving


@pytest.fixture
def slots(clock: MovingClock) -> Slots:
    return Slots()


def begin(slots: Slots, number: int = 1, timeout: float | None = 60, **fields: Any) -> tuple[Slot, list[StopReason]]:
    """A slot that runs a job, and the reasons for which its handler was interrupted."""
    (slot,) = slots.add("general", 1)
    kind: Any = SimpleNamespace(mode=Mode.THREAD, timeout=None if timeout is None else timedelta(seconds=timeout))
    slot.task = SimpleNamespace(cancel=lambda: None)  # type: ignore[assignment]
    slot.begin(new_claim(number, **fields), kind)
    reasons: list[StopReason] = []
    slot.set_interrupt(reasons.append)
    return slot, reasons


def test_a_job_is_late_from_its_deadline_on_and_asked_again_when_its_time_to_stop_is_over(
    slots: Slots, clock: MovingClock
) -> None:
    slot, reasons = begin(slots)
    clock.now += 59.999
    slots.stop_overdue()
    assert reasons == []
    clock.now += 0.001
    slots.stop_overdue()
    assert reasons == [StopReason.TIMEOUT] and slot.stop is StopReason.TIMEOUT
    for _ in range(2):
        clock.now += REPEAT_STOP
        slots.stop_overdue()
    assert reasons == [StopReason.TIMEOUT], "it cleans up"
    slot.abandoned = True
    for _ in range(2):
        slots.stop_overdue()
    assert reasons == [StopReason.TIMEOUT] * 2
    clock.now += REPEAT_STOP
    slots.stop_overdue()
    assert reasons == [StopReason.TIMEOUT] * 3


@pytest.mark.parametrize("first", [StopReason.CANCEL, StopReason.LOST, StopReason.TIMEOUT])
def test_a_handler_that_cleans_up_is_asked_again_by_nothing_but_a_shutdown_once(
    slots: Slots, clock: MovingClock, first: StopReason
) -> None:
    slot, reasons = begin(slots)
    for reason in (first, first, StopReason.CANCEL, StopReason.TIMEOUT, StopReason.LOST):
        slot.request_stop(reason)
        clock.now += REPEAT_STOP
    assert reasons == [first]
    for _ in range(2):
        slots.stop_all()
    assert reasons == [first] * 2


def test_a_reason_that_takes_the_place_of_a_phases_timeout_is_a_new_one(slots: Slots) -> None:
    slot, reasons = begin(slots)
    slot.limit_to(timedelta(seconds=1))
    slot.request_stop(StopReason.TIMEOUT)
    slots.cancel(new_claim(1).job_id)
    slot.clear_phase_timeout()
    for _ in range(2):
        slots.cancel(new_claim(1).job_id)
    assert reasons == [StopReason.TIMEOUT, StopReason.CANCEL]


def test_the_first_reason_to_stop_holds(slots: Slots) -> None:
    slot, reasons = begin(slots)
    slots.cancel(new_claim(1).job_id)
    slots.stop_all()
    assert (slot.stop, slot.later_stop) == (StopReason.CANCEL, StopReason.SHUTDOWN)
    assert reasons == [StopReason.CANCEL] * 2


def test_every_handler_of_a_job_is_stopped_and_no_other(slots: Slots) -> None:
    first, second, other = (
        begin(slots, 1),
        begin(slots, 2, job_id=new_claim(1).job_id),
        begin(slots, 3),
    )
    slots.stop_job(new_claim(1).job_id, StopReason.LOST)
    assert [slot.stop for slot, _ in (first, second, other)] == [StopReason.LOST, StopReason.LOST, None]


def test_a_lost_claim_stops_its_own_handler_unless_that_has_stored_the_outcome(slots: Slots) -> None:
    claims = [new_claim(1), new_claim(2, job_id=new_claim(1).job_id), new_claim(3)]
    (first, _), (second, _) = begin(slots, 1), begin(slots, 2, job_id=new_claim(1).job_id)
    second.own_completion = SimpleNamespace(settled=State.COMPLETED, completed_by_user=None)
    assert [slots.lose(claim) for claim in claims] == [True, True, False]
    assert (first.stop, second.stop) == (StopReason.LOST, None)


def test_a_slot_without_a_job_is_not_stopped(slots: Slots) -> None:
    slot, reasons = begin(slots)
    slot.end()
    slots.stop_job(new_claim(1).job_id, StopReason.CANCEL)
    assert slots.stop_all() == [] and not slots.lose(new_claim(1))
    slot.request_stop(StopReason.TIMEOUT)
    assert slot.stop is None and reasons == []


def test_a_reason_to_stop_that_came_before_the_handler_began_reaches_it(slots: Slots) -> None:
    slot, _ = begin(slots)
    slot.request_stop(StopReason.CANCEL)
    late: list[StopReason] = []
    slot.set_interrupt(late.append)
    assert late == [StopReason.CANCEL]


def test_a_new_job_starts_without_the_reasons_of_the_last(slots: Slots, clock: MovingClock) -> None:
    slot, _ = begin(slots)
    slot.request_stop(StopReason.TIMEOUT)
    slot.request_stop(StopReason.LOST)
    slot.own_completion = SimpleNamespace(settled=State.COMPLETED, completed_by_user=None)
    kind: Any = SimpleNamespace(mode=Mode.PROCESS, timeout=timedelta(seconds=60))
    slot.end()
    slot.begin(new_claim(2), kind)
    kept: list[object] = [slot.stop, slot.later_stop, slot.own_completion, slot.deadline]
    assert kept == [None] * 4
    clock.now += 100
    slot.start_clock()
    assert slot.deadline == clock.now + 60, "the clock of a process starts with its handler"


def test_a_phase_has_its_own_time_but_no_more_than_the_job(slots: Slots, clock: MovingClock) -> None:
    slot, _ = begin(slots, timeout=60)
    end = slot.deadline
    slot.limit_to(timedelta(seconds=61))
    assert slot.deadline == end and not slot.phase_deadline_applies
    slot.limit_to(timedelta(seconds=59))
    assert slot.deadline == clock.now + 59 and slot.phase_deadline_applies
    slot.end_phase()
    assert slot.deadline == end


async def test_a_phase_that_took_too_long_does_not_stop_the_job_but_a_cancel_does(clock: MovingClock) -> None:
    slot, _ = begin(Slots())
    slot.task = asyncio.current_task()
    for later in (None, StopReason.CANCEL):
        slot.limit_to(timedelta(seconds=1))
        slot.request_stop(StopReason.TIMEOUT)
        if later is not None:
            slot.request_stop(later)
        slot.clear_phase_timeout()
        assert (slot.stop, slot.later_stop) == (later, None)
        slot.deadline = slot._job_limit[0]
    slot.stop = StopReason.TIMEOUT
    slot.clear_phase_timeout()
    assert slot.stop is StopReason.TIMEOUT, "the job's own time is over"
