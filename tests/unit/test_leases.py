"""A worker holds a claim for as long as it knows that its lease was renewed, and not a moment longer."""

import asyncio
import faulthandler
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from worker_parts import AWAY, MovingClock, ScriptedRenewer, clock, config_of, new_claim

from dutiful.core.errors import StoreAway
from dutiful.core.job import Claim
from dutiful.store.claims import Renewal
from dutiful.worker import leases as module
from dutiful.worker.leases import CHECK_EVERY, EXIT_STUCK, LeaseRenewalThread, Leases
from dutiful.worker.slots import CurrentSlot, Slot, Slots, StopReason

__all__ = ["clock"]
LEASE = 30.0


@pytest.fixture
def leases(clock: MovingClock) -> Leases:
    return Leases()


class Turns:
    """Takes the place of the event that ends the thread: each wait moves the clock, the last one ends it."""

    def __init__(self, clock: MovingClock, seconds: float) -> None:
        self._clock = clock
        self._end = clock.now + seconds
        self.waits: list[float] = []
        self.at_turn: Callable[[], None] = lambda: None

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self._clock.now += seconds
        self.at_turn()
        return self._clock.now > self._end


class Renewing:
    """A renewal thread without its thread: the test makes its turns."""

    def __init__(self, clock: MovingClock, leases: Leases, **settings: Any) -> None:
        self.clock = clock
        self.leases = leases
        self.renewer = ScriptedRenewer()
        self.slots = Slots()
        self.current = CurrentSlot()
        store = SimpleNamespace(renewer=self.renewer.open)
        self.thread = LeaseRenewalThread(config_of(store, **settings), leases, self.slots, self.current)

    def turn(self, seconds: float) -> Turns:
        turns = Turns(self.clock, seconds)
        self.thread._stop = turns  # type: ignore[assignment]
        self.thread._run()
        return turns


async def forever() -> None:
    await asyncio.Event().wait()


class Renewals(Renewing):
    """The same, on the event loop of the test."""

    def __init__(self, clock: MovingClock, leases: Leases, **settings: Any) -> None:
        super().__init__(clock, leases, **settings)
        self.thread._loop = asyncio.get_running_loop()

    def run_in_slot(self, claim: Claim) -> Slot:
        (slot,) = self.slots.add("general", 1)
        slot.claim = claim
        slot.task = asyncio.get_running_loop().create_task(forever())
        return slot

    def renew(self, *, seconds: float = 10.0) -> None:
        self.thread._renew(self.renewer, self.leases.snapshot(), seconds)  # type: ignore[arg-type]


def numbers(leases: Leases) -> set[int]:
    return {claim.claim_id for claim, _ in leases.snapshot()}


# --- what is held


def test_a_claim_is_valid_until_its_lease_has_ended(leases: Leases, clock: MovingClock) -> None:
    leases.add([new_claim(1)])
    claimed = clock.now
    assert leases.valid_since(1, claimed + LEASE - 0.001, LEASE) == claimed
    assert leases.valid_since(1, claimed + LEASE, LEASE) is None, "another worker may have it now"
    assert leases.valid_since(2, claimed, LEASE) is None, "it is not held at all"


def test_a_renewed_claim_is_valid_for_another_lease_and_was_made_when_it_was(
    leases: Leases, clock: MovingClock
) -> None:
    leases.add([new_claim(1)])
    claimed = clock.now
    ((_, batch),) = leases.snapshot()
    batch.renewed += 20
    assert leases.valid_since(1, claimed + LEASE + 19, LEASE) == claimed
    assert leases.valid_since(1, claimed + LEASE + 20, LEASE) is None


def test_a_dropped_claim_is_not_held_and_others_are(leases: Leases) -> None:
    leases.add([new_claim(1), new_claim(2)])
    leases.drop([1, 7])
    assert leases.claim(1) is None and leases.claim(2) == new_claim(2)
    assert numbers(leases) == {2}


