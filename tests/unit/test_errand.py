"""A thread that waits for an event loop may be interrupted anywhere, and holds up nobody by that."""

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from dutiful.errand import Errand


class Interrupted(Exception):
    pass


class InterruptAt:
    """Raises at the n-th instruction of Python code, as an error that another thread raises here may."""

    def __init__(self, instruction: int) -> None:
        self.left = instruction

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename.endswith("_weakrefset.py"):
            return None  # called when a task has gone, where nobody could raise
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise Interrupted
        return self


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    if not thread.is_alive():
        loop.close()


@pytest.fixture
def undisturbed() -> Iterator[None]:
    """What others have left is not collected, and interrupted, in the middle of ours."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("undisturbed")
def test_wherever_a_thread_is_interrupted_the_loop_goes_on(loop: asyncio.AbstractEventLoop) -> None:
    async def work() -> str:
        return "done"

    def interrupted_at(instruction: int) -> bool:
        interrupt = InterruptAt(instruction)
        sys.settrace(interrupt)
        try:
            assert Errand(loop, work).wait() == "done"
        except Interrupted:
            pass
        finally:
            sys.settrace(None)
        return interrupt.left <= 0

    instruction = 1
    while interrupted_at(instruction):
        alive = threading.Event()
        loop.call_soon_threadsafe(alive.set)
        assert alive.wait(5), f"interrupted at instruction {instruction}, the thread left the loop standing"
        instruction += 1
    assert instruction > 50, "it was interrupted at every step"


def test_an_errand_brings_back_what_was_raised(loop: asyncio.AbstractEventLoop) -> None:
    async def fail() -> None:
        raise LookupError("nothing here")

    with pytest.raises(LookupError, match="nothing here"):
        Errand(loop, fail).wait()
