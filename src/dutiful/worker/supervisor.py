"""Keeps N worker processes running: restarts those that die, and has their jobs rescued at once."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from uuid import UUID

import uuid_utils.compat

from dutiful.core.errors import StoreAway

log = logging.getLogger("dutiful.supervisor")
WORKER_ID = "DUTIFUL_WORKER_ID"
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
RETRY = 1.0  # seconds between two tries while the database is away
EXIT_LINGERING = 75  # the exit code of a worker in which too many handlers linger
EXIT_UNAVAILABLE = 69  # the exit code of a worker that has waited in vain for the database
STABLE_AFTER = 10.0  # seconds; a worker that ran longer is restarted without a growing pause


class Supervisor:
    """Calls `rescue` with the id of each worker that was killed or ended by itself."""

    def __init__(self, command: Sequence[str], count: int, rescue: Callable[[UUID], Awaitable[None]]) -> None:
        self._command = command
        self._count = count
        self._rescue = rescue
        self._children: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()
        self._last_signal: int | None = None
        self._codes: list[int] = []
        self._rescuing: set[asyncio.Task[None]] = set()  # for workers that died while the database was away

    async def run(self) -> int:
        """Runs until a signal stops it; returns 0 if every child ended with exit code 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGTTIN):
            loop.add_signal_handler(number, self._on_signal, number)
        await asyncio.gather(*(self._keep_running(n) for n in range(self._count)))
        return max((abs(code) for code in self._codes), default=0) and 1

    async def _keep_running(self, number: int) -> None:
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
                    await self._rescue_jobs(worker_id)
                return
            log.warning("worker %d (process %d) ended with %s; it is started again", number, child.pid, _cause(code))
            await self._rescue_jobs(worker_id)
            longest = RETRY if code == EXIT_UNAVAILABLE else LONGEST_PAUSE
            pause = FIRST_PAUSE if time.monotonic() - began > STABLE_AFTER else min(pause * 2, longest)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _rescue_jobs(self, worker_id: UUID) -> None:
        try:
            await self._rescue(worker_id)
        except StoreAway as error:
            log.warning("the jobs of worker %s are rescued when the database is back: %s", worker_id, error)
            retrying = asyncio.create_task(self._rescue_later(worker_id))
            self._rescuing.add(retrying)
            retrying.add_done_callback(self._rescuing.discard)
        except Exception as error:  # then they are rescued when their leases end
            log.warning("the jobs of worker %s could not be rescued now: %s", worker_id, error)

    async def _rescue_later(self, worker_id: UUID) -> None:
        """Rescues jobs as soon as the database is back, because their worker is known to be dead."""
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), RETRY)
            try:
                await self._rescue(worker_id)
                return
            except StoreAway:
                continue
            except Exception as error:
                log.warning("the jobs of worker %s could not be rescued now: %s", worker_id, error)
                return

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
    """The command of a child: the same program with one process."""
    return [sys.executable, "-m", "dutiful.cli", *arguments]