async def test_claims_under_way_are_waited_for_until_their_answer_is_added(leases: Leases) -> None:
    await leases.wait_for_claims()  # none: at once
    with leases.claiming():
        waiting = asyncio.create_task(leases.wait_for_claims())
        await asyncio.sleep(0)
        assert not waiting.done()
        leases.add([new_claim(1)])
    await waiting
    assert leases.claim(1) is not None
    await leases.wait_for_claims()


async def test_a_claim_that_fails_is_waited_for_no_more(leases: Leases) -> None:
    with pytest.raises(ValueError, match="away"), leases.claiming():
        raise ValueError("away")
    await asyncio.wait_for(leases.wait_for_claims(), 5)


# --- renewing


async def test_a_renewal_that_failed_is_not_counted_as_done(leases: Leases, clock: MovingClock) -> None:
    renewals = Renewals(clock, leases)
    leases.add([new_claim(1)])
    claimed = clock.now
    clock.now += 10
    renewals.renewer.answers["renew"].append(AWAY)

    with pytest.raises(type(AWAY)):
        renewals.renew()

    assert leases.valid_since(1, claimed + LEASE, LEASE) is None, "the store still has the old end of the lease"
    renewals.renew()
    assert renewals.renewer.calls == [("renew", [1]), ("renew", [1]), ("check", [])], "it is tried again at once"
    assert leases.valid_since(1, clock.now + LEASE - 1, LEASE) == claimed


async def test_a_lease_is_renewed_from_a_third_of_its_length_on_and_checked_before(
    leases: Leases, clock: MovingClock
) -> None:
    renewals = Renewals(clock, leases)
    leases.add([new_claim(1)])
    clock.now += 0.5
    leases.add([new_claim(2)])
    clock.now += 9.5
    renewals.renew()
    assert renewals.renewer.calls == [("renew", [1]), ("check", [2])]
    assert renewals.renewer.leases == [timedelta(seconds=30)]


async def test_a_cancel_is_seen_at_the_next_check_and_not_only_at_the_next_renewal(
    leases: Leases, clock: MovingClock
) -> None:
    renewals = Renewals(clock, leases)
    claim = new_claim(1)
    leases.add([claim])
    slot = renewals.run_in_slot(claim)
    clock.now += 1  # far too young to be renewed
    renewals.renewer.answers["check"].append(Renewal(cancel=frozenset({claim.job_id})))
    renewals.renew()
    await asyncio.sleep(0)
    assert slot.stop is StopReason.CANCEL


@pytest.mark.parametrize("verb", ["renew", "check"])
async def test_a_lost_claim_stops_its_handler_and_no_other(leases: Leases, clock: MovingClock, verb: str) -> None:
    renewals = Renewals(clock, leases)
    claims = [new_claim(number) for number in (1, 2, 3)]
    leases.add(claims)
    running, other = renewals.run_in_slot(claims[0]), renewals.run_in_slot(claims[2])
    clock.now += 10 if verb == "renew" else 1
    renewals.renewer.answers[verb].append(Renewal(lost=frozenset({1, 2})))
    renewals.renew()
    await asyncio.sleep(0)
    assert (running.stop, other.stop) == (StopReason.LOST, None)
    assert numbers(leases) == {1, 3}, "a buffered one will never start; a running one is settled, and then dropped"


async def test_leases_are_checked_every_second_and_renewed_every_third(leases: Leases, clock: MovingClock) -> None:
    renewals = Renewals(clock, leases)
    began = clock.now
    leases.add([new_claim(1)])
    turns = renewals.turn(21)
    assert set(turns.waits) == {CHECK_EVERY}
    renewed = [n + 1 for n, (verb, numbers) in enumerate(calls(renewals)) if verb == "renew" and numbers]
    checked = [n + 1 for n, (verb, numbers) in enumerate(calls(renewals, "check")) if numbers]
    assert renewed == [10, 20]
    assert checked == [n for n in range(1, 22) if n not in renewed and n % 10 != 0]
    assert (renewals.renewer.opened, renewals.renewer.closed) == (1, 1)
    assert leases.valid_since(1, began + 49, LEASE) == began


