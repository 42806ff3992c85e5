"""The items of a handler, and working through them several at a time."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from dutiful.context import ItemName
from dutiful.core.classify import leaves
from dutiful.core.errors import ItemsFailed, UsageError
from dutiful.core.items import Ledger, item_errors
from dutiful.core.outcome import Skip
from dutiful.worker.signal import of_the_job
from dutiful.worker.track import Track

T = TypeVar("T")
KEPT_ERRORS = 100


class TrackedItems:
    """Implements dutiful.Items on the track of one attempt, which `told_to_stop` asks about."""

    __slots__ = ("_ledger", "_told_to_stop", "_track")

    def __init__(
        self, track: Track, names: Iterable[ItemName], told_to_stop: Callable[[], bool] = lambda: False
    ) -> None:
        self._track = track
        self._told_to_stop = told_to_stop
        self._ledger = track.itemise(names)

    def start(self, name: ItemName) -> None:
        self._track.mark(self._ledger.start, name)

    def complete(self, name: ItemName) -> None:
        self._track.mark(self._ledger.complete, name)

    def fail(self, name: ItemName, error: BaseException | str) -> None:
        self._track.mark(self._ledger.fail, name, error)

    def skip(self, name: ItemName, reason: str) -> None:
        self._track.mark(self._ledger.skip, name, reason)

    @contextmanager
    def working(self, name: ItemName) -> Iterator[None]:
        try:
            yield
        except Skip as skip:
            self.skip(name, skip.reason)
        except Exception as error:
            if not self.ended_by(error):
                self.fail(name, error)
            raise
        else:
            self.complete(name)

    def ended_by(self, error: BaseException) -> bool:
        """Whether it ends the work on all items, for it speaks of the job."""
        return of_the_job(error, told_to_stop=self._told_to_stop()) is not None

    @property
    def completed(self) -> tuple[ItemName, ...]:
        return tuple(self._ledger.completed)

    @property
    def failed(self) -> Mapping[ItemName, str]:
        return self._ledger.errors()

    @property
    def skipped(self) -> Mapping[ItemName, str]:
        return dict(self._ledger.skipped)

    @property
    def in_progress(self) -> tuple[ItemName, ...]:
        return tuple(self._ledger.in_progress)


async def each(
    track: Track,
    items: Iterable[T],
    work: Callable[[T], Awaitable[Any]],
    concurrency: int,
    name: Callable[[T], ItemName] | None,
    told_to_stop: Callable[[], bool],
) -> TrackedItems:
    """As many tasks as may run at once take the next item each, until none is left."""
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise UsageError(f"concurrency {concurrency!r} must be a whole number from 1")
    listed = list(items)
    names = [_name_of(item, index, name) for index, item in enumerate(listed)]
    tracked = TrackedItems(track, names, told_to_stop)
    line = iter(list(zip(names, listed, strict=True)))
    ending = _Ending()

    async def take() -> None:
        with ending.noticed():
            for named, item in line:
                await _one(tracked, named, item, work, ending)
                if ending:
                    return  # the item has not heeded it
                await _calm_down(ending)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(listed))):
                group.create_task(take())
    except BaseExceptionGroup as raised:
        raise of_the_job(raised) or next(leaves(raised)) from None
    if undone := tracked.in_progress:
        raise RuntimeError(f"{len(undone):,} items were left undone, the first of them is {undone[0]!r}")
    return tracked


class _Ending:
    """Whether the group that works on items comes to its end early.

    Its tasks are cancelled then; by anything else that cancels one, only the item that it works on has failed.
    """

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._owner = task
        self._before = task.cancelling()
        self._raised = False

    @contextmanager
    def noticed(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._raised = True
            raise

    def __bool__(self) -> bool:
        return self._raised or self._owner.cancelling() > self._before


async def _one(
    tracked: TrackedItems, name: ItemName, item: T, work: Callable[[T], Awaitable[Any]], ending: _Ending
) -> None:
    usable = True
    try:
        with tracked.working(name):
            working = work(item)
            usable = inspect.isawaitable(working)
            if usable:
                await working
    except asyncio.CancelledError:
        if ending:
            raise
        tracked.fail(name, "cancelled by itself, or by something that it waited for")
    except (SystemExit, KeyboardInterrupt) as error:
        tracked.fail(name, error)  # from a task they would go past everybody, and end the event loop
    except Exception as error:
        if tracked.ended_by(error):
            raise
    if not usable:  # the function is at fault, not the item that it was tried with
        raise UsageError("each() takes an async function; a blocking handler marks its items with ctx.items()")


async def _calm_down(ending: _Ending) -> None:
    """A cancellation that an item brought upon its task, and perhaps never met, is not for the next one."""
    task = asyncio.current_task()
    assert task is not None
    if task.cancelling():
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if ending:
                raise
        while task.uncancel() > 0:
            pass


def _name_of(item: Any, index: int, name: Callable[[Any], ItemName] | None) -> ItemName:
    if name is not None:
        return name(item)
    return item if isinstance(item, str | int) else index


def failures(ledgers: Sequence[Ledger]) -> list[dict[str, Any]]:
    """What is to be kept of items that failed; ItemsFailed if there were items and every one has."""
    failed = sum(len(ledger.failed) for ledger in ledgers)
    if failed and failed == sum(ledger.total for ledger in ledgers):
        raise ItemsFailed(f"every item has failed, {failed:,} in all" if failed > 1 else "its only item has failed")
    return item_failures(ledgers)


def item_failures(ledgers: Sequence[Ledger]) -> list[dict[str, Any]]:
    return item_errors(ledgers, KEPT_ERRORS)
