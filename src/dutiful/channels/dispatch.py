"""What happens with one claimed job: functions are run in the database, and its provider outside of it.

Each handler that settles runs in the transaction that completes the job, so that its facts are recorded with the
completion or not at all, and never under a claim that was lost. The provider is called outside of any transaction, at
most once under a claim. Success or failure, the job is completed: new attempts are new jobs, which supervisors make.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from dutiful.channels.calls import Accepted, ProviderCalls, Refused
from dutiful.channels.channels import Channel, ChannelCall, RequestInvalid
from dutiful.channels.database import ChannelDatabase, ChannelJob, ClaimTransaction, ConnectionLost, FunctionFailed
from dutiful.channels.envelope import FAILED
from dutiful.channels.payload import (
    BEFORE,
    DB_FUNCTION,
    ERROR,
    SUCCESS,
    PayloadUnusable,
    error_handler_of,
    error_payload,
    function_of,
    handlers_of,
    success_payload,
)
from dutiful.channels.replies import Ending, Reply, after_function, error_of, failed_reply, read_reply, worker_payload
from dutiful.core import ids
from dutiful.core.errors import StoreUnavailable
from dutiful.observe.logs import PROCESS_JOB
from dutiful.observe.outage import OutageLog

log = logging.getLogger("dutiful.channels")
T = TypeVar("T")
TRIES = 3  # of a function that fails by a passing error, or whose connection is lost while it runs
RESTARTS = 10  # of the server that may cut a function: it may be what takes the server down
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
CANCELLED = "the job was cancelled before its provider was called"
Conclude = Callable[[Reply], Ending]


class HeldJob:
    """A claimed job, and what its renewals have found out."""

    def __init__(self, job: ChannelJob) -> None:
        self.job = job
        self.cancel_requested = asyncio.Event()
        self.provider_called = False

    def call_begins(self) -> None:
        self.provider_called = True


class _NotApplied(Exception):
    """The claim is no longer held; raised to roll back what was done under it, perhaps its settlement, too."""

    type = "JobSettled"

    def __init__(self) -> None:
        super().__init__("it has settled its own job, which is left to the worker")


class _CancelRequested(Exception):
    pass


class Dispatcher:
    def __init__(
        self,
        database: ChannelDatabase,
        channels: Mapping[str, Channel],
        calls: ProviderCalls,
        lease: timedelta,
        outages: OutageLog,
    ) -> None:
        self._database = database
        self._channels = channels
        self._calls = calls
        self._lease = lease
        self._outages = outages

    async def run(self, held: HeldJob) -> None:
        """Returns when the job is settled, or its claim is lost."""
        job = held.job
        PROCESS_JOB.set(_log_fields(job))  # this task, and what it starts, works for no other job
        try:
            if job.kind == DB_FUNCTION:
                await self._run_function(held)
            else:
                await self._use_channel(held, self._channels[job.kind])
        except _NotApplied:
            await self._record_loss(job)

    # --- db_function

    async def _run_function(self, held: HeldJob) -> None:
        job = held.job
        try:
            name = function_of(job.payload)
        except PayloadUnusable as error:
            await self._complete(job, Ending(FAILED, None, (_unusable(error),)))
            return

        try:
            # Nothing of it is kept if it is interrupted, so a request to cancel ends it.
            await _unless_cancelled(held, self._conclude(job, DB_FUNCTION, name, job.payload, after_function))
        except _CancelRequested:
            await self._patiently(lambda: self._database.release(job))

    # --- channels

    async def _use_channel(self, held: HeldJob, channel: Channel) -> None:
        job = held.job
        try:
            handlers = handlers_of(job.payload)
        except PayloadUnusable as error:
            await self._fail(job, error_handler_of(job.payload), str(error), _unusable(error))
            return
        try:
            reply = await _unless_cancelled(held, self._prepare(job, handlers.before))
            _log_reply(job, reply)
            if reply.problem is not None:
                await self._fail(job, handlers.error, reply.problem, *reply.errors, status=reply.envelope.status)
                return
            request = channel.read(reply.envelope.payload)
            await self._check_claim(job)
        except RequestInvalid as error:
            problem = f"{BEFORE} {handlers.before} {error}"
            await self._fail(job, handlers.error, problem, error_of("RequestInvalid", problem, retryable=False))
            return
        except _CancelRequested:
            await self._cancel(job, handlers.error)
            return
        call = ChannelCall(job.job_id, str(job.job_id), job.attempt + job.crashes)
        match await self._calls.call(channel, request, call, held.call_begins):
            case Refused(text, error_info):
                await self._fail(job, handlers.error, text, error_info)
            case Accepted(value):
                await self._succeed(job, channel, handlers.success, value)

    async def _prepare(self, job: ChannelJob, handler: str) -> Reply:
        async def attempt() -> Reply:
            async with self._database.transaction() as transaction:
                return read_reply(BEFORE, handler, await transaction.run(handler, job.payload))

        try:
            return await self._patiently(attempt)
        except FunctionFailed as failed:
            return failed_reply(BEFORE, handler, failed.type, str(failed))

    async def _check_claim(self, job: ChannelJob) -> None:
        """Renews once more, because from here on the work cannot be taken back."""
        match await self._patiently(lambda: self._database.renew_one(job, self._lease)):
            case "held":
                return
            case "cancel_requested":
                raise _CancelRequested
            case _:
                raise _NotApplied

    async def _succeed(self, job: ChannelJob, channel: Channel, handler: str, value: Any) -> None:
        provided, errors = worker_payload(channel.name, value)

        # If it fails, that is no case for the error handler: the provider has done its work, and would do it twice.
        def ending(reply: Reply) -> Ending:
            return Ending(reply.envelope.status, True, (*errors, *reply.errors))

        await self._conclude(job, SUCCESS, handler, success_payload(job.payload, provided), ending)

    async def _fail(
        self, job: ChannelJob, handler: str | None, text: str, *errors: dict[str, Any], status: str = FAILED
    ) -> None:
        log.warning("job %s (%s) failed: %s", ids.public(job.job_id), job.kind, text)

        def ending(reply: Reply | None) -> Ending:
            return Ending(status, False, errors if reply is None else (*errors, *reply.errors))

        if handler is None:
            await self._complete(job, ending(None))
        else:
            await self._conclude(job, ERROR, handler, error_payload(job.payload, text), ending)

    async def _cancel(self, job: ChannelJob, handler: str) -> None:
        """Records the attempt as failed, and lets the job end as cancelled."""
        await self._conclude(job, ERROR, handler, error_payload(job.payload, CANCELLED), None)

    # --- in the database

    async def _conclude(self, job: ChannelJob, role: str, function: str, payload: str, ending: Conclude | None) -> None:
        """Runs a function and completes the job by its reply, in one transaction; without `ending`, releases the job.

        If the function raises, nothing of it is kept, and the job is settled without it. So it is if the claim is gone:
        that is refused, unless it was the function itself that had settled the job.
        """

        async def attempt() -> None:
            async with self._database.transaction() as transaction:
                reply = read_reply(role, function, await transaction.run(function, payload))
                answer = await _settle(transaction, job, reply, ending)
                if answer not in ("applied", "cancelled"):
                    raise _NotApplied

        try:
            await self._patiently(attempt)
        except (FunctionFailed, _NotApplied) as failed:
            reply = failed_reply(role, function, failed.type, str(failed))
            if isinstance(failed, FunctionFailed):
                _log_reply(job, reply)
            if ending is None:
                await self._patiently(lambda: self._database.release(job))
            else:
                await self._complete(job, ending(reply))

    async def _complete(self, job: ChannelJob, ending: Ending) -> None:
        """Completes a job for which no function is left to run."""

        async def attempt() -> str:
            async with self._database.transaction() as transaction:
                return await transaction.complete(job, ending.result, ending.errors)

        if await self._patiently(attempt) == "lost":
            _log_loss(job)

    async def _record_loss(self, job: ChannelJob) -> None:
        # What ran was rolled back, and with it the record that this outcome was refused: so it is made again.
        await self._complete(job, Ending(FAILED))

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Waits for a database that is away, and repeats what failed by a conflict.

        It can be repeated although its commit may have been applied: then the claim is gone, and it is rolled back.
        A function that loses each connection that is made for it may itself be what ends them, so that has a limit; a
        restart of the server has cut others, too, so it has a higher one.
        """
        failures, losses, restarts, pause = 0, 0, 0, FIRST_PAUSE
        server = self._database.server_started
        cut: ConnectionLost | None = None
        while True:
            try:
                if cut is not None:
                    since = await self._database.look_at_start()
                    losses, restarts = losses + (since == server), restarts + (since != server)
                    if losses >= TRIES or restarts >= RESTARTS:
                        raise FunctionFailed(cut) from cut
                    server, cut = since, None
                answer = await attempt()
                self._outages.works("jobs")
                return answer
            except FunctionFailed as failed:
                self._outages.works("jobs")
                failures += 1
                if not failed.transient or failures >= TRIES:
                    raise
            except ConnectionLost as error:
                self._outages.failed("jobs", error)
                cut = error
            except StoreUnavailable as error:  # no connection can be made: this says nothing about the function
                self._outages.failed("jobs", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)


