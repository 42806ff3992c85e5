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
from dutiful.worker.pulse import EVERY, PULSE, Silence

log = logging.getLogger("dutiful.supervisor")
WORKER_ID = "DUTIFUL_WORKER_ID"
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
RETRY = 1.0  # seconds between two tries while the database is away
EXIT_LINGERING = 75  # the exit code of a worker in which too many handlers linger
EXIT_UNAVAILABLE = 69  # the exit code of a worker that has waited in vain for the database
STABLE_AFTER = 10.0  # seconds; a worker that ran longer is restarted without a growing pause
PRINTING = 1.0  # seconds in which a worker that is about to be killed prints its stacks


class Supervisor:
    """Calls `rescue` with the id of each worker that was killed or ended by itself.

    Kills a worker that gives no sign of life if `is_stuck` says so, which gets its id and the seconds of its silence.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        rescue: Callable[[UUID], Awaitable[None]],
        is_stuck: Callable[[UUID, float], Awaitable[bool]],
    ) -> None:
        self._command = command
        self._count = count
        self._rescue = rescue
        self._is_stuck = is_stuck
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
            child, signs = await self._start(worker_id)
            self._children.add(child)
            if self._last_signal is not None:
                child.send_signal(self._last_signal)  # it came while this child was being started
            log.info("worker %d is process %d", number, child.pid)
            watching = asyncio.create_task(self._watch(child, worker_id, Silence(child.pid, signs)))
            try:
                code = await child.wait()
            finally:
                watching.cancel()
                os.close(signs)
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

    async def _start(self, worker_id: UUID) -> tuple[asyncio.subprocess.Process, int]:
        """Starts a worker; returns its process, and the file of its signs of life."""
        signs, theirs = os.pipe()
        try:
            # A session of its own: a Ctrl-C in the terminal reaches the children through us, once.
            child = await asyncio.create_subprocess_exec(
                *self._command,
                env={**os.environ, WORKER_ID: str(worker_id), PULSE: str(theirs)},
                pass_fds=[theirs],
                start_new_session=True,
            )
        except BaseException:
            os.close(signs)
            raise
        finally:
            os.close(theirs)
        return child, signs

    async def _watch(self, child: asyncio.subprocess.Process, worker_id: UUID, silence: Silence) -> None:
        """Kills a worker in which a handler keeps the interpreter: it can end neither the handler nor itself."""
        while True:
            await asyncio.sleep(EVERY)
            silent = silence.look()
            if not silent:
                continue
            try:
                if not await self._is_stuck(worker_id, silent):
                    continue
            except Exception as error:
                log.debug("whether worker %s is stuck is not known: %s", worker_id, error)
                continue
            log.error(
                "worker process %d has not run for %d s, because a call into C keeps the interpreter lock, past the "
                "timeouts of its jobs or their leases: it prints its stacks and is killed. Give the kind process=True",
                *(child.pid, silent),
            )
            with suppress(ProcessLookupError):  # it has just ended
                child.send_signal(signal.SIGTTIN)
                await asyncio.sleep(PRINTING)
                if not silence.look():  # the call has returned while we asked the store, or just now
                    log.warning("worker process %d runs again: it is not killed", child.pid)
                    continue
                child.kill()
            return

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
