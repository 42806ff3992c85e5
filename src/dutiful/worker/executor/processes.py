"""Runs CPU-bound handlers in child processes, which can be killed."""

import asyncio
import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from dutiful.concurrency.daemon_pool import DaemonPool
from dutiful.context import Context
from dutiful.core.job import Claim
from dutiful.core.outcome import Cancelled, Done, Fail, Failed, Outcome, Snoozed
from dutiful.core.retry.policy import Retry
from dutiful.declare.breaker import JobProcess
from dutiful.kind import Kind
from dutiful.observe import logs
from dutiful.observe.logs import PROCESS_JOB, WORKER, job_fields
from dutiful.settings import without_secrets
from dutiful.worker.executor.around import call_around, hooks_of
from dutiful.worker.executor.claim_facts import ProcessContext
from dutiful.worker.executor.outcomes import encode_result, requested_outcome
from dutiful.worker.slots import Slot

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

READY = b"ready"  # sent by a child that could begin now
GO, SKIP = b"go", b"skip"  # sent to a child that waits for it

Enter = Callable[[], Awaitable[Outcome | None]]
"""Called right before the handler begins; an outcome that it returns is the job's, and the handler is not run."""


class ProcessDied(Exception):
    """The process that ran the handler ended without an answer."""


class HandlerCall(msgspec.Struct):
    module: str
    name: str
    claim: Claim  # with the handler's arguments as its payload
    payload: str  # all of it
    result_limit: int
    message_limit: int
    job_fields: dict[str, Any]  # which job it is, for the logs
    trace: dict[str, str] | None  # the attempt's span, as a trace carrier
    waits: bool  # for GO or SKIP


class Answer(msgspec.Struct):
    """The result of a handler as plain data, because no pickle is sent over the pipe."""

    status: str
    result: str | None = None
    seconds: float | None = None
    reason: str = ""
    error: dict[str, Any] = {}
    exception: tuple[str, str] | None = None  # the module and name of its class, for the retry policy
    final: bool = False


class ProcessPool:
    """Starts children when they are first needed, keeps them for the next job, and kills those whose job must stop."""

    def __init__(self, size: int, limits: tuple[int, int], carrier: Callable[[], dict[str, str] | None] | None) -> None:
        """`limits` are those of a result and an error's message; `carrier` returns the current trace span."""
        self._carrier = carrier
        self._limits = limits
        self._free = asyncio.Semaphore(size)
        # A thread of its own: its children die with it, so it must not end before the pool is closed.
        self._starter = DaemonPool(1, "dutiful processes")
        self._size = size
        self._starting = 0
        self._idle: deque[_Child] = deque()
        self._busy: set[_Child] = set()
        self._closed = False

    async def run(
        self, kind: Kind[Any, Any], claim: Claim, payload: str, slot: Slot, enter: Enter | None = None
    ) -> Outcome:
        async with self._free:
            child = self._take_idle(kind.inherit_secrets) or await self._start(kind.inherit_secrets)
            self._busy.add(child)
            try:
                answer = await child.request(self._request(kind, claim, payload, waits=enter is not None))
                if answer == READY:
                    # Only now, because a breaker may have opened while the job waited for a process and its imports.
                    if enter is not None and (rejected := await enter()) is not None:
                        child.send(SKIP)
                        self._idle.append(child)
                        return rejected
                    slot.set_interrupt(lambda stop: child.kill())
                    slot.start_clock()
                    answer = await (child.receive() if enter is None else child.request(GO))
            except BaseException:
                # Its answer would be taken for that of the next job.
                child.kill()
                raise
            finally:
                self._busy.discard(child)
            if answer is None:
                if slot.stop is not None:
                    raise asyncio.CancelledError(slot.stop.value)
                raise ProcessDied(f"the process running this job died ({child.exit_reason()})")
            self._idle.append(child)
            return _outcome(msgspec.json.decode(answer, type=Answer))

    def _request(self, kind: Kind[Any, Any], claim: Claim, payload: str, waits: bool) -> bytes:
        fields = {**job_fields(claim), "worker": WORKER.get()}
        trace = None if self._carrier is None else self._carrier()
        call = HandlerCall(kind.__module__, kind.__qualname__, claim, payload, *self._limits, fields, trace, waits)
        return msgspec.json.encode(call)

    def _take_idle(self, with_secrets: bool) -> "_Child | None":
        """Takes an idle child of this sort; those that died meanwhile are dropped."""
        for _ in range(len(self._idle)):
            child = self._idle.popleft()
            if child.alive and child.with_secrets == with_secrets:
                return child
            if child.alive:
                self._idle.append(child)
        return None

    async def _start(self, with_secrets: bool) -> "_Child":
        if self._idle and len(self._idle) + len(self._busy) + self._starting >= self._size:
            self._idle.popleft().kill()  # one of the other sort, so that there are no more than allowed
        starting = self._starter.submit(partial(_Child, with_secrets))
        started = asyncio.wrap_future(starting)
        self._starting += 1
        try:
            return await asyncio.shield(started)
        except asyncio.CancelledError:
            # If it starts all the same, it is kept for the next job, or killed with the others.
            starting.add_done_callback(self._keep)
            started.cancel()
            raise
        finally:
            self._starting -= 1

    def _keep(self, starting: "Future[_Child]") -> None:
        """Called in the thread that starts children."""
        if not starting.cancelled() and starting.exception() is None:
            child = starting.result()
            self._idle.append(child)
            if self._closed:
                child.kill()

    def close(self) -> None:
        self._closed = True
        for child in [*self._idle, *self._busy]:
            child.kill()
        self._idle.clear()
        self._starter.close()


