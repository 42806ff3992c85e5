"""Shared resources: made once when the worker starts, injected into handlers, closed when it stops."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from dutiful.core.errors import UsageError
from dutiful.kind import Kind, Mode


async def open_resources(
    stack: AsyncExitStack, makers: Mapping[str, Callable[[], Any]], kinds: Iterable[Kind[Any, Any]]
) -> dict[str, Any]:
    """Make what these kinds ask for; each is closed with `stack`, the last one first."""
    wanted: dict[str, None] = {}
    for kind in kinds:
        for name in kind.signature.resources.values():
            if name not in makers:
                known = ", ".join(sorted(makers)) or "none"
                raise UsageError(f"kind {kind.name} asks for the resource {name!r}; registered are: {known}")
            if kind.mode is Mode.PROCESS:
                raise UsageError(
                    f"kind {kind.name} runs in a process of its own, where {name!r} cannot be shared; open it inside"
                )
            wanted[name] = None
    return {name: await _open(stack, makers[name]) for name in wanted}


async def _open(stack: AsyncExitStack, make: Callable[[], Any]) -> Any:
    # Closed without the error that `stack` may end with: no resource is to blame for it, and in its generator it would
    # skip the lines that close it, or be caught there and never be heard of.
    if inspect.isasyncgenfunction(make):
        streamed = asynccontextmanager(make)()
        made = await streamed.__aenter__()
        stack.push_async_callback(streamed.__aexit__, None, None, None)
        return made
    if inspect.isgeneratorfunction(make):
        generated = contextmanager(make)()
        made = generated.__enter__()
        stack.callback(generated.__exit__, None, None, None)
        return made
    made = make()
    return await made if inspect.isawaitable(made) else made
