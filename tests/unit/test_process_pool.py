"""A child process that still has an answer to give is not given another job."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from worker_parts import new_claim

from dutiful.core.outcome import Done, Snoozed
from dutiful.worker.executor import processes
from dutiful.worker.executor.processes import GO, READY, SKIP, Answer, ProcessDied, ProcessPool
from dutiful.worker.slots import Slot, StopReason


class ScriptedChild:
    """A child process whose answers come when the test says so."""

    made: list["ScriptedChild"] = []  # noqa: RUF012

    def __init__(self, with_secrets: bool) -> None:
        self.with_secrets = with_secrets
        self.sent: list[bytes] = []
        self.answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.alive = True
        self.made.append(self)

    def send(self, message: bytes) -> bool:
        self.sent.append(message)
        return True

    async def request(self, message: bytes) -> bytes | None:
        self.send(message)
        return await self.receive()

    async def receive(self) -> bytes | None:
        return await self.answers.get()

    def kill(self) -> None:
        self.alive = False

    def exit_reason(self) -> str:
        return "killed"

    def finish(self, result: str | None) -> None:
        self.answers.put_nowait(READY)
        self.answers.put_nowait(msgspec.json.encode(Answer("done", result)))


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedChild]:
    ScriptedChild.made = []
    monkeypatch.setattr(processes, "_Child", ScriptedChild)
    return ScriptedChild.made


@pytest.fixture
def pool(children: list[ScriptedChild]) -> ProcessPool:
    return ProcessPool(1, (1000, 1000), None)


KIND: Any = SimpleNamespace(__module__="jobs", __qualname__="crunch", timeout=None, inherit_secrets=False)


def begin(pool: ProcessPool, number: int, enter: Any = None) -> tuple["asyncio.Task[Any]", Slot]:
    slot = Slot("general", claim=new_claim(number))
    return asyncio.create_task(pool.run(KIND, new_claim(number), "{}", slot, enter)), slot


async def waiting(children: list[ScriptedChild], number: int) -> ScriptedChild:
    """The child that was started as the n-th, once it has got its job."""
    for _ in range(10_000):  # a thread starts it, so there is nothing to await
        if len(children) >= number and children[number - 1].sent:
            break
        await asyncio.sleep(0.001)
    return children[number - 1]


async def test_a_child_whose_job_was_interrupted_is_not_given_the_next_one(
    pool: ProcessPool, children: list[ScriptedChild]
) -> None:
    first, _ = begin(pool, 1)
    child = await waiting(children, 1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not child.alive, "its answer would be taken for that of the next job"

    second, _ = begin(pool, 2)
    other = await waiting(children, 2)
    child.finish('"of the first"')
    other.finish('"of the second"')
    assert await second == Done('"of the second"')


async def test_a_child_is_kept_for_the_next_job(pool: ProcessPool, children: list[ScriptedChild]) -> None:
    for number in (1, 2):
        job, _ = begin(pool, number)
        child = await waiting(children, 1)
        child.finish(f"{number}")
        assert await job == Done(f"{number}")
    assert len(children) == 1 and child.alive and len(child.sent) == 2


async def test_a_child_that_died_while_idle_is_not_used(pool: ProcessPool, children: list[ScriptedChild]) -> None:
    job, _ = begin(pool, 1)
    child = await waiting(children, 1)
    child.finish("1")
    await job
    child.kill()
    job, _ = begin(pool, 2)
    (await waiting(children, 2)).finish("2")
    assert await job == Done("2")


async def test_an_error_before_the_handler_begins_does_not_keep_its_child(
    pool: ProcessPool, children: list[ScriptedChild]
) -> None:
    async def fails() -> None:
        raise ValueError("the breaker cannot be read")

    job, _ = begin(pool, 1, fails)
    child = await waiting(children, 1)
    child.answers.put_nowait(READY)
    with pytest.raises(ValueError, match="breaker"):
        await job
    assert not child.alive


async def test_a_job_that_is_not_to_begin_leaves_its_child_for_the_next(
    pool: ProcessPool, children: list[ScriptedChild]
) -> None:
    rejected = Snoozed(timedelta(0))

    async def reject() -> Snoozed:
        return rejected

    async def admit() -> None: ...

    job, slot = begin(pool, 1, reject)
    child = await waiting(children, 1)
    child.answers.put_nowait(READY)
    assert await job is rejected and child.sent[1:] == [SKIP] and slot._interrupt is None
    job, _ = begin(pool, 2, admit)
    child.finish("2")
    assert await job == Done("2") and child.sent[-1] == GO and len(children) == 1


async def test_a_child_that_is_killed_to_stop_its_job_is_not_kept(
    pool: ProcessPool, children: list[ScriptedChild]
) -> None:
    job, slot = begin(pool, 1)
    child = await waiting(children, 1)
    child.answers.put_nowait(READY)
    for _ in range(10):
        await asyncio.sleep(0)
    slot.task = job
    slot.request_stop(StopReason.TIMEOUT)
    assert not child.alive
    child.answers.put_nowait(None)
    with pytest.raises(asyncio.CancelledError):
        await job
    assert not pool._idle and not pool._busy


async def test_a_child_that_dies_by_itself_fails_its_job(pool: ProcessPool, children: list[ScriptedChild]) -> None:
    job, _ = begin(pool, 1)
    (await waiting(children, 1)).answers.put_nowait(None)
    with pytest.raises(ProcessDied):
        await job
    assert not pool._idle and not pool._busy


async def test_closing_kills_idle_and_busy_children(children: list[ScriptedChild]) -> None:
    pool = ProcessPool(2, (1000, 1000), None)
    idle, _ = begin(pool, 1)
    busy, _ = begin(pool, 2)
    first, second = await waiting(children, 1), await waiting(children, 2)
    first.finish("1")
    await asyncio.wait({idle, busy}, return_when=asyncio.FIRST_COMPLETED)
    pool.close()
    assert not first.alive and not second.alive
    busy.cancel()
