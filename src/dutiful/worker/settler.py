"""Settles outcomes in batches: while one round trip is under way, what comes in waits for the next."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.error_class import ErrorClass
from dutiful.core.error_info import class_of, made
from dutiful.core.errors import DataRefused, DutifulError
from dutiful.core.job import Claim, Lapsed
from dutiful.core.outcome import Cancelled, Done, Failed, Outcome, Released
from dutiful.core.settle import ZERO, Change, Policy, Uniform, decide_surely
from dutiful.core.transitions import State
from dutiful.kind import Kind
from dutiful.observe.logs import about
from dutiful.worker.lease import Leases
from dutiful.worker.pile import NONE, Ended, Pile, Span
from dutiful.worker.tallies import Tallies
from dutiful.working import Completion, Refusal, Verdict, Work

log = logging.getLogger("dutiful.worker")
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0
AGAIN = 1.0  # how often to look whether what is locked is free


class Settler:
    def __init__(
        self,
        work: Work,
        kinds: Mapping[str, Kind[Any, Any]],
        leases: Leases,
        uniform: Uniform,
        settled: Callable[[Claim, Change], None] | None = None,
        ended: Callable[[bool], None] | None = None,
        tallies: Tallies | None = None,
        span_of: Callable[[Claim], Mapping[str, str]] | None = None,
    ) -> None:
        """`ended` hears that jobs are final now, and whether one of them names a webhook; `span_of` says which span
        an attempt had that failed."""
        self._work = work
        self._kinds = kinds
        self._leases = leases
        self._uniform = uniform
        self._settled = settled or (lambda claim, change: None)
        self._ended = ended or (lambda webhook: None)
        self._tallies = tallies
        self._span_of = span_of or (lambda claim: {})
        self._waiting = Pile()
        self._under_way = Pile()
        # Somebody's open transaction holds their leases: tried again now and then, and never waited for.
        self._aside = Pile()
        self._again_at = 0.0
        self._trying_again = False
        self._skip_locked = False  # since the last try failed, perhaps because of such a lease
        self._pause = FIRST_RETRY
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self.count = 0

    @property
    def pending(self) -> int:
        """How many wait for their turn."""
        return len(self._waiting) + len(self._aside)

    @property
    def unsettled(self) -> set[int]:
        """The claims whose outcomes were handed over and are not known to be stored."""
        return self._waiting.claims | self._under_way.claims | self._aside.claims

    def settle(self, claim: Claim, outcome: Outcome | State, span: Span | None = None) -> None:
        """Hand over an outcome; it is written soon, and again until the store has answered.

        A state: the handler's own transaction has written it. Without a span it was not an attempt.
        """
        if type(outcome) is Done:
            done = Completion(claim.job_id, claim.claim_id, outcome.result, _names_webhook(claim))
            self._waiting.done.append((claim, done, span or NONE))
        elif isinstance(outcome, State):
            self._leases.drop([claim.claim_id])
            if self._tallies is not None:
                self._tallies.stored(outcome, claim, span or NONE)
            return
        else:
            self._note(claim, span)
            self._waiting.changes.append((claim, self._decide(claim, outcome)))
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
            tenant=held.tenant,
            correlation_id=held.correlation_id,
            parent_id=None,
            subject=None,
            options=None,
        )
        self.settle(claim, Released())

    def give_back_rest(self) -> None:
        """Return every claim in this worker's hands whose outcome was not handed over."""
        handed_over = self.unsettled
        for claim, _ in self._leases.snapshot():
            if claim.claim_id not in handed_over:
                self.settle(claim, Released())

    def _decide(self, claim: Claim, outcome: Outcome) -> Change:
        kind = self._kinds.get(claim.kind)
        policy = kind.policy if kind else Policy()
        return decide_surely(claim, outcome, policy, claim.max_attempts, self._uniform)

    async def run(self) -> None:
        while not (self._closing and not self.pending):
            await self._called()
            self._idle.clear()
            while self._waiting:
                await self._settle_some(self._waiting)
            if self._aside and time.monotonic() >= self._again_at:
                self._skip_locked = self._trying_again = True
                await self._settle_some(self._aside)
                self._trying_again = False
            if not self.pending:
                self._idle.set()

    async def _called(self) -> None:
        if self._aside:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), AGAIN)
        else:
            await self._wake.wait()
        self._wake.clear()

    async def _settle_some(self, pile: Pile) -> None:
        batch = self._under_way = pile.take()
        try:
            if batch.done:
                await self._complete(batch.done)
                batch.done = []
            if batch.changes:
                await self._apply(batch.changes)
            self._under_way = Pile()
            self._pause, self._skip_locked = FIRST_RETRY, False
        except DutifulError as error:
            # Kept and tried again: nothing that a handler has done is forgotten while we live.
            pile.put_back(batch)
            self._under_way = Pile()
            self._skip_locked = True
            log.warning("outcomes wait to be settled: %s", error)
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_RETRY)

    async def _complete(self, done: Sequence[Ended]) -> None:
        try:
            refused = await self._work.complete([one for _, one, _ in done], skip_locked=self._skip_locked)
        except DataRefused as error:
            if len(done) > 1:
                middle = len(done) // 2
                await self._complete(done[:middle])
                await self._complete(done[middle:])
                return
            await self._refused_result(done[0], error)
            return
        if refused and (locked := _of(refused, Verdict.LOCKED)):
            self._put_aside(Pile([one for one in done if one[0].claim_id in locked]))
            done = [one for one in done if one[0].claim_id not in locked]
        self.count += len(done)
        self._leases.drop([claim.claim_id for claim, _, _ in done])
        self._ended(any(one.webhook for _, one, _ in done))
        if self._tallies is not None:
            lost = _of(refused, Verdict.LOST)
            self._tallies.completed([one for one in done if one[0].claim_id not in lost] if lost else done)
            # The next batch goes out first, so that they are counted while the store is at work.
            asyncio.get_running_loop().call_soon(self._tallies.count)
        if refused:
            _report(refused, [claim for claim, _, _ in done])

    async def _refused_result(self, ended: Ended, error: DataRefused) -> None:
        """The database would not take this result: the attempt has failed, its neighbours have not."""
        claim, _, span = ended
        if self._leases.claim(claim.claim_id) is not None:
            message = f"the job's result could not be stored: {error}"
            info = made("ResultRefused", message, ErrorClass.NON_RETRYABLE)
            self._note(claim, span)
            await self._apply([(claim, self._decide(claim, Failed(info, final=True)))])

    async def _apply(self, changes: Sequence[tuple[Claim, Change]]) -> None:
        try:
            refused = await self._work.settle([change for _, change in changes], skip_locked=self._skip_locked)
        except DataRefused:
            if len(changes) > 1:
                middle = len(changes) // 2
                await self._apply(changes[:middle])
                await self._apply(changes[middle:])
                return
            claim, change = changes[0]
            error_class = class_of(change.errors[0]) if change.errors else None
            message = "the job failed, and its error could not be stored"
            info = made("ErrorRefused", message, error_class or ErrorClass.RETRYABLE)
            storable = msgspec.structs.replace(change, result=None, errors=(info,))
            refused = await self._work.settle([storable], skip_locked=self._skip_locked)
        if locked := _of(refused, Verdict.LOCKED):
            self._put_aside(Pile(changes=[(claim, change) for claim, change in changes if claim.claim_id in locked]))
            changes = [(claim, change) for claim, change in changes if claim.claim_id not in locked]
        self.count += len(changes)
        asked = _of(refused, Verdict.CANCEL_REQUESTED)
        self._leases.drop([claim.claim_id for claim, _ in changes if claim.claim_id not in asked])
        for claim, change in changes:
            if claim.claim_id not in asked:
                self._tell_of(claim, change)
                self._settled(claim, change)
                if change.to.final:
                    self._ended(_names_webhook(claim))
        self._count([one for one in changes if one[0].claim_id not in asked], refused)
        _report(refused, [claim for claim, _ in changes])
        if asked:
            # It was to live on, but somebody cancelled it meanwhile.
            again = [
                (claim, self._decide(claim, Cancelled("cancelled"))) for claim, _ in changes if claim.claim_id in asked
            ]
            await self._apply(again)

    def _note(self, claim: Claim, span: Span | None) -> None:
        if self._tallies is not None and span is not None:
            self._tallies.ended(claim, span)

    def _count(self, changes: Sequence[tuple[Claim, Change]], refused: Sequence[Refusal]) -> None:
        if self._tallies is None:
            return
        lost, repeated = _of(refused, Verdict.LOST), _of(refused, Verdict.REPEATED)
        for claim, change in changes:
            # That an attempt was lost, whoever took its claim away has said before.
            if claim.claim_id in lost or (change.outcome == "lost" and claim.claim_id in repeated):
                self._tallies.refused(claim)
            else:
                self._tallies.settled(claim, change)

    def _tell_of(self, claim: Claim, change: Change) -> None:
        """A failed attempt is worth a line: nobody looks at the database before they know that something is wrong."""
        if change.outcome not in ("failed", "timed_out"):
            return
        span = self._span_of(claim)  # which has ended, so no line would name it by itself
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
            extra={**about(claim), **span},
        )

    def _put_aside(self, locked: Pile) -> None:
        if not self._trying_again:
            log.warning("%d outcomes wait for transactions that hold their leases; the others do not", len(locked))
        self._aside.put_back(locked)
        self._again_at = time.monotonic() + AGAIN

    async def flush(self) -> None:
        """Wait until everything handed over has been settled."""
        if self.pending:
            self._wake.set()
            self._idle.clear()
        await self._idle.wait()

    def close(self) -> None:
        self._closing = True
        self._wake.set()


def _of(refused: Sequence[Refusal], verdict: Verdict) -> set[int]:
    return {refusal.claim_id for refusal in refused if refusal.verdict is verdict}


def _names_webhook(claim: Claim) -> bool:
    return claim.options is not None and '"webhook"' in claim.options


def _report(refused: Sequence[Refusal], claims: Sequence[Claim]) -> None:
    known = {claim.claim_id: claim for claim in claims}
    for refusal in refused:
        if refusal.verdict is Verdict.LOST:
            job, claim = ids.public(refusal.job_id), known.get(refusal.claim_id)
            fields = {"job": job} if claim is None else about(claim)
            log.warning("job %s: its claim was lost, so this outcome is discarded", job, extra=fields)
