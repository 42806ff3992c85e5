"""Steps of a job, and the events that it waits for: only the holder of its claim writes them."""

from datetime import datetime, timedelta
from typing import Any

from dutiful.core.job import Claim
from dutiful.core.outcome import Failed, Released, Snoozed
from dutiful.core.states import State
from dutiful.core.steps import SentEvent, StepKind, StepRecord, StepState
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.steps import SHOWN_BYTES, StepMark, StepWait
from suite.builders import (
    KIND,
    OOPS,
    T0,
    at,
    claim_one,
    complete,
    crash,
    history,
    new_id,
    outcomes,
    pause,
    settle,
    start_one,
    state,
)

HOUR, WEEK = timedelta(hours=1), timedelta(days=7)
LATER = T0 + WEEK + HOUR
SECOND = timedelta(seconds=1)
BLOCKED, READY, SCHEDULED = State.BLOCKED, State.READY, State.SCHEDULED
DONE, WAITING, TIMED_OUT = StepState.DONE, StepState.WAITING, StepState.TIMED_OUT


def call(claimed: Claim, name: str = "charge", position: int = 0, **fields: Any) -> StepMark:
    given: dict[str, Any] = {"code": "charge_card", "fingerprint": "f1", "took": SECOND, "result": '{"id": 7}'} | fields
    return StepMark(job_id=claimed.job_id, claim_id=claimed.claim_id, name=name, position=position, **given)


async def sleep(store: Store, claimed: Claim, name: str = "rest", *, now: datetime = T0, **fields: Any) -> StepRecord:
    found = await store.steps.wait(sleep_of(claimed, name, **fields), now=now)
    assert found is not None
    return found[0]


def sleep_of(claimed: Claim, name: str = "rest", **fields: Any) -> StepWait:
    given: dict[str, Any] = {"kind": StepKind.SLEEP, "code": "sleep", "fingerprint": "s", "timeout": HOUR} | fields
    return StepWait(job_id=claimed.job_id, claim_id=claimed.claim_id, name=name, position=0, **given)


async def wait(store: Store, claimed: Claim, name: str = "paid", *, now: datetime = T0, **fields: Any) -> StepRecord:
    found = await store.steps.wait(wait_of(claimed, name, **fields), now=now)
    assert found is not None
    return found[0]


def wait_of(claimed: Claim, name: str = "paid", **fields: Any) -> StepWait:
    given = {"kind": StepKind.EVENT, "code": "event paid 7", "event": "paid", "key": "7"}
    return sleep_of(claimed, name, **given | fields)


async def begin_to_wait(store: Store, *, now: datetime = T0, timeout: timedelta | None = HOUR, **fields: Any) -> Claim:
    """A job that is blocked until its event comes."""
    claimed = await start_one(store, now=now, **fields)
    assert (await wait(store, claimed, now=now, timeout=timeout)).state is WAITING
    assert await settle(store, claimed, Snoozed(HOUR, wait=("paid",)), now=now) == []
    return claimed


async def send(store: Store, data: str | None = '{"amount": 5}', *, now: datetime = T0, **fields: Any) -> SentEvent:
    keep = fields.pop("keep", WEEK)
    event = SentEvent(new_id(), "paid", "7", data, **fields)
    assert await store.steps.send(event, keep, now=now)
    return event


async def step(store: Store, claimed: Claim) -> StepRecord:
    (found,) = await store.steps.all(claimed.job_id)
    return found


