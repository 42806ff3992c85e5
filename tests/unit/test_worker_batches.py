"""When a batch starts, which jobs join it, and how one of its jobs is stopped; time is moved by hand."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from worker_parts import new_claim

from dutiful.core.job import Claim
from dutiful.core.outcome import Cancelled
from dutiful.declare.batch import BatchSpec
from dutiful.store.control import Pause, PauseScope
from dutiful.worker.batches import Batch, Gathering
from dutiful.worker.lanes.shares import FairBuffer
from dutiful.worker.slots import Slot, StopReason

LINGER = timedelta(seconds=10)
GRACE = 5.0


class Hand:
    """Moves the event loop's clock."""

    def __init__(self, loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self.now)

    async def move(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
async def hand(monkeypatch: pytest.MonkeyPatch) -> "Hand":
    return Hand(asyncio.get_running_loop(), monkeypatch)


class Made:
    """A batch that gathers in a slot, and the jobs that it has cancelled."""

    def __init__(self, first: Claim, size: int = 3, linger: timedelta = LINGER, **options: Any) -> None:
        self.slot = Slot("general")
        self.cancelled: list[int] = []
        self.batch = Batch(first, BatchSpec(size, linger, **options), self.slot, self._cancel, GRACE)
        self.slot.batch = self.batch
        self.gathered = asyncio.create_task(self.batch.gather())

    def _cancel(self, claim: Claim, outcome: Cancelled) -> None:
        self.cancelled.append(claim.claim_id)

    @property
    def numbers(self) -> list[int]:
        return [claim.claim_id for claim in self.batch.claims]


async def test_a_batch_that_is_not_full_starts_when_it_has_lingered(hand: Hand) -> None:
    made = Made(new_claim(1))
    await hand.move(0)
    await hand.move(9.9)
    assert made.batch.add(new_claim(2)) and made.batch.gathers
    await hand.move(0.2)
    assert made.gathered.done() and made.numbers == [1, 2]
    assert not made.batch.add(new_claim(3))


async def test_a_full_batch_starts_at_once(hand: Hand) -> None:
    made = Made(new_claim(1))
    assert [made.batch.add(new_claim(number)) for number in (2, 3, 4)] == [True, True, False]
    await hand.move(0)
    assert made.gathered.done() and made.numbers == [1, 2, 3]


async def test_without_linger_a_batch_starts_when_no_more_are_found(hand: Hand) -> None:
    made = Made(new_claim(1), linger=timedelta(0))
    made.batch.may_find = False
    assert made.batch.add(new_claim(2))
    made.batch.asked(1)
    assert made.batch.may_find and made.batch.gathers
    made.batch.may_find = False
    made.batch.asked(0)
    await hand.move(0)
    assert made.gathered.done()


@pytest.mark.parametrize(
    "other", [{"kind": "bye"}, {"tenant": "acme"}, {"attempt": 2}, {"crashes": 1}], ids=lambda one: next(iter(one))
)
async def test_a_job_that_may_harm_others_or_is_not_alike_does_not_join(hand: Hand, other: dict[str, Any]) -> None:
    made = Made(new_claim(1))
    assert not made.batch.add(new_claim(2, **other)) and made.numbers == [1]
    made.gathered.cancel()


async def test_jobs_of_other_tenants_join_if_that_is_asked_for(hand: Hand) -> None:
    made = Made(new_claim(1, tenant="ada"), across_tenants=True)
    assert made.batch.add(new_claim(2, tenant="bob"))
    made.gathered.cancel()


@pytest.mark.parametrize("bad", [{"attempt": 2}, {"crashes": 1}])
async def test_a_job_that_failed_or_was_lost_before_runs_alone_and_at_once(hand: Hand, bad: dict[str, Any]) -> None:
    made = Made(new_claim(1, **bad))
    assert not made.batch.room and not made.batch.add(new_claim(2))
    await hand.move(0)
    assert made.gathered.done()


async def test_a_cancelled_job_leaves_a_batch_that_gathers(hand: Hand) -> None:
    made = Made(new_claim(1))
    made.batch.add(new_claim(2))
    made.batch.stop(made.batch.claims[0], StopReason.CANCEL)
    assert made.cancelled == [1] and made.numbers == [2] and made.batch.gathers
    made.batch.stop(made.batch.claims[0], StopReason.LOST)  # another worker may have it: nothing to settle
    await hand.move(0)
    assert made.cancelled == [1] and made.numbers == [] and made.gathered.done()


class Stoppable:
    def __init__(self) -> None:
        self.cancels = 0

    def cancel(self) -> None:
        self.cancels += 1


async def running(made: Made, *others: Claim) -> Stoppable:
    for claim in others:
        made.batch.add(claim)
    made.batch.start()
    await made.gathered
    task: Any = Stoppable()
    made.slot.task, made.slot.claim = task, made.batch.first
    return task  # type: ignore[no-any-return]


async def test_a_job_that_is_cancelled_while_its_batch_runs_ends_after_its_grace(hand: Hand) -> None:
    made = Made(new_claim(1))
    task = await running(made, new_claim(2))
    made.batch.stop(new_claim(2), StopReason.CANCEL)
    await hand.move(GRACE - 0.1)
    assert made.cancelled == [] and made.batch.stopped == {2: StopReason.CANCEL}
    await hand.move(0.2)
    assert made.cancelled == [2] and made.numbers == [1] and task.cancels == 0


async def test_the_handler_is_stopped_with_the_last_of_its_jobs(hand: Hand) -> None:
    made = Made(new_claim(1))
    task = await running(made, new_claim(2))
    made.batch.stop(new_claim(1), StopReason.LOST)
    made.batch.stop(new_claim(1), StopReason.LOST)
    assert task.cancels == 0
    made.batch.stop(new_claim(2), StopReason.CANCEL)
    assert task.cancels == 1 and made.slot.stop is StopReason.CANCEL
    made.batch.close()


async def test_claims_join_the_batch_that_they_fit(hand: Hand) -> None:
    gathering, ada, bob = Gathering(), Made(new_claim(1, tenant="ada")), Made(new_claim(2, tenant="bob"))
    with gathering.adding(ada.batch), gathering.adding(bob.batch):
        left = gathering.join([new_claim(3, tenant="bob"), new_claim(4), new_claim(5, tenant="ada")])
        assert [claim.claim_id for claim in left] == [4]
        assert ada.numbers == [1, 5] and bob.numbers == [2, 3]
        assert {job.int for job in gathering.jobs} == {1, 2, 3, 5}
        ada.batch.may_find = False
        assert gathering.next() is bob.batch
        bob.batch.may_find = False
        assert gathering.next() is None
        gathering.wake()
        assert gathering.next() is ada.batch
        gathering.start_all()
    await hand.move(0)
    assert not gathering and ada.gathered.done() and bob.gathered.done()


@pytest.mark.parametrize(
    ("scope", "name", "held"),
    [
        (PauseScope.KIND, "greet", True),
        (PauseScope.QUEUE, "default", True),
        (PauseScope.LANE, "general", True),
        (PauseScope.LANE, "*", True),
        (PauseScope.LANE, "other", False),
        (PauseScope.KIND, "default", False),
    ],
)
async def test_a_pause_holds_batches_that_gather(hand: Hand, scope: PauseScope, name: str, held: bool) -> None:
    gathering, made = Gathering(), Made(new_claim(1))
    with gathering.adding(made.batch):
        pause = Pause(scope=scope, name=name, since=datetime.now(UTC))
        assert gathering.paused("general", [pause]) == ([made.batch] if held else [])
    made.gathered.cancel()


def test_claims_that_join_a_batch_leave_the_shares_of_a_fair_lane() -> None:
    buffer = FairBuffer(slots=4, reserve=0)
    for number in (1, 2, 3):
        buffer.append(new_claim(number, tenant="ada"))
    buffer.append(new_claim(4, tenant="bob"))
    buffer.take(lambda claim: claim.claim_id in (1, 3, 4))
    assert len(buffer) == 1 and buffer.shares.total == 1
    assert buffer.popleft().claim_id == 2