async def _settle(transaction: ClaimTransaction, job: ChannelJob, reply: Reply, ending: Conclude | None) -> str:
    _log_reply(job, reply)
    if ending is None:
        return await transaction.release(job)
    concluded = ending(reply)
    return await transaction.complete(job, concluded.result, concluded.errors)


async def _unless_cancelled(held: HeldJob, work: Coroutine[Any, Any, T]) -> T:
    """Interrupts what can be taken back when the job is to be cancelled; raises _CancelRequested then."""
    working = asyncio.ensure_future(work)
    asked = asyncio.ensure_future(held.cancel_requested.wait())
    try:
        await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise _CancelRequested
    finally:
        for task in (working, asked):
            task.cancel()
        await asyncio.gather(working, asked, return_exceptions=True)


def _unusable(error: PayloadUnusable) -> dict[str, Any]:
    return error_of("PayloadUnusable", str(error), retryable=False)


def _log_reply(job: ChannelJob, reply: Reply) -> None:
    if reply.problem is not None:
        level = logging.INFO if reply.explicit else logging.WARNING
        log.log(level, "job %s (%s): %s", ids.public(job.job_id), job.kind, reply.problem)


def _log_loss(job: ChannelJob) -> None:
    message = "job %s (%s): its lease has ended before its outcome could be recorded; nothing of it is kept"
    log.warning(message, ids.public(job.job_id), job.kind)


def _log_fields(job: ChannelJob) -> dict[str, Any]:
    return {
        "job": ids.public(job.job_id),
        "kind": job.kind,
        "attempt": job.attempt,
        "tenant": job.tenant,
        "correlation_id": job.correlation_id or str(job.job_id),
    }