class StepSuite:
    async def test_a_step_keeps_its_result_for_later_attempts(self, store: Store) -> None:
        claimed = await start_one(store)

        unstored = await store.steps.put([call(claimed)], now=at(3))

        assert (unstored.lost, unstored.busy) == (frozenset(), frozenset())
        expected = StepRecord(
            name="charge", position=0, kind=StepKind.CALL, state=DONE, code="charge_card", fingerprint="f1",
            started_at=at(2), ended_at=at(3), result={"id": 7},
        )  # fmt: skip
        assert await store.steps.all(claimed.job_id) == [expected]
        await settle(store, claimed, Failed(OOPS), now=at(4))
        assert await store.steps.all(claimed.job_id) == [expected]

    async def test_steps_are_listed_in_their_order(self, store: Store) -> None:
        claimed, other = await start_one(store), await start_one(store)
        await store.steps.put([call(claimed, "a", 1), call(claimed, "b", 0), call(other, "c")], now=T0)

        found = await store.steps.load([claimed.job_id, other.job_id, new_id()])

        assert {job: [one.name for one in steps] for job, steps in found.items()} == {
            claimed.job_id: ["b", "a"],
            other.job_id: ["c"],
        }

    async def test_people_are_shown_results_as_far_as_they_are_few(self, store: Store) -> None:
        claimed = await start_one(store)
        half = f'"{"x" * (SHOWN_BYTES // 2)}"'
        results = ["1", half, None, "2", half, "3"]
        for position, result in enumerate(results):
            await store.steps.put([call(claimed, f"step {position}", position, result=result)])

        shown = await store.steps.all(claimed.job_id)
        loaded = (await store.steps.load([claimed.job_id]))[claimed.job_id]

        assert [one.result for one in shown] == [1, half[1:-1], None, 2, None, None]
        assert [one.result for one in loaded] == [1, half[1:-1], None, 2, half[1:-1], 3]
        assert [one.name for one in shown] == [one.name for one in loaded]

    async def test_a_claim_that_was_lost_stores_no_step(self, store: Store) -> None:
        old = await start_one(store)
        await crash(store)
        held = await start_one(store, now=at(100))

        unstored = await store.steps.put([call(old), call(held)], now=at(101))

        assert unstored.lost == {old.claim_id}
        assert await store.steps.all(old.job_id) == []
        assert [one.name for one in await store.steps.all(held.job_id)] == ["charge"]

    async def test_a_job_that_is_to_be_cancelled_stores_no_step(self, store: Store) -> None:
        claimed = await start_one(store)
        await store.control.cancel(claimed.job_id, "no longer wanted", now=T0)

        assert (await store.steps.put([call(claimed)], now=at(1))).lost == {claimed.claim_id}
        assert await store.steps.all(claimed.job_id) == []

    async def test_a_step_that_is_stored_stays_as_it_is(self, store: Store) -> None:
        claimed = await start_one(store)
        await store.steps.put([call(claimed)], now=T0)

        await store.steps.put([call(claimed, result='"another"')], now=at(1))

        assert (await step(store, claimed)).result == {"id": 7}

    async def test_retention_deletes_steps_with_their_job(self, store: Store) -> None:
        claimed = await start_one(store)
        await store.steps.put([call(claimed)], now=T0)
        await complete(store, claimed, now=at(1))

        assert (await store.retention.delete(WEEK, 100, None, now=LATER)).count == 1

        assert await store.steps.all(claimed.job_id) == []

    # --- sleeps

    async def test_a_sleep_keeps_its_time(self, store: Store) -> None:
        claimed = await start_one(store)
        assert (await sleep(store, claimed)).due_at == at(3600)
        await settle(store, claimed, Snoozed(HOUR), now=T0)
        assert await state(store, claimed.job_id) is SCHEDULED
        await store.promotion.promote(10, now=at(3601))
        again = await claim_one(store, now=at(3601))

        found = await sleep(store, again, now=at(3601))

        assert (found.state, found.due_at, found.started_at) == (DONE, at(3600), T0)
        assert again.attempt == 1

    async def test_a_sleep_goes_on_after_a_crash(self, store: Store) -> None:
        claimed = await start_one(store)
        await sleep(store, claimed)
        later = await crash(store)
        again = await claim_one(store, now=later, suspects=1)

        found = await sleep(store, again, now=later)

        assert (found.state, found.due_at) == (WAITING, at(3600))

    async def test_a_claim_that_was_lost_begins_no_wait(self, store: Store) -> None:
        claimed = await start_one(store)
        await crash(store)
        asked = StepWait(
            job_id=claimed.job_id, claim_id=claimed.claim_id, name="rest", position=0, kind=StepKind.SLEEP,
            code="sleep", fingerprint="s", timeout=HOUR,
        )  # fmt: skip

        assert await store.steps.wait(asked, now=at(100)) is None
        assert await store.steps.all(claimed.job_id) == []

    # --- events

    async def test_a_job_is_blocked_until_its_event_comes(self, store: Store) -> None:
        claimed = await begin_to_wait(store)
        record = await store.queries.job(claimed.job_id)
        assert record is not None
        assert (record.state, record.gate, record.gate_key, record.run_at) == (BLOCKED, "event", "paid:7", at(3600))
        assert record.attempt == 0

        await send(store, now=at(5))
        woken = await store.steps.deliver(10, now=at(6))

        assert woken.seen == 1
        assert woken.levels == {("default", 100)}
        assert await state(store, claimed.job_id) is READY
        found = await step(store, claimed)
        assert (found.state, found.result, found.ended_at) == (DONE, {"amount": 5}, at(6))
        assert (await claim_one(store, now=at(7))).attempt == 1
        assert await outcomes(store, claimed.job_id) == ["snoozed"]

    async def test_an_event_that_came_before_the_wait_is_not_lost(self, store: Store) -> None:
        await send(store)
        await store.steps.deliver(10, now=T0)
        claimed = await start_one(store, now=at(1))

        found = await wait(store, claimed, now=at(1))

        assert (found.state, found.result) == (DONE, {"amount": 5})

    async def test_an_event_that_comes_while_the_attempt_ends_is_not_lost(self, store: Store) -> None:
        claimed = await start_one(store)
        assert (await wait(store, claimed)).state is WAITING
        await send(store, now=at(1))
        await store.steps.deliver(10, now=at(1))

        assert await settle(store, claimed, Snoozed(HOUR, wait=("paid",)), now=at(2)) == []

        assert await state(store, claimed.job_id) is READY
        assert (await step(store, claimed)).result == {"amount": 5}

    async def test_an_event_that_is_not_delivered_yet_is_found_by_a_wait(self, store: Store) -> None:
        await send(store)
        claimed = await start_one(store)

        assert (await wait(store, claimed)).state is DONE

        assert (await store.steps.deliver(10, now=at(1))).seen == 1
        assert (await store.steps.deliver(10, now=at(1))).seen == 0

    async def test_all_jobs_that_wait_get_the_event(self, store: Store) -> None:
        several = [await begin_to_wait(store) for _ in range(3)]

        await send(store, now=at(1))
        await store.steps.deliver(10, now=at(1))

        assert [await state(store, one.job_id) for one in several] == [READY] * 3
        assert [(await step(store, one)).result for one in several] == [{"amount": 5}] * 3

    async def test_an_event_that_very_many_wait_for_is_delivered_in_bounded_steps(self, store: Store) -> None:
        several = [await begin_to_wait(store) for _ in range(5)]
        await send(store, now=at(1))
        await send(store, '"later"', now=at(1))

        seen, ready = [], []
        for _ in range(3):
            seen.append((await store.steps.deliver(3, now=at(2))).seen)
            ready.append([await state(store, one.job_id) for one in several].count(READY))

        assert (seen, ready) == ([3, 2, 0], [3, 5, 5])
        assert [(await step(store, one)).result for one in several] == [{"amount": 5}] * 5

    async def test_a_job_gets_each_event_once(self, store: Store) -> None:
        claimed = await start_one(store)
        await send(store, '"first"')
        await send(store, '"second"', now=at(1))

        first, second = await wait(store, claimed, "a"), await wait(store, claimed, "b")
        third = await wait(store, claimed, "c")

        assert (first.result, second.result, third.state) == ("first", "second", WAITING)

    async def test_an_event_without_data_wakes_too(self, store: Store) -> None:
        claimed = await begin_to_wait(store)

        await send(store, None)
        await store.steps.deliver(10, now=at(1))

        assert (await step(store, claimed)).state is DONE

    async def test_an_event_of_another_name_or_key_wakes_no_job(self, store: Store) -> None:
        claimed = await begin_to_wait(store)

        for name, key in (("paid", "8"), ("refunded", "7")):
            await store.steps.send(SentEvent(new_id(), name, key), WEEK, now=T0)
        await store.steps.deliver(10, now=at(1))

        assert await state(store, claimed.job_id) is BLOCKED

    async def test_an_event_is_of_one_tenant(self, store: Store) -> None:
        without, acme = await begin_to_wait(store), await begin_to_wait(store, tenant="acme")

        await send(store, tenant="globex")
        await store.steps.deliver(10, now=at(1))
        assert (await state(store, without.job_id), await state(store, acme.job_id)) == (BLOCKED, BLOCKED)
        await send(store, tenant="acme", now=at(1))
        await store.steps.deliver(10, now=at(2))
        assert (await state(store, without.job_id), await state(store, acme.job_id)) == (BLOCKED, READY)
        await send(store, now=at(2))
        await store.steps.deliver(10, now=at(3))
        assert await state(store, without.job_id) is READY

    async def test_an_event_is_kept_for_its_time(self, store: Store) -> None:
        await send(store, keep=HOUR)
        await store.steps.deliver(10, now=T0)
        claimed = await start_one(store, now=at(3600))

        assert (await wait(store, claimed, now=at(3600))).state is WAITING

    async def test_retention_deletes_events_whose_time_is_over(self, store: Store) -> None:
        event = await send(store, keep=HOUR)
        await store.steps.deliver(10, now=T0)
        await store.retention.delete_leftovers(WEEK, 100, now=at(3599))
        assert not await store.steps.send(event, HOUR, now=at(3599))

        await store.retention.delete_leftovers(WEEK, 100, now=at(3600))

        assert await store.steps.send(event, HOUR, now=at(3600))

    async def test_an_event_that_is_sent_twice_is_stored_once(self, store: Store) -> None:
        event = await send(store)

        assert not await store.steps.send(event, WEEK, now=at(1))

    async def test_a_wait_ends_at_its_time(self, store: Store) -> None:
        claimed = await begin_to_wait(store)
        assert (await store.steps.deliver(10, now=at(3599))).seen == 0

        assert (await store.steps.deliver(10, now=at(3600))).levels == {("default", 100)}

        again = await claim_one(store, now=at(3601))
        found = await wait(store, again, now=at(3601))
        assert (found.state, found.result) == (TIMED_OUT, None)
        await send(store, now=at(3602))
        await store.steps.deliver(10, now=at(3602))
        assert (await step(store, claimed)).state is TIMED_OUT

    async def test_an_event_between_the_end_of_the_wait_and_the_next_attempt_counts(self, store: Store) -> None:
        await begin_to_wait(store)
        await store.steps.deliver(10, now=at(3600))
        await send(store, now=at(3601))
        again = await claim_one(store, now=at(3602))

        assert (await wait(store, again, now=at(3602))).state is DONE

    async def test_a_wait_without_an_end_goes_on(self, store: Store) -> None:
        claimed = await begin_to_wait(store, timeout=None)
        record = await store.queries.job(claimed.job_id)
        assert record is not None and record.run_at is None

        assert (await store.steps.deliver(10, now=at(1e9))).seen == 0
        assert await state(store, claimed.job_id) is BLOCKED

    async def test_a_job_with_several_waits_is_woken_by_the_first_that_is_over(self, store: Store) -> None:
        claimed = await start_one(store)
        await wait(store, claimed, timeout=None)
        await sleep(store, claimed)
        await settle(store, claimed, Snoozed(HOUR, wait=("paid", "rest")), now=at(1))
        record = await store.queries.job(claimed.job_id)
        assert record is not None and (record.gate, record.gate_key, record.run_at) == ("event", "paid:7", at(3600))

        await store.steps.deliver(10, now=at(3600))

        again = await claim_one(store, now=at(3601))
        await settle(store, again, Snoozed(HOUR, wait=("paid", "rest")), now=at(3601))
        assert await state(store, claimed.job_id) is READY

    async def test_a_job_that_waits_can_be_cancelled(self, store: Store) -> None:
        claimed = await begin_to_wait(store)

        result = await store.control.cancel(claimed.job_id, "no longer wanted", now=at(1))

        assert result is not None and result.changed
        await send(store, now=at(2))
        await store.steps.deliver(10, now=at(2))
        assert await state(store, claimed.job_id) is State.CANCELLED

    async def test_a_cancel_comes_before_the_wait(self, store: Store) -> None:
        claimed = await start_one(store)
        await wait(store, claimed)
        await store.control.cancel(claimed.job_id, "no longer wanted", now=T0)

        (refused,) = await settle(store, claimed, Snoozed(HOUR, wait=("paid",)), now=at(1))

        assert refused.reason == "cancel_requested"

    async def test_a_wait_is_not_ended_by_the_end_of_a_pause(self, store: Store) -> None:
        claimed = await start_one(store)
        await wait(store, claimed)
        await pause(store, PauseScope.KIND, KIND)
        await settle(store, claimed, Snoozed(HOUR, wait=("paid",)), now=at(1))
        await store.control.resume(PauseScope.KIND, KIND)

        await store.promotion.sweep(10, now=at(2))

        assert await state(store, claimed.job_id) is BLOCKED

    async def test_a_job_whose_kind_is_paused_when_its_event_comes_waits_for_the_end_of_that(
        self, store: Store
    ) -> None:
        claimed = await begin_to_wait(store)
        await pause(store, PauseScope.KIND, KIND)

        await send(store, now=at(1))
        assert (await store.steps.deliver(10, now=at(1))).levels == frozenset()

        record = await store.queries.job(claimed.job_id)
        assert record is not None and (record.state, record.gate) == (BLOCKED, "paused")
        await store.control.resume(PauseScope.KIND, KIND)
        await store.promotion.sweep(10, now=at(2))
        assert await state(store, claimed.job_id) is READY

    async def test_a_job_that_is_claimed_at_its_event_is_left_alone(self, store: Store) -> None:
        claimed = await start_one(store)
        await wait(store, claimed)
        await settle(store, claimed, Released(), now=T0)
        again = await claim_one(store, now=at(1))

        await send(store, now=at(2))
        await store.steps.deliver(10, now=at(2))

        assert await state(store, again.job_id) is State.RUNNING
        assert await complete(store, again, now=at(3)) == []

    async def test_the_survey_says_that_an_event_waits(self, store: Store) -> None:
        leader = new_id()
        await begin_to_wait(store)
        assert not (await store.leadership.survey(leader, HOUR, now=at(1))).waits

        await send(store, now=at(1))
        assert (await store.leadership.survey(leader, HOUR, now=at(1))).waits
        await store.steps.deliver(10, now=at(1))
        assert not (await store.leadership.survey(leader, HOUR, now=at(1))).waits

    async def test_the_survey_says_that_a_wait_is_over(self, store: Store) -> None:
        leader = new_id()
        await begin_to_wait(store, timeout=2 * HOUR)

        assert not (await store.leadership.survey(leader, HOUR, now=at(7199))).waits
        assert (await store.leadership.survey(leader, HOUR, now=at(7200))).waits
        await store.leadership.resign(leader)

    async def test_the_history_has_the_wait(self, store: Store) -> None:
        claimed = await begin_to_wait(store)

        assert await history(store, claimed.job_id) == [(1, "snoozed")]