def calls(renewals: Renewals, verb: str = "renew") -> list[tuple[str, list[int]]]:
    return [call for call in renewals.renewer.calls if call[0] == verb]


async def test_a_short_lease_is_looked_at_twice_in_each_third(leases: Leases, clock: MovingClock) -> None:
    renewals = Renewals(clock, leases, lease=timedelta(seconds=1.5))
    leases.add([new_claim(1)])
    turns = renewals.turn(1.6)
    assert set(turns.waits) == {0.25}
    assert [numbers for _, numbers in calls(renewals)] == [[1], [1], [1]], "at 0.5, 1.0 and 1.5 s"


async def test_without_claims_no_connection_is_opened(leases: Leases, clock: MovingClock) -> None:
    renewals = Renewals(clock, leases)
    renewals.turn(5)
    assert (renewals.renewer.opened, renewals.renewer.closed, renewals.renewer.calls) == (0, 0, [])


@pytest.mark.parametrize("error", [AWAY, ValueError("a bug")])
async def test_a_failed_renewal_does_not_end_the_renewals(leases: Leases, clock: MovingClock, error: Exception) -> None:
    renewals = Renewals(clock, leases)
    leases.add([new_claim(1)])
    renewals.renewer.answers["renew"].extend([Renewal()] * 9 + [error])  # those before renew nothing
    renewals.turn(12)
    assert [numbers for _, numbers in calls(renewals)][8:11] == [[], [1], [1]]
    assert renewals.renewer.closed == 1


async def test_the_thread_ends_when_it_is_closed(leases: Leases) -> None:
    renewing = Renewing(MovingClock(), leases)
    renewing.thread.start()
    threads = [one for one in threading.enumerate() if one.name == "dutiful leases"]
    await asyncio.to_thread(renewing.thread.close)
    assert threads and not any(one.is_alive() for one in threads) and all(one.daemon for one in threads)


async def test_the_thread_calls_the_event_loop_that_started_it(leases: Leases) -> None:
    renewing = Renewing(MovingClock(), leases)
    renewing.thread.start()
    called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    renewing.thread._call(called.set_result, None)
    await asyncio.wait_for(called, 10)
    await asyncio.to_thread(renewing.thread.close)


async def test_a_close_waits_until_the_connection_is_closed(leases: Leases, clock: MovingClock) -> None:
    renewing = Renewing(clock, leases, lease=timedelta(seconds=1))
    leases.add([new_claim(1)])
    clock.now += 1
    renewed, closing, gate, order = threading.Event(), threading.Event(), threading.Event(), list[str]()

    def renew(tokens: Any, lease: Any) -> Renewal:
        renewed.set()
        return Renewal()

    def close_connection() -> None:
        closing.set()
        gate.wait(10)
        order.append("the connection")

    def close_thread() -> None:
        renewing.thread.close()
        order.append("the thread")

    renewing.renewer.renew = renew  # type: ignore[method-assign]
    renewing.renewer.close = close_connection  # type: ignore[method-assign]
    renewing.thread.start()
    await asyncio.to_thread(renewed.wait, 10)
    stopping = threading.Thread(target=close_thread)
    stopping.start()
    await asyncio.to_thread(closing.wait, 10)
    gate.set()
    await asyncio.to_thread(stopping.join, 10)
    assert order == ["the connection", "the thread"]


async def test_an_outage_is_logged_when_a_renewal_fails_and_when_one_succeeds_again(
    leases: Leases, clock: MovingClock, caplog: pytest.LogCaptureFixture
) -> None:
    renewals = Renewals(clock, leases)
    leases.add([new_claim(1)])
    renewals.renewer.answers["renew"].extend([StoreAway("no route"), StoreAway("no route"), Renewal()])
    renewals.turn(5)
    messages = [record.getMessage() for record in caplog.records]
    assert [message[:22] for message in messages] == ["the database is away, ", "the database is back a"], messages


