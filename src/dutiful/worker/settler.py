"""Settles outcomes in batches: while one round trip is under way, what comes in waits for the next."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.error_info import describe
from dutiful.core.errors import DataRefused, DutifulError
from dutiful.core.job import Claim, Lapsed
from dutiful.core.outcome import Cancelled, Done, Failed, Outcome, Released
from dutiful.core.settle import ZERO, Change, Policy, Uniform, decide
from dutiful.core.transitions import State
from dutiful.kind import Kind
from dutiful.store import Completion, Refusal, Verdict, Work
from dutiful.worker.lease import Leases

log = logging.getLogger("dutiful.worker")
BATCH = 1_000
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0


class Settler:
    def __init__(
        self,
        work: Work,
        kinds: Mapping[str, Kind[Any, Any]],
        leases: Leases,
        uniform: Uniform,
        settled: Callable[[Claim, Change], None] | None = None,
    ) -> None:
        self._work = work
        self._kinds = kinds
        self._leases = leases
        self._uniform = uniform
        self._settled = settled or (lambda claim, change: None)
        self._done: list[Completion] = []
        self._changes: list[tuple[Claim, Change]] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self.count = 0

    @property
    def pending(self) -> int:
        return len(self._done) + len(self._changes)

    def settle(self, claim: Claim, outcome: Outcome) -> None:
        """Hand over an outcome; it is written soon, and again until the store has answered."""
        if type(outcome) is Done:
            self._done.append(Completion(claim.job_id, claim.claim_id, outcome.result))
        else:
            self._changes.append((claim, self._decide(claim, outcome)))
        self._wake.set()

    def give_back(self, held: Lapsed) -> None:
        """Return a claim that this worker holds without knowing its job."""
        claim = Claim(
            job_id=held.job_id,
            claim_id=held.claim_id,
            attempt=held.attempt,
            crashes=held.crashes,
            seq=0,
            kind=held.kind,
            queue="",
            payload="{}",
            priority=0,
            max_attempts=1,
            tenant=None,
            correlation_id=None,
            parent_id=None,
            subject=None,
            options=None,
        )
        self.settle(claim, Released())

    def _decide(self, claim: Claim, outcome: Outcome) -> Change:
        kind = self._kinds.get(claim.kind)
        try:
            return decide(claim, outcome, kind.policy if kind else Policy(), claim.max_attempts, self._uniform)
        except Exception as error:
            log.exception("the retry policy of kind %s failed; its job %s too", claim.kind, ids.public(claim.job_id))
            return decide(claim, Failed(describe(error), final=True), Policy(), claim.max_attempts, self._uniform)

    async def run(self) -> None:
        pause = FIRST_RETRY
        while not (self._closing and not self.pending):
            await self._wake.wait()
            self._wake.clear()
            self._idle.clear()
            while self.pending:
                done, self._done = self._done[:BATCH], self._done[BATCH:]
                changes, self._changes = self._changes[:BATCH], self._changes[BATCH:]
                try:
                    if done:
                        await self._complete(done)
                        done = []
                    if changes:
                        await self._apply(changes)
                        changes = []
                    pause = FIRST_RETRY
                except DutifulError as error:
                    # Kept and tried again: nothing that a handler has done is forgotten while we live.
                    self._done, self._changes = done + self._done, changes + self._changes
                    log.warning("outcomes wait to be settled: %s", error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_RETRY)
            self._idle.set()

    async def _complete(self, done: Sequence[Completion]) -> None:
        try:
            refused = await self._work.complete(done)
        except DataRefused as error:
            if len(done) > 1:
                middle = len(done) // 2
                await self._complete(done[:middle])
                await self._complete(done[middle:])
                return
            await self._refused_result(done[0], error)
            return
        self.count += len(done)
        self._leases.drop([d.claim_id for d in done])
        if refused:
            _report(refused)

    async def _refused_result(self, done: Completion, error: DataRefused) -> None:
        """The database would not take this result: the attempt has failed, its neighbours have not."""
        claim = self._leases.claim(done.claim_id)
        if claim is not None:
            info = {"type": "ResultRefused", "message": f"the job's result could not be stored: {error}"[:2000]}
            await self._apply([(claim, self._decide(claim, Failed(info, final=True)))])

    async def _apply(self, changes: Sequence[tuple[Claim, Change]]) -> None:
        try:
            refused = await self._work.settle([change for _, change in changes])
        except DataRefused:
            if len(changes) > 1:
                middle = len(changes) // 2
                await self._apply(changes[:middle])
                await self._apply(changes[middle:])
                return
            claim, change = changes[0]
            info = {"type": "ErrorRefused", "message": "the job failed, and its error could not be stored"}
            refused = await self._work.settle([msgspec.structs.replace(change, result=None, errors=(info,))])
        self.count += len(changes)
        asked = {r.job_id for r in refused if r.verdict is Verdict.CANCEL_REQUESTED}
        self._leases.drop([claim.claim_id for claim, _ in changes if claim.job_id not in asked])
        for claim, change in changes:
            if claim.job_id not in asked:
                _tell_of(claim, change)
                self._settled(claim, change)
        _report([r for r in refused if r.verdict is not Verdict.CANCEL_REQUESTED])
        if asked:
            # It was to live on, but somebody cancelled it meanwhile.
            again = [
                (claim, self._decide(claim, Cancelled("cancelled"))) for claim, _ in changes if claim.job_id in asked
            ]
            await self._apply(again)

    async def flush(self) -> None:
        """Wait until everything handed over has been settled."""
        if self.pending:
            self._wake.set()
            self._idle.clear()
        await self._idle.wait()

    def close(self) -> None:
        self._closing = True
        self._wake.set()


def _tell_of(claim: Claim, change: Change) -> None:
    """A failed attempt is worth a line: nobody looks at the database before they know that something is wrong."""
    if change.outcome not in ("failed", "timed_out"):
        return
    error = change.errors[0] if change.errors else {}
    if change.to is State.FAILED:
        fate = "it is a dead letter now"
    else:
        fate = f"it is tried again in {brief(change.delay or ZERO)}"
    log.warning(
        "job %s (%s) failed at attempt %d of %d: %s: %s; %s",
        ids.public(claim.job_id),
        claim.kind,
        claim.attempt,
        claim.max_attempts,
        error.get("type"),
        str(error.get("message"))[:500],
        fate,
    )


def _report(refused: Sequence[Refusal]) -> None:
    for refusal in refused:
        if refusal.verdict is Verdict.LOST:
            log.warning("job %s: its claim was lost, so this outcome is discarded", ids.public(refusal.job_id))
