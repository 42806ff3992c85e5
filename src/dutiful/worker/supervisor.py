"""Keeps N worker processes running: restarts what dies, and takes back its jobs at once."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import uuid_utils.compat

log = logging.getLogger("dutiful.supervisor")
WORKER_ID = "DUTIFUL_WORKER_ID"
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
LIVED_WELL = 10.0


class Supervisor:
    """`reclaim` is told the id of each worker that died other than by its own will."""

    def __init__(self, command: Sequence[str], count: int, reclaim: Callable[[UUID], Awaitable[None]]) -> None:
        self._command = command
        self._count = count
        self._reclaim = reclaim
        self._children: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()
        self._last_signal: int | None = None
        self._codes: list[int] = []

    async def run(self) -> int:
        """Until a signal says stop; 0 if every child ended well then."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGTTIN):
            loop.add_signal_handler(number, self._on_signal, number)
        await asyncio.gather(*(self._keep(n) for n in range(self._count)))
        return max((abs(code) for code in self._codes), default=0) and 1

    async def _keep(self, number: int) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            worker_id, began = uuid_utils.compat.uuid7(), time.monotonic()
            # A session of its own: a Ctrl-C in the terminal reaches the children through us, once.
            child = await asyncio.create_subprocess_exec(
                *self._command, env={**os.environ, WORKER_ID: str(worker_id)}, start_new_session=True
            )
            self._children.add(child)
            if self._last_signal is not None:
                child.send_signal(self._last_signal)  # it came while this child was being started
            log.info("worker %d is process %d", number, child.pid)
            code = await child.wait()
            self._children.discard(child)
            if self._stopping.is_set():
                self._codes.append(code)
                if code < 0:
                    await self._take_back(worker_id)
                return
            log.warning("worker %d (process %d) ended with %s; it is started again", number, child.pid, _cause(code))
            await self._take_back(worker_id)
            pause = FIRST_PAUSE if time.monotonic() - began > LIVED_WELL else min(pause * 2, LONGEST_PAUSE)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                continue

    async def _take_back(self, worker_id: UUID) -> None:
        try:
            await self._reclaim(worker_id)
        except Exception as error:  # the leases end by themselves
            log.warning("the jobs of worker %s could not be taken back now: %s", worker_id, error)

    def _on_signal(self, number: int) -> None:
        if number != signal.SIGTTIN:
            self._stopping.set()
            self._last_signal = number
        for child in list(self._children):
            if child.returncode is None:
                child.send_signal(number)


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def child_command(arguments: Sequence[str]) -> list[str]:
    """How a child is started: the same program, one process."""
    return [sys.executable, "-m", "dutiful.cli", *arguments]
