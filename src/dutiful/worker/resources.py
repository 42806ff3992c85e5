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
    if inspect.isasyncgenfunction(make):
        return await stack.enter_async_context(asynccontextmanager(make)())
    if inspect.isgeneratorfunction(make):
        return stack.enter_context(contextmanager(make)())
    made = make()
    return await made if inspect.isawaitable(made) else made
