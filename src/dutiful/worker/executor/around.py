"""Calls handlers inside the hooks around attempts, where the handlers run."""

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from types import TracebackType
from typing import Any

from dutiful.context import Context
from dutiful.core.errors import UsageError
from dutiful.declare.attempt_hook import AttemptHook
from dutiful.integrations.django import DJANGO_HOOK
from dutiful.kind import Kind


def hooks_of(kind: Kind[Any, Any]) -> Sequence[AttemptHook]:
    """The hooks of the kind's app, the outermost first; where Django is loaded, that of Django before them."""
    return kind.attempt_hooks if "django.db" not in sys.modules else (DJANGO_HOOK, *kind.attempt_hooks)


def call_around(hooks: Sequence[AttemptHook], context: Context, call: Callable[[], Any]) -> Any:
    """Calls a plain handler inside those hooks that are plain, too."""
    if not hooks:
        return call()
    if hooks[0].needs_loop:
        return call_around(hooks[1:], context, call)
    with _Block(hooks[0], context):
        return call_around(hooks[1:], context, call)


async def await_around(hooks: Sequence[AttemptHook], context: Context, call: Callable[[], Awaitable[Any]]) -> Any:
    """Calls an async handler inside all hooks."""
    if not hooks:
        return await call()
    if hooks[0].needs_loop:
        async with _AsyncBlock(hooks[0], context):
            return await await_around(hooks[1:], context, call)
    with _Block(hooks[0], context):
        return await await_around(hooks[1:], context, call)


class _Block:
    """One hook around one call. An error of the call stays, unless the hook raises another.

    Unlike a context manager, a hook cannot swallow an error: `except …: log(…)` would complete jobs that have failed.
    """

    def __init__(self, hook: AttemptHook, context: Context) -> None:
        self._hook = hook
        self._generator: Generator[Any, None, Any] = hook.function(context)

    def __enter__(self) -> None:
        try:
            next(self._generator)
        except StopIteration:
            raise _never_yielded(self._hook) from None
        except BaseException:
            self._generator.close()  # a thread may be interrupted after the hook has begun, but before we know
            raise

    def __exit__(self, _: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            if error is None:
                next(self._generator)
            else:
                self._generator.throw(error)
        except StopIteration:
            return
        except BaseException as raised:
            if not _passed_on(error, raised):
                raise
            return
        finally:
            # Without the hook's frame, because the traceback is that of the handler.
            if error is not None:
                error.__traceback__ = traceback
            self._generator.close()
        if error is None:
            raise _yielded_again(self._hook)


class _AsyncBlock:
    """The same for a hook that is an async generator."""

    def __init__(self, hook: AttemptHook, context: Context) -> None:
        self._hook = hook
        self._generator: AsyncGenerator[Any, None] = hook.function(context)

    async def __aenter__(self) -> None:
        try:
            await anext(self._generator)
        except StopAsyncIteration:
            raise _never_yielded(self._hook) from None

    async def __aexit__(self, _: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            if error is None:
                await anext(self._generator)
            else:
                await self._generator.athrow(error)
        except StopAsyncIteration:
            return
        except BaseException as raised:
            if not _passed_on(error, raised):
                raise
            return
        finally:
            if error is not None:
                error.__traceback__ = traceback
            await self._generator.aclose()
        if error is None:
            raise _yielded_again(self._hook)


def _passed_on(error: BaseException | None, raised: BaseException) -> bool:
    """Whether the hook raised the handler's own error; a generator replaces a StopIteration that passes through it."""
    replaced = isinstance(error, StopIteration | StopAsyncIteration) and type(raised) is RuntimeError
    return error is not None and (raised is error or (replaced and raised.__cause__ is error))


def _never_yielded(hook: AttemptHook) -> UsageError:
    return UsageError(f"the hook {hook.name} around attempts ended before its yield: it has to yield exactly once")


def _yielded_again(hook: AttemptHook) -> UsageError:
    return UsageError(f"the hook {hook.name} around attempts yielded a second time: it has to yield exactly once")
