"""Every outcome is stored once, counted once, and kept until the store has answered."""

import asyncio
import logging
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from settling import (
    OOPS,
    SLEEP,
    TIMING,
    WEBHOOK,
    Settling,
    done,
    flowing,
    running,
    settling,
    turns,
)
from worker_parts import AWAY, ScriptedClaims, after, clock, held, new_claim

from dutiful.core.errors import DataRefused, StoreAway
from dutiful.core.outcome import Cancelled, Done, Failed, Outcome, Released, Snoozed
from dutiful.core.states import State
from dutiful.delivery.base import EVERYWHERE
from dutiful.store.claims import Refusal
from dutiful.worker import settler as module
from dutiful.worker.leases import Leases
from dutiful.worker.settler import BATCH, FIRST_RETRY, FLOW, SettleBatch, Settler

__all__ = ["clock", "settling"]
REFUSED = DataRefused("the database does not accept it")


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
