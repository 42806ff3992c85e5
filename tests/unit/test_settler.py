"""Every outcome is stored once, counted once, and kept until the store has answered."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from worker_parts import AWAY, MovingClock, ScriptedClaims, after, clock, held, new_claim

from dutiful.core.errors import DataRefused, StoreAway
from dutiful.core.job import Claim
from dutiful.core.outcome import Cancelled, Done, Failed, Lost, Outcome, Released, Snoozed
from dutiful.core.states import State
from dutiful.delivery.base import EVERYWHERE
from dutiful.store.claims import Refusal, RefusalReason
from dutiful.worker import settler as module
from dutiful.worker.counters import AttemptCounters, Timing
from dutiful.worker.executor.outcomes import Settlement
from dutiful.worker.leases import Leases
from dutiful.worker.settler import BATCH, FIRST_RETRY, FLOW, RETRY_LOCKED, SettleBatch, Settler

__all__ = ["clock"]
TIMING = Timing(0.5, 2.0)
OOPS = {"type": "ValueError", "message": "oops"}
WEBHOOK = '{"webhook": {"url": "https://shop.example"}}'
SLEEP = asyncio.sleep  # the real one
REFUSED = DataRefused("the database does not accept it")


class NotedMaintenance:
    def __init__(self) -> None:
        self.wants_jobs = False
        self.scheduled: list[timedelta] = []
        self.ended = 0
        self.freed = 0
        self.awaited: list[int] = []

    def job_scheduled(self, delay: timedelta) -> None:
        self.scheduled.append(delay)

    def jobs_ended(self) -> None:
        self.ended += 1

    def slots_freed(self, jobs: Iterable[UUID]) -> None:
        self.freed += len(list(jobs))

    def awaited_ended(self, job_ids: Iterable[UUID]) -> None:
        self.awaited += [job_id.int for job_id in job_ids]


class NotedDelivery:
    def __init__(self) -> None:
        self.hints: list[Any] = []

    def hint(self, levels: Any) -> None:
        self.hints.append(levels)


class Settling:
    def __init__(self, kinds: Mapping[str, Any] | None = None, limits: Any = None) -> None:
        self.claims = ScriptedClaims()
        self.leases = Leases()
        self.counters = AttemptCounters()
        self.maintenance = NotedMaintenance()
        self.delivery = NotedDelivery()
        self.settler = Settler(
            self.claims,  # type: ignore[arg-type]
            kinds or {},
            self.leases,
            lambda low, high: low,
            self.counters,
            self.delivery,  # type: ignore[arg-type]
            self.maintenance,  # type: ignore[arg-type]
            limits=limits,
        )
        self.pauses: list[float] = []

    def settle(self, number: int, outcome: Settlement, timing: Timing | None = TIMING, **fields: Any) -> Claim:
        claim = new_claim(number, **fields)
        self.leases.add([claim])
        self.settler.settle(claim, outcome, timing)
        return claim

    def counted(self) -> dict[str, int]:
        return {one.outcome: one.count for one in self.counters._take()}

    def stored(self, verb: str = "complete") -> list[list[int]]:
        return [[one.claim_id for one in given] for given in self.claims.asked(verb)]

    def leased(self) -> set[int]:
        return {claim.claim_id for claim, _ in self.leases.snapshot()}


@pytest.fixture
async def settling(clock: MovingClock, monkeypatch: pytest.MonkeyPatch) -> Settling:
    one = Settling()

    async def pause(seconds: float) -> None:
        one.pauses.append(seconds)
        clock.now += seconds
        await SLEEP(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    return one


@asynccontextmanager
async def running(settler: Settler) -> AsyncIterator[None]:
    """The settler's own task while the block runs; it ends by itself once everything is stored."""
    task = asyncio.create_task(settler.run())
    yield
    settler.close()
    await asyncio.wait_for(task, 10)


def done(settling: Settling, first: int, count: int) -> None:
    for number in range(first, first + count):
        settling.settle(number, Done(None))


async def flowing(settling: Settling, count: int = FLOW) -> None:
    """Stores one outcome; while that is under way, as many come in as make a flow, or more."""

    async def meanwhile(given: Any) -> list[Refusal]:
        done(settling, 2, count)
        return []

    settling.claims.script("complete", meanwhile)
    settling.settle(1, Done(None))
    await turns(10)


