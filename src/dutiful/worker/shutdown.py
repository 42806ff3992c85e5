"""How a worker comes to its end: when it is asked to, how long what runs may take, and what was late."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from dutiful.core.duration import brief
from dutiful.core.errors import ShutdownTimeout
from dutiful.core.outcome import Released
from dutiful.worker.pile import Span
from dutiful.worker.settler import Settler
from dutiful.worker.slots import Slots

log = logging.getLogger("dutiful.worker")
Tasks = Sequence["asyncio.Task[None]"]
LAST_WORDS = 5.0  # how long interrupted handlers may take to clean up


class Shutdown:
    def __init__(self, grace: timedelta) -> None:
        self._grace = grace
        self._patience = LAST_WORDS
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._interrupted = 0
        self._unsettled = 0

    def stop(self, grace: timedelta | None) -> None:
        self._grace = self._grace if grace is None else grace
        self._stopping.set()

    def abort(self, patience: float) -> None:
        self._patience = patience
        self._stopping.set()
        self._aborting.set()

    async def asked(self) -> None:
        """Wait until somebody wants it."""
        await self._stopping.wait()

    def patience(self, usual: float) -> float:
        """How many seconds to wait for what usually may take so long; less if somebody is in a hurry."""
        return self._patience if self._aborting.is_set() else usual

    async def drain(self, slots: Slots, running: Tasks, feeding: Tasks, settler: Settler) -> None:
        """Let what runs finish, and interrupt it when its time is over."""
        everybody = asyncio.create_task(_ended(running))
        aborting = asyncio.create_task(self._aborting.wait())
        grace = self._grace.total_seconds()
        both: list[asyncio.Task[Any]] = [everybody, aborting]
        await asyncio.wait(both, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        aborting.cancel()
        interrupted = slots.tell_all()
        if interrupted:
            await asyncio.wait([everybody], timeout=self._patience)
        everybody.cancel()
        for slot in interrupted:
            if slot.claim is not None:  # it did not heed us; its job goes to somebody else all the same
                slot.abandoned = True
                settler.settle(slot.claim, slot.settled or Released(), Span(0.0, slot.ran.total_seconds()))
        # A claim under way is waited for: cancelled, it would hold jobs that nobody knows of.
        await asyncio.wait(feeding, timeout=LAST_WORDS)
        self._interrupted = len(interrupted)

    async def settle_rest(self, settler: Settler, settling: "asyncio.Task[None]") -> None:
        """Let the settler store what was handed over."""
        settler.close()
        try:
            await asyncio.wait_for(settling, LAST_WORDS)
        except TimeoutError:
            self._unsettled = len(settler.unsettled)
            outcomes = _count(self._unsettled, "outcome", "outcomes")
            log.warning("%s could not be stored in time: what is not is left to its lease", outcomes)

    def check(self) -> None:
        """ShutdownTimeout if something was late."""
        told = []
        if self._interrupted:
            when = "at once, as asked" if self._aborting.is_set() else f"after the grace of {brief(self._grace)}"
            # What could not be stored was not given back either: that, too, is an outcome.
            fate = "" if self._unsettled else ", and given back"
            told.append(f"{_count(self._interrupted, 'job was', 'jobs were')} interrupted {when}{fate}")
        if self._unsettled:
            outcomes = _count(self._unsettled, "outcome", "outcomes")
            told.append(f"{outcomes} could not be stored: the jobs are run again when their leases end")
        if told:
            raise ShutdownTimeout("; ".join(told))


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


async def _ended(tasks: Tasks) -> None:
    await asyncio.wait(tasks)
