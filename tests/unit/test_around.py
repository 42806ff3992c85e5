"""A hook around a call that is given up: its generator is closed, and cleans up at once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from dutiful.declare.attempt_hook import read_hook
from dutiful.worker.executor.around import await_around, call_around

CONTEXT: Any = None


def test_a_coroutine_that_is_closed_runs_the_cleanup_of_its_hooks() -> None:
    seen: list[str] = []

    def plain(ctx: Any) -> Iterator[None]:
        try:
            yield
        finally:
            seen.append("plain")

    async def on_loop(ctx: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            seen.append("async")

    async def wait() -> None:
        await asyncio.sleep(0)

    coroutine = await_around([read_hook(plain), read_hook(on_loop)], CONTEXT, wait)
    coroutine.send(None)
    coroutine.close()
    assert seen == ["async", "plain"]


@pytest.mark.parametrize("error", [StopIteration("early"), KeyboardInterrupt(), GeneratorExit()])
def test_errors_that_generators_treat_differently_pass_through_unchanged(error: BaseException) -> None:
    def plain(ctx: Any) -> Iterator[None]:
        yield

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        call_around([read_hook(plain)] * 2, CONTEXT, fail)
    assert raised.value is error


def test_an_interrupt_right_after_the_hook_has_begun_still_ends_it() -> None:
    seen: list[str] = []

    class Interrupted:
        """A generator whose thread is interrupted when it has yielded, before its caller knows."""

        def __init__(self) -> None:
            self._inner = self._run()

        def _run(self) -> Iterator[None]:
            try:
                yield
            finally:
                seen.append("cleaned up")

        def __next__(self) -> None:
            next(self._inner)
            raise TimeoutError

        def close(self) -> None:
            self._inner.close()  # type: ignore[attr-defined]

    def hook(ctx: Any) -> Iterator[None]:
        yield

    def interrupted(ctx: Any) -> Any:
        return Interrupted()

    declared = read_hook(hook)
    with pytest.raises(TimeoutError):
        call_around([type(declared)(interrupted, "interrupted", False)], CONTEXT, lambda: None)
    assert seen == ["cleaned up"]


def test_a_hook_replaces_the_handlers_error_by_one_of_any_class() -> None:
    class Permanent(RuntimeError): ...

    def translate(ctx: Any) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise Permanent("no use") from error

    def fail() -> None:
        raise ValueError("oops")

    with pytest.raises(Permanent):
        call_around([read_hook(translate)], CONTEXT, fail)