# --- the watchdog


class Ended(Exception):
    """In the place of the end of the process."""


class Stuck(Renewing):
    """A job holds the event loop: past its timeout of 60 s, the grace of 5 s, and without an answer."""

    def __init__(self, clock: MovingClock, leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(clock, leases)
        self.codes: list[int] = []
        self.dumped: list[dict[str, Any]] = []
        monkeypatch.setattr(os, "_exit", self._exit)
        monkeypatch.setattr(faulthandler, "dump_traceback", lambda **options: self.dumped.append(options))
        self.guilty = new_claim(1)
        leases.add([self.guilty, new_claim(2), new_claim(3, job_id=self.guilty.job_id)])
        (slot,) = self.slots.add("general", 1)
        slot.claim, slot.kind, slot.deadline = self.guilty, Named(), clock.now + 60  # type: ignore[assignment]
        self.current.slot = slot
        clock.now += 65
        self.thread._unanswered = 2

    def _exit(self, code: int) -> None:
        self.codes.append(code)
        raise Ended

    def look(self) -> None:
        try:
            self.thread._check_event_loop(None)
        except Ended:
            assert self.codes == [EXIT_STUCK]


class Named:
    name = "greet"


@pytest.fixture
def stuck(clock: MovingClock, leases: Leases, monkeypatch: pytest.MonkeyPatch) -> Stuck:
    return Stuck(clock, leases, monkeypatch)


def test_a_job_that_holds_the_event_loop_ends_the_process_and_the_others_are_released(
    stuck: Stuck, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck.look()
    assert stuck.codes == [70], "as the guide says"
    assert stuck.dumped == [{"all_threads": True}], "the job may have started a thread that holds the loop"
    assert stuck.renewer.calls == [("release", [2])]
    assert "holds the event loop past its timeout" in capsys.readouterr().err


def test_the_process_ends_even_if_the_others_cannot_be_released(stuck: Stuck) -> None:
    stuck.renewer.answers["release"].append(AWAY)
    stuck.look()
    assert stuck.codes == [EXIT_STUCK]


def test_within_its_grace_a_job_may_hold_the_event_loop(stuck: Stuck) -> None:
    stuck.clock.now -= 0.001
    stuck.look()
    assert stuck.codes == []


def test_an_event_loop_that_answered_lately_is_not_stuck(stuck: Stuck) -> None:
    stuck.thread._answer()
    for _ in range(2):
        stuck.look()
        assert stuck.codes == []
        stuck.clock.now += 3600  # this process was stopped, within a step of the handler
    stuck.look()
    assert stuck.codes == [EXIT_STUCK]


@pytest.mark.parametrize("missing", ["slot", "deadline", "claim", "kind"])
def test_without_a_job_that_is_late_the_process_goes_on(stuck: Stuck, missing: str) -> None:
    if missing == "slot":
        stuck.current.slot = None
    else:
        setattr(stuck.current.slot, missing, None)
    stuck.look()
    assert stuck.codes == []


async def test_the_event_loop_is_asked_at_every_turn(leases: Leases, clock: MovingClock) -> None:
    renewals = Renewals(clock, leases)
    renewals.turn(1)
    assert renewals.thread._unanswered == 1
    await asyncio.sleep(0)
    assert renewals.thread._unanswered == 0


async def test_a_closed_loop_is_not_called(leases: Leases, clock: MovingClock) -> None:
    renewing = Renewing(clock, leases)
    renewing.thread._call(lambda: None)  # it was never started
    loop = asyncio.new_event_loop()
    loop.close()
    renewing.thread._loop = loop
    renewing.thread._call(lambda: None)


def test_a_token_names_the_job_and_the_claim() -> None:
    claim = new_claim(7, job_id=UUID(int=3))
    token = module._token((claim, module.ClaimBatch()))
    assert (token.job_id, token.claim_id) == (UUID(int=3), 7)
