"""Keeps leases alive from a thread of its own, and watches that the event loop is alive too."""

import asyncio
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from dutiful.core import ids
from dutiful.core.errors import DutifulError
from dutiful.core.job import Claim
from dutiful.store import Keeper, Token
from dutiful.worker.slot import Slot, Stepping

log = logging.getLogger("dutiful.worker")
STUCK = 70  # the exit code of a worker whose event loop was held by a job past its timeout
LOOK = 1.0


class Batch:
    """Claims that were made together, so that they are renewed together."""

    __slots__ = ("renewed",)

    def __init__(self) -> None:
        self.renewed = time.monotonic()


Held = tuple[Claim, Batch]


class Leases:
    """Every claim in this worker's hands: waiting in a buffer, running, or about to be settled.

    The loop adds and drops, the keeper's thread reads.
    """

    def __init__(self) -> None:
        self._held: dict[UUID, Held] = {}

    def add(self, claims: Iterable[Claim]) -> None:
        batch = Batch()
        self._held.update({claim.job_id: (claim, batch) for claim in claims})

    def drop(self, job_ids: Iterable[UUID]) -> None:
        pop = self._held.pop
        for job_id in job_ids:
            pop(job_id, None)

    def claim(self, job_id: UUID) -> Claim | None:
        held = self._held.get(job_id)
        return held[0] if held else None

    def snapshot(self) -> list[Held]:
        return list(self._held.values())  # one step of the interpreter, so that no lock is needed

    def __len__(self) -> int:
        return len(self._held)


class LeaseKeeper:
    """The thread. `on_lost` and `on_cancel` are called on the event loop."""

    def __init__(
        self,
        leases: Leases,
        open_keeper: Callable[[], Keeper],
        lease: timedelta,
        slots: Sequence[Slot],
        stepping: Stepping,
        grace: timedelta,
        on_lost: Callable[[UUID], None],
        on_cancel: Callable[[UUID], None],
    ) -> None:
        self._leases = leases
        self._open_keeper = open_keeper
        self._lease = lease
        self._slots = slots
        self._stepping = stepping
        self._grace = grace.total_seconds()
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answered = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="dutiful leases", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        keeper: Keeper | None = None
        half = self._lease.total_seconds() / 2
        every = min(LOOK, half / 2)
        while not self._stop.wait(every):
            try:
                self._watch(keeper)
                now = time.monotonic()
                held = [h for h in self._leases.snapshot() if now - h[1].renewed >= min(LOOK, half)]
                if not held:
                    continue
                keeper = keeper or self._open_keeper()
                self._keep(keeper, held, half)
            except DutifulError as error:
                log.warning("leases could not be renewed: %s", error)
            except Exception:
                log.exception("the lease keeper met an error and goes on")
        if keeper is not None:
            keeper.close()

    def _keep(self, keeper: Keeper, held: list[Held], half: float) -> None:
        now = time.monotonic()
        due = [h for h in held if now - h[1].renewed >= half]
        young = [h for h in held if now - h[1].renewed < half]
        renewal = keeper.renew([_token(h) for h in due], self._lease)
        for _, batch in due:
            batch.renewed = now
        found = keeper.check([_token(h) for h in young])
        for job_id in renewal.lost | found.lost:
            self._call(self._on_lost, job_id)
        for job_id in renewal.cancel | found.cancel:
            self._call(self._on_cancel, job_id)

    def _watch(self, keeper: Keeper | None) -> None:
        """End the process if a job holds the event loop past its timeout and grace: nothing else can stop it."""
        self._call(self._answer)
        silent = time.monotonic() - self._answered
        slot = self._stepping.slot
        if silent < 2 * LOOK or slot is None:
            return
        deadline, claim, kind = slot.deadline, slot.claim, slot.kind
        if deadline is None or claim is None or kind is None or time.monotonic() < deadline + self._grace:
            return
        sys.stderr.write(
            f"dutiful: job {ids.public(claim.job_id)} ({kind.name}) holds the event loop past its timeout of "
            f"{kind.timeout}; this worker ends itself. Use `await`, or a plain function, which runs in a thread.\n"
        )
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.flush()
        try:
            # The others are innocent: back in line, no attempt spent.
            others = [_token(h) for h in self._leases.snapshot() if h[0].job_id != claim.job_id]
            (keeper or self._open_keeper()).release(others)
        finally:
            os._exit(STUCK)

    def _answer(self) -> None:
        self._answered = time.monotonic()

    def _call(self, function: Callable[..., None], *args: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)


def _token(held: Held) -> Token:
    return Token(held[0].job_id, held[0].claim_id)
