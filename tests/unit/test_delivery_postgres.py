"""When hints are sent: with a commit, or by themselves; none is forgotten, and none is sent twice."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dutiful.client.batch_inserter import FEW, insert_and_hint
from dutiful.core.job import Inserted, NewJob
from dutiful.delivery import postgres
from dutiful.delivery.base import EVERYWHERE, Hints, QueueLevels
from dutiful.delivery.postgres import Listener, PostgresDelivery, read_hint
from suite.builders import made, new_job

MAIL: QueueLevels = frozenset({("mail", 1)})
BOTH: QueueLevels = frozenset({("mail", 1), ("sms", 2)})


class Sent(list[str]):
    """The payloads that were sent by themselves."""

    async def send(self, _channel: str, payload: str) -> None:
        self.append(payload)


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def delivery(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> PostgresDelivery:
    """It waits for long, so that nothing is sent by itself before it is closed, and every commit may carry a hint."""
    monkeypatch.setattr(postgres, "HINT_INTERVAL", 3_600)
    monkeypatch.setattr(postgres, "CARRY_INTERVAL", 0)
    delivery = PostgresDelivery("dutiful", sent.send, None)
    assert delivery.hint_in_commit(MAIL)
    return delivery


class Jobs:
    """A store of jobs that keeps nothing; `fault` is raised instead."""

    def __init__(self, fault: BaseException | None = None) -> None:
        self.jobs = self
        self.hinted: list[bool] = []
        self._fault = fault

    async def insert(self, jobs: Sequence[NewJob], *, hint: QueueLevels | None = None) -> list[Inserted]:
        self.hinted.append(hint is not None)
        if self._fault is not None:
            raise self._fault
        return made(*jobs)


def listening(delivery: PostgresDelivery, owner: object = None) -> Hints:
    hints = Hints(owner)
    delivery._local.listeners.add(hints)
    return hints


def has_hint(hints: Hints) -> bool:
    return hints._arrived.is_set()


async def test_what_is_pending_is_sent_when_the_delivery_is_closed(delivery: PostgresDelivery, sent: Sent) -> None:
    delivery.hint(MAIL)
    delivery.hint(BOTH)
    await delivery.close()
    assert sent == ['[["mail",1],["sms",2]]']


async def test_a_commit_carries_the_hint_of_an_earlier_one(delivery: PostgresDelivery, sent: Sent) -> None:
    delivery.hint(MAIL)
    assert delivery.hint_in_commit(BOTH)
    delivery.hint(BOTH, sent=True)
    await delivery.close()
    assert sent == []


async def test_a_hint_that_comes_while_a_commit_carries_another_is_sent(delivery: PostgresDelivery, sent: Sent) -> None:
    """The other commit may be the later one, so workers were not notified of it."""
    assert delivery.hint_in_commit(MAIL)
    delivery.hint(MAIL)
    delivery.hint(MAIL, sent=True)
    await delivery.close()
    assert sent == ['[["mail",1]]']


@pytest.mark.parametrize("pending", [BOTH, EVERYWHERE])
async def test_a_commit_does_not_carry_hints_of_queues_that_it_does_not_name(
    delivery: PostgresDelivery, sent: Sent, pending: QueueLevels
) -> None:
    delivery.hint(pending)
    assert not delivery.hint_in_commit(MAIL)
    await delivery.close()
    assert [read_hint(payload) for payload in sent] == [pending]


async def test_a_commit_that_takes_long_carries_no_hint_but_its_own(delivery: PostgresDelivery, sent: Sent) -> None:
    store: Any = Jobs()
    await insert_and_hint(store, delivery, [new_job() for _ in range(FEW + 1)])
    delivery.hint(MAIL)
    await insert_and_hint(store, delivery, [new_job(queue="mail", priority=1) for _ in range(FEW + 1)])
    await delivery.close()
    assert store.hinted == [True, False] and sent == ['[["mail",1]]']


@pytest.mark.parametrize("fault", [OSError("gone"), KeyboardInterrupt()], ids=["error", "interrupt"])
async def test_the_hint_of_an_insert_that_failed_is_sent_by_itself(
    delivery: PostgresDelivery, sent: Sent, fault: BaseException
) -> None:
    store: Any = Jobs(fault)
    delivery.hint(MAIL)
    with pytest.raises(type(fault)):
        await insert_and_hint(store, delivery, [new_job(queue="mail", priority=1)])
    await delivery.close()
    assert store.hinted == [True] and sent == ['[["mail",1]]']


async def test_a_commit_that_would_end_after_the_hint_is_due_carries_it(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits of 6 ms, one after the other: each hint by itself would be a third commit for two enqueues."""
    clock = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    delivery = PostgresDelivery("dutiful", sent.send, None)
    carried = []
    for _ in range(4):
        carried.append(delivery.hint_in_commit(MAIL))
        clock += 0.006
        delivery.hint(MAIL, sent=carried[-1])
    assert carried == [True] * 4

    for _ in range(30):  # of a millisecond each: soon another begins before a hint is due
        carried.append(delivery.hint_in_commit(MAIL))
        clock += 0.001
        delivery.hint(MAIL, sent=carried[-1])
    assert carried[-10:].count(True) == 1


