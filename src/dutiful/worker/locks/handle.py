"""A named lock as a handler takes it: `async with ctx.lock(…)` on the event loop, `with ctx.lock(…)` in a thread."""

import asyncio
from functools import partial
from typing import Self

from dutiful.concurrency.loop_call import LoopCall, on_event_loop
from dutiful.core.errors import PayloadInvalid, UsageError
from dutiful.core.items import plain
from dutiful.core.job import ClaimToken
from dutiful.core.json import check_name, clean
from dutiful.store.locks import LockName
from dutiful.worker.locks.manager import LockManager
from dutiful.worker.locks.nesting import INNERMOST, Hold, TaskHolder, ThreadHolder

KEY_LIMIT = 200


def lock_name(namespace: str, key: int | str) -> LockName:
    namespace = str.__str__(check_name(namespace, "lock namespace"))
    key = plain(key)
    match key:
        case bool():
            problem = "is a truth value; give a number or a text"
        case int():
            problem = "" if -(2**63) <= key < 2**63 else "does not fit into 64 bits; give it as a text"
        case str():
            fits = 0 < len(key) <= KEY_LIMIT and clean(key, KEY_LIMIT) == key
            problem = "" if fits else f"must have 1 to {KEY_LIMIT} characters, none of them NUL or a lone surrogate"
        case _:
            problem = "is neither a number nor a text"
    if problem:
        raise PayloadInvalid(f"lock key {key!r:.80} {problem}", "lock key")
    return LockName(namespace, key)


class AttemptLocks:
    """The locks of one attempt; releases at its end those that interrupted threads could not."""

    def __init__(self, locks: LockManager, token: ClaimToken) -> None:
        self.locks = locks
        self.token = token
        self._by_threads: dict[Hold, asyncio.Task[None]] = {}

    async def acquire(self, hold: Hold) -> None:
        if hold.abandoned:
            return  # its thread was interrupted before this began
        acquiring = self._by_threads[hold] = self.locks.acquire(hold)
        try:
            await asyncio.shield(acquiring)
        except BaseException:
            self.abandon(hold)
            raise

    async def release(self, hold: Hold) -> None:
        if self._by_threads.pop(hold, None) is not None:
            hold.lost = not await self.locks.release(hold)

    def abandon(self, hold: Hold) -> None:
        hold.abandoned = True
        acquiring = self._by_threads.pop(hold, None)
        if acquiring is not None:
            self.locks.abandon(hold, acquiring)

    def end(self) -> None:
        for hold in list(self._by_threads):
            self.abandon(hold)


class NamedLock:
    """Implements dutiful.context.Lock."""

    def __init__(self, attempt: AttemptLocks, name: LockName) -> None:
        self._attempt = attempt
        self._locks = attempt.locks
        self._name = name
        self._hold: Hold | None = None

    async def __aenter__(self) -> Self:
        if asyncio.get_running_loop() is not self._locks.loop:
            raise UsageError(
                f"the lock {self._name} is taken on another event loop than the worker's; use plain `with`"
            )
        holder = TaskHolder()
        hold = Hold(self._name, self._attempt.token, INNERMOST.get(), holder)
        acquiring = self._locks.acquire(hold)
        try:
            await asyncio.shield(acquiring)
        except asyncio.CancelledError as error:
            self._locks.abandon(hold, acquiring)
            if holder.withdraw_cancellation():
                raise hold.lost_error() from error
            raise
        INNERMOST.set(hold)
        self._hold = hold
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        hold = self._exit()
        assert isinstance(hold.holder, TaskHolder)
        ours = hold.holder.withdraw_cancellation()
        kept = await asyncio.shield(self._locks.release(hold))
        if (error is None and not kept) or (ours and isinstance(error, asyncio.CancelledError)):
            raise hold.lost_error() from error

    def __enter__(self) -> Self:
        if on_event_loop():
            raise UsageError(
                f"the lock {self._name} is taken on an event loop, which would stand still; use `async with`"
            )
        holder = ThreadHolder(lambda: self._attempt.abandon(hold))
        hold = Hold(self._name, self._attempt.token, INNERMOST.get(), holder)
        try:
            LoopCall(self._locks.loop, partial(self._attempt.acquire, hold)).wait()
        except BaseException:
            # It may just have been granted.
            self._locks.loop.call_soon_threadsafe(self._attempt.abandon, hold)
            raise
        INNERMOST.set(hold)
        self._hold = hold
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        hold = self._exit()
        assert isinstance(hold.holder, ThreadHolder)
        hold.holder.exit_block()
        LoopCall(self._locks.loop, partial(self._attempt.release, hold)).wait()
        if error is None and hold.lost:
            raise hold.lost_error()

    def _exit(self) -> Hold:
        hold, self._hold = self._hold, None
        if hold is None:
            raise UsageError(f"the lock {self._name} is not held")
        INNERMOST.set(hold.outer)
        return hold
