"""A thread that waits for an event loop may be interrupted anywhere, and blocks no other by that."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

from dutiful.concurrency.loop_call import LoopCall


class Interrupted(Exception):
    pass


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    if not thread.is_alive():
        loop.close()


def test_a_thread_that_is_interrupted_leaves_the_loop_no_lock_to_wait_for(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, ended = threading.Event(), asyncio.Event(), threading.Event()
    enter, waiting = threading.Condition.__enter__, threading.get_ident()

    def interrupted(condition: threading.Condition) -> bool:
        """The error is raised when the lock has been taken, and before it can be freed."""
        entered = enter(condition)
        if threading.get_ident() == waiting:
            loop.call_soon_threadsafe(go_on.set)
            raise Interrupted
        return entered

    async def work() -> str:
        begun.set()
        await asyncio.wait_for(go_on.wait(), 0.2)
        return "done"

    call = LoopCall(loop, work)
    assert begun.wait(5)
    with monkeypatch.context() as patched, suppress(Interrupted, TimeoutError):
        patched.setattr(threading.Condition, "__enter__", interrupted)
        call.wait()
    loop.call_soon_threadsafe(loop.call_later, 0.3, ended.set)
    assert ended.wait(5), "the loop stands still"


def test_a_call_raises_what_its_work_raised(loop: asyncio.AbstractEventLoop) -> None:
    async def fail() -> None:
        raise LookupError("nothing here")

    with pytest.raises(LookupError, match="nothing here"):
        LoopCall(loop, fail).wait()


def test_a_call_is_cancelled_when_its_loop_has_been_closed() -> None:
    loop = asyncio.new_event_loop()
    call = LoopCall(loop, asyncio.Event().wait)
    loop.close()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            call.wait()
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(5)
    assert [type(error) for error in errors] == [CancelledError]