async def test_a_commit_soon_after_a_hint_carries_none(sent: Sent) -> None:
    delivery = PostgresDelivery("dutiful", sent.send, None)
    assert delivery.hint_in_commit(MAIL)
    assert not delivery.hint_in_commit(MAIL)


async def test_a_hint_without_levels_is_not_taken_for_a_new_one_when_it_comes_back(sent: Sent) -> None:
    ours, theirs = PostgresDelivery("dutiful", sent.send, None), PostgresDelivery("dutiful", sent.send, None)
    own, other = listening(ours), listening(theirs)
    ours.hint(EVERYWHERE)
    await ours.close()
    assert await own.next() == EVERYWHERE
    (payload,) = sent
    for one in (ours, theirs):
        one._on_hint("dutiful", payload)
    assert (has_hint(own), has_hint(other)) == (False, True)
    assert await other.next() == EVERYWHERE


async def test_a_hint_spares_the_listener_whose_owner_knows(sent: Sent) -> None:
    delivery, owner = PostgresDelivery("dutiful", sent.send, None), object()
    own, other = listening(delivery, owner), listening(delivery)
    delivery.hint(MAIL, known_to=owner)
    assert (has_hint(own), has_hint(other)) == (False, True)
    await delivery.close()
    assert sent == ['[["mail",1]]'], "other processes do not know"


class Heard:
    """What a listener heard, and its connections to a server that the test plays."""

    def __init__(self) -> None:
        self.payloads: list[str] = []
        self.connections: list[Connection] = []
        self.ready = asyncio.Event()
        self.listener = Listener(
            self._connect, ["jobs"], lambda _, payload: self.payloads.append(payload), self.ready.set
        )

    async def _connect(self) -> "Connection":
        self.connections.append(Connection())
        return self.connections[-1]

    async def connected(self) -> "Connection":
        await asyncio.wait_for(self.ready.wait(), 10)
        self.ready.clear()
        return self.connections[-1]


class Connection:
    def __init__(self) -> None:
        self._closed = False
        self._ended: Callable[[object], None]
        self._heard: Callable[[object, int, str, str], None]

    def add_termination_listener(self, ended: Callable[[object], None]) -> None:
        self._ended = ended

    async def add_listener(self, _channel: str, heard: Callable[[object, int, str, str], None]) -> None:
        self._heard = heard

    def is_closed(self) -> bool:
        return self._closed

    def terminate(self) -> None:
        if not self._closed:
            self._closed = True
            self._ended(self)

    def notify(self, number: int) -> None:
        for n in range(number):
            self._heard(self, 4711, "jobs", str(n))


@pytest.fixture
async def heard(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Heard]:
    monkeypatch.setattr(postgres, "FLOOD", 10)
    monkeypatch.setattr(postgres, "FLOOD_REST", 0)
    heard = Heard()
    heard.listener.start()
    yield heard
    if (stopped := heard.listener.stop()) is not None:
        await asyncio.wait([stopped])


async def test_a_flood_of_notifications_is_cut_off_and_followed_by_a_look(
    heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    first = await heard.connected()
    first.notify(1_000)
    assert (len(heard.payloads), first.is_closed()) == (10, True)

    second = await heard.connected()  # which is a reason to look
    second.notify(10)
    assert (len(heard.payloads), second.is_closed()) == (20, False)

    second.notify(1)
    assert second.is_closed()
    floods = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert ["process 4711" in record.getMessage() for record in floods] == [True], "one line a minute"


async def test_as_many_notifications_over_a_longer_time_are_all_heard(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await heard.connected()
    for second in range(5):
        monkeypatch.setattr(postgres, "time", SimpleNamespace(monotonic=lambda second=second: float(second)))
        connection.notify(10)
    assert (len(heard.payloads), connection.is_closed()) == (50, False)
