"""Daemon threads: as many as are needed, up to their number, and not waited for at the end."""

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest

from dutiful.concurrency import daemon_pool
from dutiful.concurrency.daemon_pool import DaemonPool, LoopThreads


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns so often that they meet at every step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_nothing_waits_while_another_thread_is_allowed() -> None:
    for _ in range(50):
        daemons, gate = DaemonPool(8, "test"), threading.Event()
        for _ in range(30):
            daemons.submit(lambda: None).result()
        busy = [daemons.submit(gate.wait) for _ in range(7)]
        try:
            assert daemons.submit(lambda: "at once").result(5) == "at once"
        finally:
            gate.set()
        for one in busy:
            one.result()
        daemons.close()


async def test_calls_that_hang_and_are_given_up_again_and_again_take_a_bounded_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(daemon_pool, "MOST_LEFT", 3)
    left: list[object] = []
    threads, gate = LoopThreads(left.append, size=1), threading.Event()
    loop = asyncio.get_running_loop()

    async def give_up() -> None:
        began = threading.Event()

        def hang() -> None:
            began.set()
            gate.wait()

        call = loop.run_in_executor(threads, hang)
        assert await asyncio.to_thread(began.wait, 5)
        call.cancel()
        await asyncio.sleep(0)

    try:
        for _ in range(4):
            await give_up()
        waiting = threads.submit(lambda: "after one has ended")
        assert len(left) == 3 and not waiting.done()
    finally:
        gate.set()
    assert waiting.result(5) == "after one has ended"