class _Child:
    """One child process, which handles one request at a time over a pipe."""

    def __init__(self, with_secrets: bool) -> None:
        from multiprocessing import Pipe, spawn  # here, because most workers never need it, and it takes memory

        self.with_secrets = with_secrets
        self._pipe, theirs = Pipe()
        # As multiprocessing starts one by "spawn", which can give it no other environment than ours.
        *interpreter, _, _, _ = spawn.get_command_line()
        with theirs:
            self._process = subprocess.Popen(
                [*interpreter, "-c", _PROGRAM.format(pipe=theirs.fileno())],
                env=None if with_secrets else without_secrets(os.environ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        prepared = spawn.get_preparation_data("dutiful job")
        del prepared["authkey"]
        if not with_secrets:
            prepared["sys_argv"] = prepared["sys_argv"][:1]  # an option may have the address of the database
        self.send(json.dumps(prepared).encode())
        self.send(msgspec.json.encode((os.getpid(), logs.current_config())))

    async def request(self, message: bytes) -> bytes | None:
        """Sends a message and returns the reply; None if the process died."""
        return await self.receive() if self.send(message) else None

    def send(self, message: bytes) -> bool:
        try:
            self._pipe.send_bytes(message)
        except OSError:
            return False
        return True

    async def receive(self) -> bytes | None:
        loop = asyncio.get_running_loop()
        received: asyncio.Future[bytes | None] = loop.create_future()

        def on_readable() -> None:
            loop.remove_reader(self._pipe.fileno())
            try:
                message = self._pipe.recv_bytes()
            except (EOFError, OSError):
                message = None
            if not received.done():
                received.set_result(message)

        loop.add_reader(self._pipe.fileno(), on_readable)
        try:
            return await received
        finally:
            with contextlib.suppress(OSError, ValueError):
                loop.remove_reader(self._pipe.fileno())

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        if self.alive:
            self._process.kill()
            # Waited for elsewhere, because a large process takes a while to end.
            threading.Thread(target=self._process.wait, name="dutiful reaper", daemon=True).start()

    def exit_reason(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.returncode
        return f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"


def _outcome(answer: Answer) -> Outcome:
    wait = None if answer.seconds is None else timedelta(seconds=answer.seconds)
    match answer.status:
        case "done":
            return Done(answer.result)
        case "snoozed":
            return Snoozed(wait or timedelta(0))
        case "cancelled":
            return Cancelled(answer.reason)
        case _:
            return Failed(answer.error, _import(*answer.exception) if answer.exception else None, wait, answer.final)


def _import(module: str, name: str) -> Any:
    """Finds a class or kind by its module and name; None if this process cannot import it."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


# What a child runs: first the paths and the main module of its parent, because ours may be found only by them.
_PROGRAM = """\
import json
from multiprocessing.connection import Connection
from multiprocessing.spawn import prepare
pipe = Connection({pipe})
prepare(json.loads(pipe.recv_bytes()))
from dutiful.worker.executor.processes import serve
serve(pipe)
"""


def serve(pipe: "Connection") -> None:
    """Runs in the child: handles requests until the pipe is closed, with the parent's log format."""
    parent, shape = msgspec.json.decode(pipe.recv_bytes(), type=tuple[int, logs.LogConfig | None])
    if shape is not None:
        logs.configure(*shape)
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)  # a drain lets it finish; the parent kills it if necessary
    die_with(parent)  # a child that computes does not notice a closed pipe
    while True:
        try:
            answer = _answer(msgspec.json.decode(pipe.recv_bytes(), type=HandlerCall), pipe)
            if answer is not None:
                pipe.send_bytes(msgspec.json.encode(answer))
        except (EOFError, OSError):
            return


def _answer(call: HandlerCall, pipe: "Connection") -> Answer | None:
    """Runs the handler; None if the job is not to begin."""
    kind = _import(call.module, call.name)
    try:
        if not isinstance(kind, Kind):
            raise Fail(f"{call.module}.{call.name} is not a kind at module level, so a process cannot find it")
        # Only now, because imports of a new process must not count against the timeout.
        pipe.send_bytes(READY)
        if call.waits and pipe.recv_bytes() != GO:
            return None
        return Answer("done", _run(kind, call))
    except BaseException as error:
        retry = kind.policy.retry if isinstance(kind, Kind) else Retry()
        return _answer_of(requested_outcome(error, retry, call.message_limit))


def _run(kind: Kind[Any, Any], call: HandlerCall) -> str | None:
    PROCESS_JOB.set(call.job_fields)
    JobProcess.kind = kind
    arguments = msgspec.structs.asdict(kind.signature.decode(call.claim.payload))
    context = cast(Context, ProcessContext(call.claim, _payload=call.payload))
    with _traced(call.trace):
        value = call_around(hooks_of(kind), context, partial(kind.function, **arguments))
    return encode_result(value, call.result_limit)


def _traced(carrier: dict[str, str] | None) -> contextlib.AbstractContextManager[None]:
    if carrier is None:
        return contextlib.nullcontext()
    from dutiful.observe.tracing import continue_trace

    return continue_trace(carrier)


def _answer_of(outcome: Snoozed | Cancelled | Failed) -> Answer:
    match outcome:
        case Snoozed(delay):
            return Answer("snoozed", seconds=delay.total_seconds())
        case Cancelled(reason):
            return Answer("cancelled", reason=reason)
        case Failed(error, exception, wait, final):
            seconds = None if wait is None else wait.total_seconds()
            address = None if exception is None else (exception.__module__, exception.__qualname__)
            return Answer("failed", seconds=seconds, error=error, exception=address, final=final)


_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ends this process as soon as its parent ends.

    To Linux the parent is the thread that started the process, so that thread has to live as long.
    """
    if not _killed_by_kernel():
        threading.Thread(target=_watch, args=(parent,), name="dutiful parent", daemon=True).start()
    elif os.getppid() != parent:
        os._exit(1)  # it ended before the signal was set


def _killed_by_kernel() -> bool:
    """Has the kernel kill this process; a watching thread cannot run while a call into C holds the interpreter."""
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) == 0)
    except (OSError, AttributeError):
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