async def test_while_many_outcomes_come_in_they_are_gathered(
    settling: Settling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GATHER", 3_600.0)
    async with running(settling.settler):
        await flowing(settling)
        assert settling.stored() == [[1]], "the others wait for more"
        done(settling, 1_000, BATCH // 2 - FLOW - 1)
        await turns(10)
        assert settling.stored() == [[1]], "for one more"

        async def meanwhile(given: Any) -> list[Refusal]:
            done(settling, 5_000, FLOW)
            return []

        settling.claims.script("complete", meanwhile)
        done(settling, 3_000, 1)
        await turns(10)
        assert [len(batch) for batch in settling.stored()] == [1, BATCH // 2], "and the next ones wait again"


@pytest.mark.parametrize(("came", "waits"), [(BATCH // 2 - 1, True), (BATCH // 2, False)])
async def test_what_has_come_in_meanwhile_waits_for_more_unless_it_is_half_a_batch(
    settling: Settling, monkeypatch: pytest.MonkeyPatch, came: int, waits: bool
) -> None:
    monkeypatch.setattr(module, "GATHER", 3_600.0)
    async with running(settling.settler):
        await flowing(settling, came)
        assert [len(batch) for batch in settling.stored()] == ([1] if waits else [1, came])


@pytest.mark.parametrize("end", ["flush", "close"])
async def test_nothing_is_gathered_for_longer_once_the_worker_ends(
    settling: Settling, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(module, "GATHER", 3_600.0)
    async with running(settling.settler):
        await flowing(settling)
        if end == "flush":
            await asyncio.wait_for(settling.settler.flush(), 10)
    assert [len(batch) for batch in settling.stored()] == [1, FLOW]


async def test_a_flow_that_ends_is_stored_after_a_moment(settling: Settling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER", 0.001)
    async with running(settling.settler):
        await flowing(settling)
        while len(settling.stored()) < 2:
            await SLEEP(0.001)
    assert [len(batch) for batch in settling.stored()] == [1, FLOW]


def locked(*claims: Claim) -> list[Refusal]:
    return [Refusal(claim.job_id, claim.claim_id, RefusalReason.LOCKED) for claim in claims]


def refused(reason: RefusalReason, *claims: Claim) -> list[Refusal]:
    return [Refusal(claim.job_id, claim.claim_id, reason) for claim in claims]


# --- storing


async def test_outcomes_that_come_together_are_stored_together(settling: Settling) -> None:
    for number in (1, 2):
        settling.settle(number, Done(f"{number}"))
    settling.settle(3, Failed(OOPS, final=True))
    assert settling.settler.pending == 3 and settling.settler.unsettled == {1, 2, 3}
    async with running(settling.settler):
        await settling.settler.flush()
        assert settling.settler.pending == 0 and settling.settler.unsettled == set()
    assert (settling.stored(), settling.stored("settle")) == ([[1, 2]], [[3]])
    assert [one.result for one in settling.claims.asked("complete")[0]] == ["1", "2"]
    assert settling.leased() == set() and settling.settler.settled_count == 3
    times = {one.outcome: (one.count, one.run_microseconds) for one in settling.counters._take()}
    assert times == {"completed": (2, 4_000_000), "failed": (1, 2_000_000)}
    assert settling.pauses == [] and settling.claims.skipped == [False, False]


async def test_completions_that_are_stored_are_not_repeated_when_the_changes_beside_them_fail(
    settling: Settling,
) -> None:
    settling.settle(1, Done(None))
    settling.settle(2, Failed(OOPS, final=True))
    settling.claims.script("settle", AWAY)
    async with running(settling.settler):
        await settling.settler.flush()
    assert (settling.stored(), settling.stored("settle")) == ([[1]], [[2], [2]])
    assert settling.settler.settled_count == 2
    assert settling.counted() == {"completed": 1, "failed": 1}


async def test_outcomes_are_kept_in_order_while_the_store_is_away(settling: Settling) -> None:
    settling.settle(1, Done(None))
    settling.settle(2, Failed(OOPS, final=True))

    async def away_while_more_come(given: Any) -> Any:
        assert settling.settler.unsettled == {1, 2}, "what is under way is not known to be stored"
        settling.settle(3, Done(None))
        settling.settle(4, Failed(OOPS, final=True))
        return AWAY

    settling.claims.script("complete", away_while_more_come, AWAY)
    async with running(settling.settler):
        await settling.settler.flush()
        assert settling.leased() == set()
    assert settling.stored() == [[1], [1, 3], [1, 3]] and settling.stored("settle") == [[2, 4]]
    assert settling.pauses == [FIRST_RETRY, 2 * FIRST_RETRY]
    assert settling.claims.skipped == [False, True, True, True], "perhaps a locked lease was in the way"


async def test_the_pause_grows_to_a_limit_and_starts_again_after_a_success(settling: Settling, caplog: Any) -> None:
    settling.claims.script("complete", *[StoreAway("no connection")] * 7)
    settling.settle(1, Done(None))
    async with running(settling.settler):
        await settling.settler.flush()
        begun, over = (record.getMessage() for record in caplog.records)
        assert "is away, and what needs it waits" in begun and "is back after" in over
        assert settling.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
        settling.claims.script("complete", AWAY)
        settling.settle(2, Done(None))
        await settling.settler.flush()
    assert settling.pauses[7:] == [FIRST_RETRY]
    assert settling.claims.skipped == [False, *[True] * 7, False, True]


async def test_at_most_a_batch_is_stored_at_once(settling: Settling) -> None:
    with patch.object(module, "BATCH", 2):
        for number in range(1, 6):
            settling.settle(number, Done(None))
        for number in range(6, 9):
            settling.settle(number, Failed(OOPS, final=True))
        async with running(settling.settler):
            await settling.settler.flush()
    assert settling.stored() == [[1, 2], [3, 4], [5]] and settling.stored("settle") == [[6, 7], [8]]


async def test_a_flush_waits_for_what_is_under_way(settling: Settling) -> None:
    gate = asyncio.Event()
    settling.claims.script("complete", after(gate, []))
    async with running(settling.settler):
        await asyncio.wait_for(settling.settler.flush(), 5)  # nothing: at once
        settling.settle(1, Done(None))
        await turns()
        assert settling.settler.pending == 0 and settling.settler.unsettled == {1}
        flush = asyncio.create_task(settling.settler.flush())
        await turns()
        assert not flush.done()
        gate.set()
        await asyncio.wait_for(flush, 5)
        assert settling.settler.unsettled == set()


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await SLEEP(0)


async def test_a_settler_that_is_closed_stores_the_rest_first(settling: Settling) -> None:
    settling.settle(1, Done(None))
    settling.claims.script("complete", AWAY)
    settling.settler.close()
    await asyncio.wait_for(settling.settler.run(), 5)
    assert settling.stored() == [[1], [1]]


async def test_a_state_that_the_handler_stored_itself_is_only_counted(settling: Settling) -> None:
    settling.settle(1, State.COMPLETED)
    assert settling.settler.pending == 0 and settling.leased() == set()
    (counted,) = settling.counters._take()
    assert (counted.outcome, counted.run_microseconds) == ("completed", 2_000_000) and settling.claims.calls == []


# --- data that the database refuses


async def test_a_result_that_is_refused_fails_its_own_job_alone(settling: Settling) -> None:
    for number in range(1, 5):
        settling.settle(number, Done(f'"{number}"'))

    async def check(given: Any) -> Any:
        return REFUSED if any(one.claim_id == 3 for one in given) else []

    settling.claims.script("complete", *[check] * 9)
    async with running(settling.settler):
        await settling.settler.flush()
    assert settling.stored() == [[1, 2, 3, 4], [1, 2], [3, 4], [3], [4]]
    ((change,),) = settling.claims.asked("settle")
    assert (change.claim_id, change.to, change.errors[0]["type"]) == (3, State.FAILED, "ResultRefused")
    assert "the database does not accept it" in change.errors[0]["message"]
    assert settling.counted() == {"completed": 3, "failed": 1}
    assert settling.settler.settled_count == 4 and settling.leased() == set()


async def test_a_refused_result_of_a_lost_claim_is_dropped(settling: Settling) -> None:
    settling.settle(1, Done('"1"'))
    settling.leases.drop([1])
    settling.claims.script("complete", REFUSED)
    async with running(settling.settler):
        await settling.settler.flush()
    assert settling.claims.asked("settle") == []


async def test_an_error_that_is_refused_is_replaced_and_the_others_are_stored(settling: Settling) -> None:
    odd = {**OOPS, "class": "transient"}
    for number, error in ((1, OOPS), (2, odd), (3, OOPS)):
        settling.settle(number, Failed(error, ValueError, more=({**OOPS, "class": "non_retryable"},)))

    async def check(given: Any) -> Any:
        return REFUSED if any(one.claim_id == 2 and one.errors[0] == odd for one in given) else []

    settling.claims.script("settle", *[check] * 9)
    async with running(settling.settler):
        await settling.settler.flush()
    assert settling.stored("settle") == [[1, 2, 3], [1], [2, 3], [2], [2], [3]]
    replaced = settling.claims.asked("settle")[4][0]
    assert (replaced.to, replaced.result) == (State.SCHEDULED, None)
    assert (replaced.errors[0]["type"], replaced.errors[0]["class"]) == ("ErrorRefused", "transient")
    assert settling.counted() == {"retried": 3}


async def test_a_change_without_an_error_that_is_refused_is_stored_with_one_that_says_so(settling: Settling) -> None:
    settling.settle(1, Snoozed(timedelta(seconds=5)))
    settling.claims.script("settle", REFUSED)
    async with running(settling.settler):
        await settling.settler.flush()
    (change,) = settling.claims.asked("settle")[1]
    assert change.errors[0]["class"] == "retryable"


# --- leases that a user's transaction holds


async def test_a_locked_lease_is_set_aside_and_tried_again_later(settling: Settling, clock: MovingClock) -> None:
    first, second = settling.settle(1, Done(None)), settling.settle(2, Failed(OOPS, final=True))
    settling.settle(3, Done(None))
    settling.settle(4, Failed(OOPS, final=True))
    settling.claims.script("complete", locked(first), [], locked(first))
    settling.claims.script("settle", locked(second), locked(second))
    async with running(settling.settler):
        await until(lambda: settling.settler.settled_count == 2)
        assert settling.leased() == {1, 2} and settling.settler.pending == 2
        assert settling.settler.unsettled == {1, 2}
        settling.settle(5, Done(None))
        await until(lambda: settling.settler.settled_count == 3)
        assert settling.stored() == [[1, 3], [5]], "not tried again before its time"
        for _ in range(2):
            clock.now += RETRY_LOCKED
            settling.settler._wake.set()
            await turns(20)
        assert settling.leased() == set()
        await asyncio.wait_for(settling.settler.flush(), 5)
    assert settling.stored() == [[1, 3], [5], [1], [1]] and settling.stored("settle") == [[2, 4], [2], [2]]
    assert settling.claims.skipped == [False, False, False, True, True, True, True]
    assert settling.counted() == {"completed": 3, "failed": 2}


async def test_a_locked_lease_is_logged_once(settling: Settling, clock: MovingClock, caplog: Any) -> None:
    claim = settling.settle(1, Done(None))
    settling.claims.script("complete", locked(claim), locked(claim), locked(claim))
    async with running(settling.settler):
        for _ in range(4):
            await turns(10)
            clock.now += RETRY_LOCKED
            settling.settler._wake.set()
        await asyncio.wait_for(settling.settler.flush(), 5)
        assert caplog.text.count("1 outcomes wait for transactions") == 1
        settling.claims.script("complete", locked(settling.settle(2, Done(None))))
        await turns(10)
        clock.now += RETRY_LOCKED
        await asyncio.wait_for(settling.settler.flush(), 5)
    assert caplog.text.count("1 outcomes wait for transactions") == 2, "another one is news"


async def test_a_flush_tries_locked_leases_again_whose_time_has_come(
    settling: Settling, clock: MovingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_LOCKED", 3_600.0)
    settling.claims.script("complete", locked(settling.settle(1, Done(None))))
    async with running(settling.settler):
        await turns(10)
        clock.now += 3_600
        await asyncio.wait_for(settling.settler.flush(), 5)
    assert settling.stored() == [[1], [1]]


async def test_without_a_signal_locked_leases_are_tried_again_after_a_while(
    settling: Settling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_LOCKED", 0.001)  # real time: the wait itself is what is tested
    monkeypatch.setattr(module, "time", __import__("time"))
    claim = settling.settle(1, Done(None))
    settling.claims.script("complete", locked(claim))
    async with running(settling.settler):
        await until(lambda: settling.settler.settled_count == 1)
    assert settling.stored() == [[1], [1]]


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not look():
            await SLEEP(0.001)


# --- claims that are lost, and cancellations


async def test_a_lost_completion_is_not_counted_and_is_logged(settling: Settling, caplog: Any) -> None:
    lost, *repeated = (settling.settle(number, Done(None)) for number in (1, 2, 3))
    refusals = [*refused(RefusalReason.LOST, lost), *refused(RefusalReason.REPEATED, *repeated)]
    settling.claims.script("complete", refusals)
    async with running(settling.settler):
        await settling.settler.flush()
    assert settling.counted() == {"completed": 2} and settling.leased() == set()
    (logged,) = (record for record in caplog.records if "its claim was lost" in record.getMessage())
    assert logged.kind == "greet" and "0000195" in logged.getMessage(), "with what is known of the job"


async def test_a_lost_failure_is_not_counted_and_a_repeated_one_is(settling: Settling, caplog: Any) -> None:
    lost, *repeated = (settling.settle(number, Failed(OOPS, final=True)) for number in (1, 2, 3))
    settling.claims.script("settle", [*refused(RefusalReason.LOST, lost), *refused(RefusalReason.REPEATED, *repeated)])
    async with running(settling.settler):
        await settling.settler.flush()
    assert settling.counted() == {"failed": 2} and not settling.counters._ended
    assert caplog.text.count("its claim was lost, so this outcome is discarded") == 1


async def test_a_lost_attempt_that_a_rescuer_has_stored_is_counted_by_the_rescuer(settling: Settling) -> None:
    claim = settling.settle(1, Lost())
    settling.claims.script("settle", refused(RefusalReason.REPEATED, claim))
    async with running(settling.settler):
        await settling.settler.flush()
    assert settling.counted() == {}


async def test_a_job_that_would_live_on_though_it_is_to_be_cancelled_is_cancelled(settling: Settling) -> None:
    claim = settling.settle(1, Failed(OOPS, ValueError))
    settling.settle(2, Failed(OOPS, ValueError))
    settling.claims.script("settle", refused(RefusalReason.CANCEL_REQUESTED, claim))
    async with running(settling.settler):
        await settling.settler.flush()
    first, (again,) = settling.claims.asked("settle")
    assert [one.to for one in first] == [State.SCHEDULED] * 2
    assert (again.claim_id, again.to) == (1, State.CANCELLED)
    assert settling.leased() == set()
    assert settling.counted().get("cancelled") == 1
    assert len(settling.maintenance.scheduled) == 1, "that of the other one"


async def test_a_completion_of_a_job_that_is_to_be_cancelled_is_stored_as_cancelled(settling: Settling) -> None:
    unwanted, _ = settling.settle(1, Done('"1"')), settling.settle(2, Done('"2"'))
    settling.claims.script("complete", refused(RefusalReason.CANCEL_REQUESTED, unwanted))
    async with running(settling.settler):
        await settling.settler.flush()
    ((change,),) = settling.claims.asked("settle")
    assert (change.claim_id, change.to) == (1, State.CANCELLED)
    times = {one.outcome: (one.count, one.run_microseconds) for one in settling.counters._take()}
    assert times == {"completed": (1, 2_000_000), "cancelled": (1, 2_000_000)}
    assert settling.leased() == set() and settling.settler.settled_count == 2


# --- what others are notified of


async def test_a_released_job_is_hinted_at_everywhere_because_it_keeps_its_place(settling: Settling) -> None:
    settling.settle(1, Released(), None)
    settling.settle(2, Snoozed(timedelta(0)), queue="mail", priority=7)
    settling.settle(3, Snoozed(timedelta(0)), queue="")
    settling.settle(4, Failed(OOPS, final=True))
    async with running(settling.settler):
        await settling.settler.flush()
    assert settling.delivery.hints == [EVERYWHERE, frozenset({("mail", 7)}), EVERYWHERE]


async def test_maintenance_is_told_when_a_retry_is_due(settling: Settling) -> None:
    settling.settle(1, Snoozed(timedelta(seconds=5)))
    settling.settle(2, Failed(OOPS, final=True))
    async with running(settling.settler):
        await settling.settler.flush()
    assert settling.maintenance.scheduled == [timedelta(seconds=5)]


@pytest.mark.parametrize("outcome", [Done(None), Failed(OOPS, final=True)])
async def test_maintenance_is_told_of_the_end_of_jobs_that_a_webhook_waits_for(
    settling: Settling, outcome: Outcome
) -> None:
    async with running(settling.settler):
        settling.settle(1, outcome)
        await settling.settler.flush()
        assert settling.maintenance.ended == 0, "no caller waits for it"
        settling.settle(2, outcome, options=WEBHOOK)
        await settling.settler.flush()
        assert settling.maintenance.ended == 1
        settling.maintenance.wants_jobs = True
        settling.settle(3, outcome)
        settling.settle(4, Snoozed(timedelta(seconds=5)))
        await settling.settler.flush()
        assert settling.maintenance.ended == 2, "one of them has ended"
    webhooks = [one.webhook for given in settling.claims.asked("complete") for one in given]
    assert webhooks in ([], [False, True, False])


async def test_a_failure_is_logged_with_what_comes_next(settling: Settling, caplog: Any) -> None:
    caplog.set_level(logging.WARNING)
    settling.settle(1, Failed(OOPS, ValueError, more=({"type": "KeyError", "message": "of an item"},)), attempt=2)
    settling.settle(2, Failed(OOPS, final=True))
    settling.settle(3, Snoozed(timedelta(seconds=5)))
    async with running(settling.settler):
        await settling.settler.flush()
    first, second = (record.getMessage() for record in caplog.records)
    assert "(greet) failed at attempt 2 of 5: ValueError: oops; it is tried again in 2s" in first
    assert second.endswith("it is a dead letter now")


# --- releasing


async def test_what_has_no_outcome_yet_is_released_and_the_rest_is_left(settling: Settling) -> None:
    settling.leases.add([new_claim(9)])
    settling.settle(1, Done(None))
    settling.settler.release_rest()
    async with running(settling.settler):
        await settling.settler.flush()
    ((change,),) = settling.claims.asked("settle")
    assert (change.claim_id, change.outcome, change.to) == (9, "released", State.READY)
    assert settling.stored() == [[1]] and settling.counted() == {"completed": 1}


async def test_a_claim_whose_job_is_unknown_is_released(settling: Settling) -> None:
    settling.settler.release_unknown(held(new_claim(4), attempt=3))
    async with running(settling.settler):
        await settling.settler.flush()
    ((change,),) = settling.claims.asked("settle")
    assert (change.claim_id, change.outcome, change.attempt, change.began) == (4, "released", 2, False)
    assert settling.delivery.hints == [EVERYWHERE]


async def test_a_settler_without_the_other_parts_stores_all_the_same() -> None:
    claims = ScriptedClaims()
    settler = Settler(claims, {}, Leases(), lambda low, high: low)  # type: ignore[arg-type]
    outcomes: list[Outcome | State] = [
        Done(None),
        Failed(OOPS, ValueError),
        Cancelled("no"),
        Released(),
        State.COMPLETED,
    ]
    for number, outcome in enumerate(outcomes):
        settler.settle(new_claim(number, options=WEBHOOK), outcome, TIMING)
    async with running(settler):
        await settler.flush()
    assert len(claims.asked("complete")[0]) == 1 and len(claims.asked("settle")[0]) == 3


def test_a_batch_is_taken_from_the_front_and_put_back_there() -> None:
    first, second = ((new_claim(number), None, TIMING) for number in (1, 2))
    batch = SettleBatch([first, second])  # type: ignore[list-item]
    with patch.object(module, "BATCH", 1):
        taken = batch.take()
    assert (len(taken), len(batch), taken.claims) == (1, 1, {1})
    batch.put_back(taken)
    assert [claim.claim_id for claim, _, _ in batch.done] == [1, 2] and not taken.changes
