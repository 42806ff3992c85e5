"""Jobs that a broker delivers to this worker by their ids, until a lane claims them."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from dutiful.core import ids
from dutiful.core.job import Claim
from dutiful.core.states import State
from dutiful.declare.lane import ANY, LaneSettings
from dutiful.observe.sparse import SparseLog
from dutiful.store.claims import JobClaimRequest
from dutiful.worker.config import WorkerConfig
from dutiful.worker.lanes.selection import select

log = logging.getLogger("dutiful.delivery")
AGAIN = 1.0  # seconds until a job is asked for again that is ready and could not be claimed, because of a pause


class Receipt(Enum):
    """What has become of a message."""

    CLAIMED = "claimed"
    USELESS = "useless"  # no job waits for it here: it runs or has ended, or is not due; there is none; another queue's
    ELSEWHERE = "elsewhere"  # its job is ready, but only another worker may run it


@dataclass(eq=False, slots=True)
class _Message:
    job_id: UUID
    backend_job_id: str
    receipt: "asyncio.Future[Receipt]"


class Inbox:
    """The messages that wait for a slot, by queue, oldest first. No more are in hand than their sender lets come."""

    def __init__(self) -> None:
        self.on_arrival: list[Callable[[], None]] = []
        self._queues: dict[str, deque[_Message]] = {}

    async def offer(self, queue: str, job_id: UUID, backend_job_id: str, timeout: float) -> Receipt | None:
        """Waits until a lane has claimed the job or learned that it need not; None if that takes too long."""
        message = _Message(job_id, backend_job_id, asyncio.get_running_loop().create_future())
        self._put(queue, message)
        try:
            return await asyncio.wait_for(asyncio.shield(message.receipt), timeout)
        except TimeoutError:
            return None
        finally:
            message.receipt.cancel()  # if there is none yet, no lane claims it from now on

    def has(self, queues: tuple[str, ...]) -> bool:
        return any(self._queues[queue] for queue in self._served(queues))

    def take(self, queues: tuple[str, ...], limit: int) -> list[tuple[str, _Message]]:
        """Up to `limit` messages of these queues, with their queues; queues take turns."""
        taken: list[tuple[str, _Message]] = []
        served = [queue for queue in self._served(queues) if self._queues[queue]]
        while served and len(taken) < limit:
            for queue in served:
                message = self._queues[queue].popleft()
                if not message.receipt.done() and len(taken) < limit:
                    taken.append((queue, message))
                elif not message.receipt.done():
                    self._queues[queue].appendleft(message)
            served = [queue for queue in served if self._queues[queue]]
        return taken

    def put_back(self, messages: Iterable[tuple[str, _Message]]) -> None:
        for queue, message in messages:
            if not message.receipt.done():
                self._put(queue, message)

    def _served(self, queues: tuple[str, ...]) -> list[str]:
        return [queue for queue in self._queues if ANY in queues or queue in queues]

    def _put(self, queue: str, message: _Message) -> None:
        self._queues.setdefault(queue, deque()).append(message)
        for wake in self.on_arrival:
            wake()


class InboxSource:
    """Claims for a lane the jobs whose messages have come."""

    more = False

    def __init__(self, config: WorkerConfig, inbox: Inbox, lane: LaneSettings) -> None:
        self._config = config
        self._inbox = inbox
        self._selection = select(config, lane)
        self._lane = lane
        self._queues = () if ANY in lane.queues else lane.queues
        self._explaining: set[asyncio.Task[None]] = set()
        self._dropped = SparseLog(log)

    @property
    def empty(self) -> bool:
        return not self._inbox.has(self._lane.queues)

    async def claim(self, want: int, suspects: int) -> list[Claim]:
        config, taken = self._config, self._inbox.take(self._lane.queues, want)
        request = JobClaimRequest(
            config.worker_id,
            self._lane.name,
            [*dict.fromkeys(message.job_id for _, message in taken)],
            list(self._selection.kinds),
            config.settings.lease,
            suspects,
            self._selection.tenants,
            self._queues,
        )
        try:
            claims = await config.store.claims.claim_jobs(request) if taken else []
        except BaseException:
            self._inbox.put_back(taken)  # the claim may have been made: then it is released as unknown, and ready again
            raise
        claimed = {claim.job_id for claim in claims}
        rest = []
        for queue, message in taken:
            if message.job_id in claimed:
                _answer(message, Receipt.CLAIMED)
            else:
                rest.append((queue, message))
        if rest:
            # In the background, because the jobs that were claimed need not wait for it.
            explaining = asyncio.create_task(self._explain(rest), name="dutiful unclaimed deliveries")
            self._explaining.add(explaining)
            explaining.add_done_callback(self._explained)
        return claims

    async def _explain(self, rest: list[tuple[str, _Message]]) -> None:
        """Finds out why jobs could not be claimed; those that may be later come back."""
        again = list(rest)
        try:
            for queue, message in rest:
                receipt = await self._receipt(message)
                if receipt is not None:
                    again.remove((queue, message))
                    _answer(message, receipt)
        finally:
            if again:
                asyncio.get_running_loop().call_later(AGAIN, self._inbox.put_back, again)

    async def _receipt(self, message: _Message) -> Receipt | None:
        store = self._config.store
        job = await store.queries.job(message.job_id)
        if job is None:
            self._dropped.warning(
                "no job", "a message from Redis names job %s, which does not exist; it is dropped", message.job_id
            )
            return Receipt.USELESS
        if job.state is not State.READY:
            log.debug("the delivery of job %s is dropped: it is %s", ids.public(job.id), job.state.value)
            await store.deliveries.take([(message.job_id, message.backend_job_id)])
            return Receipt.USELESS
        if self._queues and job.queue not in self._queues:
            self._dropped.warning(
                "another queue",
                "a message of job %s came through another queue than its own, %s: it is dropped, and sent again there",
                ids.public(job.id),
                job.queue,
            )
            await store.deliveries.take([(message.job_id, message.backend_job_id)])
            return Receipt.USELESS
        kinds, tenants = self._selection.kinds, self._selection.tenants
        if job.kind not in kinds or (tenants and job.tenant not in tenants):
            self._dropped.log(
                logging.INFO,
                "elsewhere",
                "job %s (%s) is left to another worker: this one does not run its %s",
                ids.public(job.id),
                job.kind,
                "tenant" if job.kind in kinds else "kind",
            )
            return Receipt.ELSEWHERE
        return None

    def _explained(self, task: "asyncio.Task[None]") -> None:
        self._explaining.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("deliveries that could not be claimed are asked for again: %s", error)


def _answer(message: _Message, receipt: Receipt) -> None:
    if not message.receipt.done():
        message.receipt.set_result(receipt)
