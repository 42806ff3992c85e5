"""Keeps leases alive from a thread of its own, and watches that the event loop is alive too."""

import asyncio
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

from dutiful.core import ids
from dutiful.core.errors import DutifulError
from dutiful.core.job import Claim, Token
from dutiful.worker.slot import Stepping
from dutiful.working import Keeper

log = logging.getLogger("dutiful.worker")
STUCK = 70  # the exit code of a worker whose event loop was held by a job past its timeout
LOOK = 1.0


class Batch:
    """Claims that were made together, so that they are renewed together."""

    __slots__ = ("claimed", "renewed")

    def __init__(self) -> None:
        self.claimed = self.renewed = time.monotonic()


Held = tuple[Claim, Batch]


class Leases:
    """Every claim in this worker's hands: waiting in a buffer, running, or about to be settled.

    By their own ids, not their jobs': a job that was lost may be claimed again while its first handler still runs.
    The loop adds and drops, the keeper's thread reads.
    """

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._underway: set[asyncio.Future[None]] = set()

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Around a claim: until its answer has been added, it may hold jobs that are not known here."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._underway.add(answer)
        try:
            yield
        finally:
            self._underway.discard(answer)
            answer.set_result(None)

    async def answered(self) -> None:
        """Wait for the claims that are under way."""
        if self._underway:
            await asyncio.wait(list(self._underway))

    def add(self, claims: Iterable[Claim]) -> None:
        batch = Batch()
        self._held.update({claim.claim_id: (claim, batch) for claim in claims})

    def drop(self, claim_ids: Iterable[int]) -> list[Claim]:
        """Those of them that were known."""
        pop = self._held.pop
        return [held[0] for claim_id in claim_ids if (held := pop(claim_id, None)) is not None]

    def claim(self, claim_id: int) -> Claim | None:
        held = self._held.get(claim_id)
        return held[0] if held else None

    def good_since(self, claim_id: int, now: float, lease: float) -> float | None:
        """Since when a claim is ours, if it still is as far as we can know: neither told lost nor left unrenewed for
        its lease."""
        held = self._held.get(claim_id)
        return held[1].claimed if held is not None and now - held[1].renewed < lease else None

    def snapshot(self) -> list[Held]:
        return list(self._held.values())  # one step of the interpreter, so that no lock is needed

    def __len__(self) -> int:
        return len(self._held)


class LeaseKeeper:
    """The thread. `on_lost`, which says whether the job runs here, and `on_cancel` are called on the event loop."""

    def __init__(
        self,
        leases: Leases,
        open_keeper: Callable[[], Keeper],
        lease: timedelta,
        stepping: Stepping,
        grace: timedelta,
        on_lost: Callable[[Claim], bool],
        on_cancel: Callable[[UUID], None],
    ) -> None:
        self._leases = leases
        self._open_keeper = open_keeper
        self._lease = lease
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
        # Not half: a renewal that fails or finds a row locked still has a second chance in time.
        third = self._lease.total_seconds() / 3
        every = min(LOOK, third / 2)
        while not self._stop.wait(every):
            try:
                self._watch(keeper)
                now = time.monotonic()
                held = [h for h in self._leases.snapshot() if now - h[1].renewed >= min(LOOK, third)]
                if not held:
                    continue
                keeper = keeper or self._open_keeper()
                self._keep(keeper, held, third)
            except DutifulError as error:
                log.warning("leases could not be renewed: %s", error)
            except Exception:
                log.exception("the lease keeper met an error and goes on")
        if keeper is not None:
            keeper.close()

    def _keep(self, keeper: Keeper, held: list[Held], third: float) -> None:
        now = time.monotonic()
        due = [h for h in held if now - h[1].renewed >= third]
        young = [h for h in held if now - h[1].renewed < third]
        renewal = keeper.renew([_token(h) for h in due], self._lease)
        for _, batch in due:
            batch.renewed = now
        found = keeper.check([_token(h) for h in young])
        lost = renewal.lost | found.lost
        for claim, _ in held if lost else ():
            if claim.claim_id in lost:
                self._call(self._lose, claim)
        for job_id in renewal.cancel | found.cancel:
            self._call(self._on_cancel, job_id)

    def _lose(self, claim: Claim) -> None:
        """Somebody else has this job now; what was claimed ahead and is not started never will be, here."""
        if not self._on_lost(claim):
            self._leases.drop([claim.claim_id])

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
            f"{slot.allowed}; this worker ends itself. Use `await`, or a plain function, which runs in a thread.\n"
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
