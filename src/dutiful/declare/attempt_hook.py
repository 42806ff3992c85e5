"""A hook around attempts, as the code declares it."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from dutiful.context import Context
from dutiful.core.errors import UsageError

HookFunction: TypeAlias = Callable[[Context], Iterator[Any] | AsyncIterator[Any]]


@dataclass(frozen=True, slots=True)
class AttemptHook:
    """A generator function that yields once: before the yield, the handler has not begun; after it, it has ended."""

    function: Callable[[Any], Any]
    name: str
    needs_loop: bool  # an async generator: it cannot surround handlers in threads and processes


def read_hook(function: Any) -> AttemptHook:
    needs_loop = inspect.isasyncgenfunction(function)
    if not needs_loop and not inspect.isgeneratorfunction(function):
        unwrapped = inspect.unwrap(function) if callable(function) else function
        if inspect.isgeneratorfunction(unwrapped) or inspect.isasyncgenfunction(unwrapped):
            raise UsageError(f"around_attempt got {function!r:.80}: leave @contextmanager out, it takes the generator")
        raise UsageError(f"around_attempt got {function!r:.80}: give it a function of the context that yields once")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise UsageError(f"around_attempt got {function!r:.80}, no function of the context: {error}") from None
    return AttemptHook(function, getattr(function, "__qualname__", repr(function)), needs_loop)
