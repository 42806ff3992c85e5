"""Renews leases from a thread of its own, which also ends the process if a handler blocks the event loop."""

import asyncio
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

from dutiful.core import ids
from dutiful.core.job import Claim, ClaimToken
from dutiful.store.claims import LeaseRenewer
from dutiful.worker.config import WorkerConfig
from dutiful.worker.slots import CurrentSlot, Slots

EXIT_STUCK = 70  # the exit code of a worker whose event loop was held by a job past its time
CHECK_EVERY = 1.0
PART = "renewal of leases"


class ClaimBatch:
    """Claims that were made together, so that they are renewed together."""

    __slots__ = ("claimed", "renewed")

    def __init__(self) -> None:
        self.claimed = self.renewed = time.monotonic()


HeldLease = tuple[Claim, ClaimBatch]


class Leases:
    """Every claim that this worker holds: in a buffer, running, or about to be settled.

    By their own ids, not their jobs', because a job that was lost may be claimed again while its first handler still
    runs. The event loop adds and drops, the renewal thread reads.
    """

    def __init__(self) -> None:
        self._held: dict[int, HeldLease] = {}
        self._underway: set[asyncio.Future[None]] = set()
        self._on_drop: dict[int, Callable[[], None]] = {}

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Surrounds a claim: until its answer has been added, it may hold jobs that are not known here."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._underway.add(answer)
        try:
            yield
        finally:
            self._underway.discard(answer)
            answer.set_result(None)

    async def wait_for_claims(self) -> None:
        """Waits for the claims that are under way."""
        if self._underway:
            await asyncio.wait(list(self._underway))

    def add(self, claims: Iterable[Claim]) -> None:
        batch = ClaimBatch()
        self._held.update({claim.claim_id: (claim, batch) for claim in claims})

    def drop(self, claim_ids: Sequence[int]) -> None:
        pop = self._held.pop
        for claim_id in claim_ids:
            pop(claim_id, None)
        if self._on_drop:
            for call in [self._on_drop.pop(claim_id) for claim_id in claim_ids if claim_id in self._on_drop]:
                call()

    def on_drop(self, claim_id: int, call: Callable[[], None]) -> None:
        """Calls this when the claim is no longer held: its outcome is stored, or it was lost."""
        if claim_id in self._held:
            self._on_drop[claim_id] = call
        else:
            call()

    def claim(self, claim_id: int) -> Claim | None:
        held = self._held.get(claim_id)
        return held[0] if held else None

    def valid_since(self, claim_id: int, now: float, lease: float) -> float | None:
        """When a claim was made; None if it is known to be lost, or was not renewed for the length of its lease."""
        held = self._held.get(claim_id)
        return held[1].claimed if held is not None and now - held[1].renewed < lease else None

    def snapshot(self) -> list[HeldLease]:
        return list(self._held.values())  # one step of the interpreter, so that no lock is needed


class LeaseRenewalThread:
    """Renews leases of running jobs every third of their length."""

    def __init__(self, config: WorkerConfig, leases: Leases, slots: Slots, current: CurrentSlot) -> None:
        self._leases = leases
        self._slots = slots
        self._current = current
        self._outages = config.outages
        self._open_renewer = config.store.claims.renewer
        self._lease = config.settings.lease
        self._grace = config.settings.watchdog.total_seconds()
        self._cancel_grace = config.settings.cancel_grace.total_seconds() + self._grace
        self._cancelled: dict[UUID, float] = {}  # when each request to cancel a held job was first seen
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        # Not half: a renewal that fails or finds a row locked still has a second chance in time.
        self._third = self._lease.total_seconds() / 3
        self._every = min(CHECK_EVERY, self._third / 2)
        self._unanswered = 0  # calls of the event loop, one a turn: a time would go on while this process is stopped
        self._thread = threading.Thread(target=self._run, name="dutiful leases", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        renewer: LeaseRenewer | None = None
        third = self._third
        while not self._stop.wait(self._every):
            try:
                self._check_event_loop(renewer)
                now = time.monotonic()
                held = [h for h in self._leases.snapshot() if now - h[1].renewed >= min(CHECK_EVERY, third)]
                if held:
                    renewer = renewer or self._open_renewer()
                    self._renew(renewer, held, third)
                self._outages.works(PART)
            except Exception as error:
                self._outages.failed(PART, error)
        if renewer is not None:
            renewer.close()

    def _renew(self, renewer: LeaseRenewer, held: list[HeldLease], third: float) -> None:
        now = time.monotonic()
        due = [h for h in held if now - h[1].renewed >= third]
        young = [h for h in held if now - h[1].renewed < third]
        renewal = renewer.renew([_token(h) for h in due], self._lease)
        for _, batch in due:
            batch.renewed = now
        found = renewer.check([_token(h) for h in young])
        lost = renewal.lost | found.lost
        for claim, _ in held if lost else ():
            if claim.claim_id in lost:
                self._call(self._lose, claim)
        cancelled = renewal.cancel | found.cancel
        self._cancelled = {job_id: self._cancelled.get(job_id, now) for job_id in cancelled}
        for job_id in cancelled:
            self._call(self._slots.cancel, job_id)

    def _lose(self, claim: Claim) -> None:
        """Stops a job whose claim is lost; one that is only buffered will never start here."""
        if not self._slots.lose(claim):
            self._leases.drop([claim.claim_id])

    def _check_event_loop(self, renewer: LeaseRenewer | None) -> None:
        """Ends the process if a job holds the event loop past its time and grace: nothing else can stop it."""
        silent = self._unanswered * self._every
        self._unanswered += 1
        self._call(self._answer)
        slot = self._current.slot
        if silent < 2 * CHECK_EVERY or slot is None:
            return
        deadline, claim, kind, now = slot.deadline, slot.claim, slot.kind, time.monotonic()
        if claim is None or kind is None:
            return
        if deadline is not None and now >= deadline + self._grace:
            problem = f"past its timeout of {slot.timeout}"
        elif now - self._cancelled.get(claim.job_id, now) >= self._cancel_grace:
            problem = "although it was cancelled"
        else:
            return
        sys.stderr.write(
            f"dutiful: job {ids.public(claim.job_id)} ({kind.name}) holds the event loop {problem}; "
            "this worker ends itself. Use `await`, or a plain function, which runs in a thread.\n"
        )
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.flush()
        try:
            # The other jobs are not at fault, so they are released without spending an attempt.
            at_fault = {one.job_id for one in [claim, *slot.claims]}
            others = [_token(h) for h in self._leases.snapshot() if h[0].job_id not in at_fault]
            (renewer or self._open_renewer()).release(others)
        finally:
            os._exit(EXIT_STUCK)

    def _answer(self) -> None:
        self._unanswered = 0

    def _call(self, function: Callable[..., None], *args: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)


def _token(held: HeldLease) -> ClaimToken:
    return ClaimToken(held[0].job_id, held[0].claim_id)
