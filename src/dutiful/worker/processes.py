"""Runs CPU work in processes that can be killed."""

import asyncio
import contextlib
import importlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from dutiful.breaker import Aside
from dutiful.core.job import Claim
from dutiful.core.outcome import Cancel, Cancelled, Done, Fail, Failed, Outcome, Snooze, Snoozed
from dutiful.core.payload import encode
from dutiful.core.retry import Retry
from dutiful.daemons import Daemons
from dutiful.kind import Kind
from dutiful.observe import logs
from dutiful.observe.logs import ABOUT, WORKER, about
from dutiful.worker.ending import meant_by
from dutiful.worker.parent import die_with_parent
from dutiful.worker.slot import Slot

READY = b"ready"  # said by a process that could begin now
GO, STAY = b"go", b"stay"  # said to one that has to wait for it

Enter = Callable[[], Awaitable[Outcome | None]]
"""Asked when nothing is left but to begin; what it gives, if anything, is what becomes of the job instead."""


class ProcessDied(Exception):
    """The process that ran the handler ended without an answer."""


class Request(msgspec.Struct):
    module: str
    name: str
    payload: str
    result_limit: int
    message_limit: int
    about: dict[str, Any]  # which job it is, for the logs
    trace: dict[str, str] | None  # the attempt's span, as another process can take it up
    waits: bool  # to be told to go


class Answer(msgspec.Struct):
    """What the handler did, as data: no pickle crosses the pipe."""

    word: str
    result: str | None = None
    seconds: float | None = None
    reason: str = ""
    error: dict[str, Any] = {}
    exception: tuple[str, str] | None = None  # the module and name of its class, for the retry policy
    final: bool = False


class ProcessPool:
    """Members are started when first needed, kept for the next job, and killed with a job that must stop."""

    def __init__(
        self,
        size: int,
        result_limit: int,
        message_limit: int,
        carrier: Callable[[], dict[str, str] | None] | None = None,
    ) -> None:
        """`carrier` tells the span that is current, where attempts have one."""
        self._carrier = carrier
        self._result_limit = result_limit
        self._message_limit = message_limit
        self._free = asyncio.Semaphore(size)
        # A thread of our own: its members die with it, so it may not end before we are closed.
        self._starter = Daemons(1, "dutiful processes")
        self._idle: deque[_Member] = deque()
        self._busy: set[_Member] = set()
        self._closed = False

    async def run(self, kind: Kind[Any, Any], claim: Claim, slot: Slot, enter: Enter | None = None) -> Outcome:
        async with self._free:
            member = self._living() or await self._started()
            self._busy.add(member)
            try:
                limits = self._result_limit, self._message_limit
                trace = None if self._carrier is None else self._carrier()
                who = {**about(claim), "worker": WORKER.get()}
                waits = enter is not None
                request = Request(kind.__module__, kind.__qualname__, claim.payload, *limits, who, trace, waits)
                answer = await member.ask(msgspec.json.encode(request))
                if answer == READY:
                    # Only now: a breaker may have opened while the job waited for a process, and for what that imports.
                    if enter is not None and (instead := await enter()) is not None:
                        member.tell(STAY)
                        self._idle.append(member)
                        return instead
                    slot.interrupted_by(lambda stop: member.kill())
                    slot.count_from_now()
                    answer = await (member.hear() if enter is None else member.ask(GO))
            except BaseException:
                # Its answer would be taken for the next job's.
                member.kill()
                raise
            finally:
                self._busy.discard(member)
            if answer is None:
                stop = slot.stop
                if stop is not None:
                    raise asyncio.CancelledError(stop.value)
                raise ProcessDied(f"the process running this job died ({member.epitaph()})")
            self._idle.append(member)
            return _outcome(msgspec.json.decode(answer, type=Answer))

    def _living(self) -> "_Member | None":
        """One that waits for work; those that died while they waited are forgotten."""
        while self._idle:
            member = self._idle.popleft()
            if member.alive:
                return member
        return None

    async def _started(self) -> "_Member":
        starting = self._starter.submit(_Member)
        started = asyncio.wrap_future(starting)
        try:
            return await asyncio.shield(started)
        except asyncio.CancelledError:
            # If it comes up all the same: for the next job, or to be ended with the others.
            starting.add_done_callback(self._keep)
            started.cancel()
            raise

    def _keep(self, starting: "Future[_Member]") -> None:
        """Called by the thread that starts them."""
        if not starting.cancelled() and starting.exception() is None:
            member = starting.result()
            self._idle.append(member)
            if self._closed:
                member.kill()

    def close(self) -> None:
        self._closed = True
        for member in [*self._idle, *self._busy]:
            member.kill()
        self._idle.clear()
        self._starter.close()


