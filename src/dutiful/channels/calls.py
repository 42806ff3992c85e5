"""Calls of providers, away from the worker's event loop: whatever one does, the worker goes on."""

import asyncio
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Literal

import msgspec

from dutiful.channels.channels import Channel, ChannelCall
from dutiful.channels.replies import LONGEST_TEXT
from dutiful.core.duration import brief
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.error_info import describe, make_error, message_of, storable, type_of

log = logging.getLogger("dutiful.channels")


class Accepted(msgspec.Struct, frozen=True):
    """The provider did what it was asked."""

    value: Any


class Refused(msgspec.Struct, frozen=True):
    """The provider failed; `text` is for the error handler, `error` for the job. Both are without secrets."""

    text: str
    error: dict[str, Any]


Answer = Accepted | Refused


class ProviderCalls:
    """Runs sync providers in a thread each, and async ones on an event loop of their own.

    One that does not want to stop is left behind after its timeout, and counted. A channel with `limit` such calls is
    not available until one of them ends, so that they do not grow without end.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left_behind: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None

    def available(self, channel: str) -> bool:
        return self._left_behind[channel] < self._limit

    async def call(
        self, channel: Channel, request: Any, call: ChannelCall, begun: Callable[[], object] = lambda: None
    ) -> Answer:
        """Returns within the channel's timeout, and never raises but when it is cancelled.

        `begun` is called in another thread when the provider is about to be called, and never after this has ended.
        """
        running = _Running(begun)
        try:
            if channel.is_async:
                self._on_loop(running, channel, request, call)
            else:
                _in_thread(running, channel, request, call)
        except RuntimeError as error:  # no thread could be started
            return _refused(channel, error)
        answered = asyncio.wrap_future(running.answer)
        try:
            done, _ = await asyncio.wait({answered}, timeout=channel.timeout.total_seconds())
        except asyncio.CancelledError:
            running.interrupt()
            raise
        if done:
            return answered.result()
        began = self._leave_behind(channel, running)
        did = "did not answer" if began else "was not called, because others block it,"
        late = f"the provider of {channel.name} {did} within {brief(channel.timeout)}"
        return Refused(late, make_error("ProviderTimeout", late, ErrorClass.TRANSIENT))

    def _leave_behind(self, channel: Channel, running: "_Running") -> bool:
        """Counts the call until it has ended, and interrupts it; returns whether it has begun."""
        loop = asyncio.get_running_loop()
        self._left_behind[channel.name] += 1
        if not self.available(channel.name):
            log.error(
                "%d calls of the provider of %s have not ended; none of its jobs is taken until one does",
                self._limit,
                channel.name,
            )

        def forget() -> None:
            self._left_behind[channel.name] -= 1

        def ended(answer: "Future[Answer]") -> None:
            if isinstance(answer.result(), Accepted):
                log.error("the provider of %s accepted after its timeout, which was recorded as failed", channel.name)
            with suppress(RuntimeError):  # the worker has ended meanwhile
                loop.call_soon_threadsafe(forget)

        running.answer.add_done_callback(ended)
        return running.interrupt()

    def _on_loop(self, running: "_Running", channel: Channel, request: Any, call: ChannelCall) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run_forever, args=(self._loop,), name="dutiful providers", daemon=True).start()
        loop, context = self._loop, copy_context()  # the context of the job, for log lines

        def start() -> None:
            task = loop.create_task(_await(running, channel, request, call), context=context)
            running.stop = lambda: loop.call_soon_threadsafe(task.cancel)
            task.add_done_callback(lambda ended: running.answer.set_result(_answer(channel, ended)))

        loop.call_soon_threadsafe(start)


class _Running:
    """A call under way. Its answer is set when it has really ended, however often it was interrupted."""

    def __init__(self, begun: Callable[[], object]) -> None:
        self.answer: Future[Answer] = Future()
        self.answer.set_running_or_notify_cancel()
        self.stop: Callable[[], object] = lambda: None  # a thread cannot be stopped
        self._begun = begun
        self._state: Literal["new", "begun", "interrupted"] = "new"
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Raises CancelledError if it was interrupted before: then its outcome is recorded, and it must not begin."""
        with self._lock:
            if self._state == "interrupted":
                raise asyncio.CancelledError("interrupted before it began")
            self._state = "begun"
            self._begun()

    def interrupt(self) -> bool:
        """Stops it if that is possible; one that has not begun never will. Returns whether it has begun."""
        with self._lock:
            began = self._state == "begun"
            if not began:
                self._state = "interrupted"
        self.stop()
        return began


def _in_thread(running: _Running, channel: Channel, request: Any, call: ChannelCall) -> None:
    """In a daemon thread, for which the process does not wait when it ends."""
    context = copy_context()

    def run() -> None:
        args, named = channel.arguments(request, call)
        try:
            running.begin()
            value = context.run(channel.function, *args, **named)
            if inspect.isawaitable(value):  # an async function behind a decorator that is not
                value = context.run(asyncio.run, _waited_for(value))
            answer: Answer = Accepted(_ran(value))
        except BaseException as error:  # also SystemExit: a provider ends its call, never the worker
            answer = _refused(channel, error)
        running.answer.set_result(answer)

    threading.Thread(target=run, name=f"dutiful {channel.name}", daemon=True).start()


async def _await(running: _Running, channel: Channel, request: Any, call: ChannelCall) -> Answer:
    args, named = channel.arguments(request, call)
    try:
        running.begin()
        return Accepted(_ran(await channel.function(*args, **named)))
    except BaseException as error:  # also SystemExit, which would end the event loop
        return _refused(channel, error)


async def _waited_for(value: Awaitable[Any]) -> Any:
    return await value


def _ran(value: Any) -> Any:
    """What a provider returned; raises if that is only the beginning of its work, of which nothing was done."""
    if inspect.isgenerator(value) or inspect.isasyncgen(value) or inspect.isawaitable(value):
        raise TypeError(f"the provider returned a {type(value).__name__}, so it has not run: return its answer instead")
    return value


def _answer(channel: Channel, ended: "asyncio.Task[Answer]") -> Answer:
    # Cancelled before its first step, it has no result.
    return _refused(channel, asyncio.CancelledError()) if ended.cancelled() else ended.result()


def _refused(channel: Channel, error: BaseException) -> Refused:
    text = storable(f"{channel.name}: {type_of(error)}: {message_of(error)}", LONGEST_TEXT)
    return Refused(text, describe(error))


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while not loop.is_closed():
        try:
            loop.run_forever()
        except BaseException:  # of a task that a provider has started
            log.exception("a task of a provider raised out of its event loop, which goes on")
