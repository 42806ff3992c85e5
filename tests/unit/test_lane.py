"""What a lane does with the claims that it has in hand."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from worker_parts import AWAY, GREET, MovingClock, ScriptedClaims, clock, config_of, held, new_claim

from dutiful.core.job import Claim
from dutiful.core.outcome import Done, Failed, Released
from dutiful.core.settle import Policy
from dutiful.declare.lane import LaneSettings
from dutiful.worker.lanes import lane as module
from dutiful.worker.lanes.fetcher import FetchCursors, Suspects
from dutiful.worker.lanes.lane import UNSTARTED_FOR, Lane
from dutiful.worker.lanes.shares import FairBuffer
from dutiful.worker.leases import Leases
from dutiful.worker.slots import Slots, StopReason

__all__ = ["clock"]
LEASE = 30.0


class NotedSettler:
    def __init__(self) -> None:
        self.settled: list[tuple[int, Any]] = []
        self.released: list[int] = []
        self.pending = 0

    def settle(self, claim: Claim, outcome: Any, timing: Any = None) -> None:
        self.settled.append((claim.claim_id, outcome))

    def release_unknown(self, held: Any) -> None:
        self.released.append(held.claim_id)


class NotedExecutor:
    def __init__(self) -> None:
        self.ran: list[int] = []
        self.error: Exception | None = None

    async def run(self, claim: Claim, kind: Any, slot: Any) -> Done:
        self.ran.append(claim.claim_id)
        if self.error is not None:
            raise self.error
        return Done(None)


class Parts:
    def __init__(self) -> None:
        self.claims = ScriptedClaims()
        self.leases = Leases()
        self.suspects = Suspects()
        self.cursors = FetchCursors()
        self.executor = NotedExecutor()
        self.settler = NotedSettler()
        self.slots = Slots()
        parts: Any = (self.cursors, self.leases, self.suspects, self.executor, self.settler, self.slots)
        self.lane = Lane(config_of(self.claims), LaneSettings("general", 1), *parts)
        self.tasks: list[asyncio.Task[None]] = []

    def receive(self, *claims: Claim) -> None:
        self.leases.add(claims)
        self.lane._receive(list(claims))

    def run_slot(self) -> "asyncio.Task[None]":
        task = asyncio.create_task(self.lane.run_slot(self.lane.slots[0]))
        self.tasks.append(task)
        return task

    async def end(self) -> None:
        self.lane.close()
        for task in self.tasks:
            await asyncio.wait_for(asyncio.wait([task]), 5)


@pytest.fixture
async def parts(clock: MovingClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Parts]:
    monkeypatch.setattr(module, "time", clock)
    made = Parts()
    yield made
    await made.end()


async def turns(number: int = 10) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_buffered_claim_whose_lease_has_ended_is_never_started(parts: Parts, clock: MovingClock) -> None:
    parts.receive(new_claim(1))
    clock.now += 1
    parts.receive(new_claim(2))
    clock.now += LEASE - 1  # a stall of the whole process: the first may run elsewhere by now
    parts.run_slot()
    await turns()
    assert parts.executor.ran == [2]
    assert parts.settler.settled == [(1, Released(began=False)), (2, Done(None))]


async def test_a_buffered_claim_that_is_known_to_be_lost_is_never_started(parts: Parts) -> None:
    parts.receive(new_claim(1))
    parts.leases.drop([1])
    parts.run_slot()
    await turns()
    assert parts.executor.ran == [] and parts.settler.settled == [(1, Released(began=False))]


async def test_fewer_jobs_are_claimed_ahead_the_larger_their_payloads_are(parts: Parts) -> None:
    large = "x" * (module.AHEAD_SIZE // 10)
    parts.lane.rate = 1e6
    parts.receive(new_claim(1))
    ahead, _ = parts.lane._demand()
    parts.receive(msgspec.structs.replace(new_claim(2), payload=large))
    parts.run_slot()
    await turns()
    bounded, free = parts.lane._demand()
    for number in range(3, 60):
        parts.receive(new_claim(number))
        await turns()
    again, _ = parts.lane._demand()
    assert ahead > 1000 and bounded - free == 10 and again > 1000


async def test_claims_that_no_slot_takes_up_are_released_after_a_while(parts: Parts, clock: MovingClock) -> None:
    parts.receive(new_claim(1), new_claim(2, crashes=1))
    parts.suspects.reserve(lambda: None)
    parts.suspects.assign([new_claim(2, crashes=1)])
    clock.now += UNSTARTED_FOR
    parts.lane.release_unstarted()
    assert parts.lane.buffered == 2
    clock.now += 0.001
    parts.lane.rate = 100.0
    parts.lane.release_unstarted()
    assert parts.lane.buffered == 0 and parts.lane.rate == 0.0
    assert sorted(number for number, outcome in parts.settler.settled if outcome == Released(began=False)) == [1, 2]
    parts.leases.drop([1, 2])
    assert parts.suspects.reserve(lambda: None), "another lane may take the suspect"


@pytest.mark.parametrize("crashes", [0, 1], ids=["an ordinary job", "a suspect, which goes before them"])
async def test_claims_that_come_meanwhile_are_no_reason_to_keep_those_that_wait(
    parts: Parts, clock: MovingClock, crashes: int
) -> None:
    parts.receive(new_claim(1), new_claim(2))
    clock.now += UNSTARTED_FOR
    parts.receive(new_claim(3, crashes=crashes))
    parts.receive()  # as after a hint that brings nothing
    parts.lane.release_unstarted()
    assert parts.lane.buffered == 3
    clock.now += 0.001
    parts.lane.release_unstarted()
    assert parts.lane.buffered == 0
    assert sorted(number for number, _ in parts.settler.settled) == [1, 2, 3]


@pytest.mark.parametrize(("slots", "round_trip"), [(4, 0.01), (200, 0.02), (1_000, 5.0)])
async def test_a_fair_lane_does_not_claim_ahead_again_what_it_has_released(
    parts: Parts, clock: MovingClock, slots: int, round_trip: float
) -> None:
    deps: Any = (parts.cursors, parts.leases, parts.suspects, parts.executor, parts.settler, parts.slots)
    lane = Lane(config_of(parts.claims), LaneSettings("fair", slots, fair=True), *deps)
    assert isinstance(lane._buffer, FairBuffer)
    lane._buffer.usual_run = 1e-4
    for number in range(slots + 1):
        parts.leases.add([claim := new_claim(number, tenant="acme")])
        lane._receive([claim])
    for _ in range(slots - 1):
        lane._buffer.popleft()  # the last slot is for other tenants
    lane.round_trip = round_trip
    clock.now += UNSTARTED_FOR + 0.001
    lane.release_unstarted()
    assert lane.buffered == 0 and lane._demand()[0] == 1, "but for the slot that is kept"


async def test_claims_that_are_known_to_be_lost_are_not_kept(parts: Parts) -> None:
    parts.receive(new_claim(1))
    parts.leases.drop([1])
    parts.lane.release_unstarted()
    assert parts.lane.buffered == 0


async def test_a_lane_whose_slots_have_long_jobs_does_not_claim_at_the_pace_of_short_ones(
    parts: Parts, clock: MovingClock
) -> None:
    parts.lane.rate = 50_000.0
    clock.now += module.LOWERED_WITHIN
    parts.lane._measure()
    assert parts.lane.rate == 0.0


async def test_a_lane_that_has_waited_for_jobs_claims_at_the_pace_of_the_last_ones(
    parts: Parts, clock: MovingClock
) -> None:
    parts.run_slot()
    await turns()
    assert parts.lane.idle == 1
    parts.lane.rate = 50_000.0
    clock.now += 60
    parts.lane._measure()
    assert parts.lane.rate == 45_000.0


async def test_no_other_suspect_is_claimed_before_the_outcome_of_the_last_one_is_stored(parts: Parts) -> None:
    suspect, woken = new_claim(1, crashes=1), list[str]()
    parts.suspects.reserve(lambda: None)
    parts.suspects.assign([suspect])
    parts.receive(suspect)
    parts.run_slot()
    await turns()
    assert parts.settler.settled == [(1, Done(None))]
    assert not parts.suspects.reserve(lambda: woken.append("denied")), "if it kills the worker, both would be counted"
    parts.leases.drop([1])
    assert woken == ["denied"] and parts.suspects.reserve(lambda: None)


async def test_a_suspect_that_was_lost_before_its_outcome_leaves_its_place_at_once(parts: Parts) -> None:
    suspect = new_claim(1, crashes=1)
    parts.suspects.reserve(lambda: None)
    parts.suspects.assign([suspect])
    parts.receive(suspect)
    parts.leases.drop([1])
    parts.run_slot()
    await turns()
    assert parts.suspects.reserve(lambda: None)


async def test_a_suspect_is_run_first_and_stops_its_first_handler(parts: Parts) -> None:
    first = parts.slots.add("other", 1)[0]
    first.claim = new_claim(9, job_id=new_claim(2).job_id)
    first.task = asyncio.create_task(forever())
    parts.receive(new_claim(1), new_claim(2, crashes=1))
    assert first.stop is StopReason.LOST
    parts.run_slot()
    await turns()
    assert parts.executor.ran == [2, 1]


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_lane_that_is_closed_releases_what_it_has_and_what_still_comes(parts: Parts) -> None:
    slot = parts.run_slot()
    await turns()
    parts.lane._receive([])
    parts.lane._buffer.append(new_claim(1))
    parts.lane.close()
    await asyncio.wait_for(slot, 5)
    parts.receive(new_claim(2))
    assert (
        parts.settler.settled == [(1, Released(began=False)), (2, Released(began=False))] and parts.executor.ran == []
    )


async def test_a_bug_in_the_executor_counts_the_attempt_and_ends_the_slot(parts: Parts) -> None:
    parts.executor.error = ValueError("a bug of ours")
    parts.receive(new_claim(1))
    with pytest.raises(ValueError, match="a bug of ours"):
        await parts.run_slot()
    ((number, outcome),) = parts.settler.settled
    assert number == 1 and isinstance(outcome, Failed) and not outcome.final


async def test_after_a_failed_claim_what_the_store_made_of_it_is_released(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    parts.cursors.add([("default", 100)])
    parts.claims.script("claim", AWAY, AWAY, [new_claim(2)])
    parts.claims.script("held_by", AWAY, [held(new_claim(1))])
    parts.tasks.append(asyncio.create_task(parts.lane.run_fetcher()))
    monkeypatch.setattr(asyncio, "sleep", pause)
    slot = parts.run_slot()
    for _ in range(50):
        await sleep(0)
    assert parts.settler.released == [1], "its answer was lost"
    assert parts.executor.ran == [2] and not slot.done()
    assert len(parts.claims.asked("held_by")) == 3, "each failure is followed by a look, a failed look by another"
    assert [seconds for seconds in pauses if seconds] == [0.1, 0.2, 0.4]


async def test_a_job_of_a_short_batch_begins_before_the_next_claim_is_sent(parts: Parts) -> None:
    begun: list[int] = []

    async def next_claim(_: Any) -> list[Claim]:
        begun.extend(parts.executor.ran)
        return []

    parts.cursors.add([("default", 100)])
    parts.lane.rate = 1_000.0  # so that more is wanted than its one slot can run
    parts.claims.script("claim", [new_claim(1)], next_claim)
    parts.run_slot()
    await turns()
    parts.tasks.append(asyncio.create_task(parts.lane.run_fetcher()))
    await turns()
    assert len(parts.claims.asked("claim")) >= 2 and begun == [1]


async def test_a_slow_store_does_not_make_a_lane_claim_what_it_would_release(parts: Parts) -> None:
    parts.lane.rate, parts.lane.round_trip = 1_000.0, 5.0
    assert parts.lane._demand() == (500, 0)


async def test_nothing_is_claimed_while_too_many_outcomes_wait(parts: Parts) -> None:
    parts.run_slot()
    await turns()
    parts.settler.pending = 6_000
    assert parts.lane._demand() == (1, 1)
    parts.settler.pending = 6_001
    assert parts.lane._demand() == (0, 1)


async def test_a_lane_claims_ahead_for_as_long_as_a_round_trip_takes(parts: Parts) -> None:
    parts.lane.rate, parts.lane.round_trip = 1_000.0, 0.05
    assert parts.lane._demand() == (100, 0)
    for number in range(50):
        parts.lane._buffer.append(new_claim(number))
    assert parts.lane._demand() == (50, 0), "half of it is done"
    parts.lane._buffer.append(new_claim(51))
    assert parts.lane._demand() == (0, 0)
    parts.lane.rate = 1_000_000.0
    while len(parts.lane._buffer):
        parts.lane._buffer.popleft()
    assert parts.lane._demand() == (3_000, 0), "never more than a batch"


@pytest.mark.parametrize(("rate", "ahead"), [(100.0, 2), (1_000.0, 28), (10_000.0, 1_000), (20_000.0, 2_000)])
async def test_the_shorter_jobs_are_the_more_work_is_claimed_ahead(parts: Parts, rate: float, ahead: int) -> None:
    parts.lane.rate, parts.lane.round_trip = rate, 0.001
    assert parts.lane._demand() == (ahead, 0)


async def test_what_must_not_run_again_after_a_crash_is_claimed_for_free_slots_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a job that was claimed ahead, no store could say whether it had begun."""
    monkeypatch.setattr(GREET, "policy", Policy(retry_crashes=False))
    parts = Parts()
    parts.lane.rate = 1_000_000.0
    assert parts.lane._demand() == (0, 0)
    parts.run_slot()
    await turns()
    assert parts.lane._demand() == (1, 1)
    await parts.end()


@pytest.mark.parametrize(
    ("idle", "rate", "suspect"),
    [(True, 0.0, True), (False, 0.0, False), (False, 3.9, False), (False, 4.0, True)],
    ids=["idle", "busy", "slow", "fast"],
)
async def test_a_suspect_is_claimed_where_a_slot_is_free_or_soon_will_be(
    parts: Parts, idle: bool, rate: float, suspect: bool
) -> None:
    parts.cursors.add([("default", 100)])
    parts.lane.rate = rate
    if idle:
        parts.run_slot()
        await turns()
    else:
        parts.lane._demand = lambda: (1, 0)  # type: ignore[method-assign]
    fetching = asyncio.create_task(parts.lane.run_fetcher())
    await turns()
    fetching.cancel()

    assert [request.suspects for request in parts.claims.asked("claim")][:1] == [int(suspect)]