class _Member:
    """One child process, asked one thing at a time over a pipe."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process: BaseProcess = spawn.Process(target=_serve, args=(theirs, logs.shape()), daemon=True)
        self._process.start()
        theirs.close()

    async def ask(self, message: bytes) -> bytes | None:
        """What it says to that, or None if the process died."""
        return await self.hear() if self.tell(message) else None

    def tell(self, message: bytes) -> bool:
        try:
            self._pipe.send_bytes(message)
        except OSError:
            return False
        return True

    async def hear(self) -> bytes | None:
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[bytes | None] = loop.create_future()

        def on_readable() -> None:
            loop.remove_reader(self._pipe.fileno())
            try:
                message = self._pipe.recv_bytes()
            except (EOFError, OSError):
                message = None
            if not heard.done():
                heard.set_result(message)

        loop.add_reader(self._pipe.fileno(), on_readable)
        try:
            return await heard
        finally:
            with contextlib.suppress(OSError, ValueError):
                loop.remove_reader(self._pipe.fileno())

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()

    def epitaph(self) -> str:
        self._process.join(1)
        code = self._process.exitcode
        return f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _outcome(answer: Answer) -> Outcome:
    wait = None if answer.seconds is None else timedelta(seconds=answer.seconds)
    match answer.word:
        case "done":
            return Done(answer.result)
        case "snoozed":
            return Snoozed(wait or timedelta(0))
        case "cancelled":
            return Cancelled(answer.reason)
        case _:
            return Failed(answer.error, _found(*answer.exception) if answer.exception else None, wait, answer.final)


def _found(module: str, name: str) -> Any:
    """A class or kind by its address; None if it cannot be reached from here."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def _serve(pipe: Connection, shape: logs.Shape | None) -> None:
    """The child: answers requests until its parent is gone, and logs as that one does."""
    if shape is not None:
        logs.configure(*shape)
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # a drain lets it finish; the parent kills it if it must
    die_with_parent()  # one that computes notices no closed pipe
    while True:
        try:
            request = msgspec.json.decode(pipe.recv_bytes(), type=Request)
            answer = _answer(request, pipe)
            if answer is not None:
                pipe.send_bytes(msgspec.json.encode(answer))
        except (EOFError, OSError):
            return


def _answer(request: Request, pipe: Connection) -> Answer | None:
    """None if the job is not to begin, after all."""
    kind = _found(request.module, request.name)
    try:
        if not isinstance(kind, Kind):
            raise Fail(f"{request.module}.{request.name} is not a kind at module level, so a process cannot find it")
        # Only now: a young process has much to import, and a timeout that counts it could never be kept.
        pipe.send_bytes(READY)
        if request.waits and pipe.recv_bytes() != GO:
            return None
        return Answer("done", _run(kind, request))
    except BaseException as error:
        retry = kind.policy.retry if isinstance(kind, Kind) else Retry()
        return _told(meant_by(error, retry, request.message_limit))


def _run(kind: Kind[Any, Any], request: Request) -> str | None:
    ABOUT.set(request.about)
    Aside.kind = kind
    arguments = msgspec.structs.asdict(kind.signature.decode(request.payload))
    with _traced(request.trace):
        value = kind.function(**arguments)
    if isinstance(value, (Snooze, Cancel)):
        raise value
    return None if value is None else encode(value, what="result", limit=request.result_limit)


def _traced(carrier: dict[str, str] | None) -> contextlib.AbstractContextManager[None]:
    if carrier is None:
        return contextlib.nullcontext()
    from dutiful.observe.tracing import carried

    return carried(carrier)


def _told(outcome: Snoozed | Cancelled | Failed) -> Answer:
    match outcome:
        case Snoozed(delay):
            return Answer("snoozed", seconds=delay.total_seconds())
        case Cancelled(reason):
            return Answer("cancelled", reason=reason)
        case Failed(error, exception, wait, final):
            seconds = None if wait is None else wait.total_seconds()
            address = None if exception is None else (exception.__module__, exception.__qualname__)
            return Answer("failed", seconds=seconds, error=error, exception=address, final=final)
