"""The items of a handler, and working through them several at a time."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from dutiful.context import ItemName
from dutiful.core.errors import ClaimLost, ItemsFailed, LockLost, UsageError
from dutiful.core.items import Ledger, item_errors
from dutiful.core.outcome import Cancel, Skip, Snooze
from dutiful.worker.track import Track

T = TypeVar("T")
KEPT_ERRORS = 100
# They speak of the job, not of the item.
_OF_THE_JOB = (Cancel, Snooze, ClaimLost, LockLost)


class TrackedItems:
    """Implements dutiful.Items on the track of one attempt."""

    __slots__ = ("_ledger", "_track")

    def __init__(self, track: Track, names: Iterable[ItemName]) -> None:
        self._track = track
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
        except _OF_THE_JOB:
            raise
        except Exception as error:
            self.fail(name, error)
            raise
        else:
            self.complete(name)

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
) -> TrackedItems:
    """As many tasks as may run at once take the next item each, until none is left."""
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise UsageError(f"concurrency {concurrency!r} must be a whole number from 1")
    listed = list(items)
    names = [_name_of(item, index, name) for index, item in enumerate(listed)]
    tracked = TrackedItems(track, names)
    line = iter(list(zip(names, listed, strict=True)))

    async def take() -> None:
        for named, item in line:
            await _one(tracked, named, item, work)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(listed))):
                group.create_task(take())
    except BaseExceptionGroup as raised:
        raise _first(raised) from None
    return tracked


async def _one(tracked: TrackedItems, name: ItemName, item: T, work: Callable[[T], Awaitable[Any]]) -> None:
    task = asyncio.current_task()
    assert task is not None
    usable = True
    try:
        with tracked.working(name):
            working = work(item)
            usable = inspect.isawaitable(working)
            if usable:
                await working
    except asyncio.CancelledError:
        if task.cancelling():
            raise
        tracked.fail(name, "cancelled by something that it waited for")
    except (SystemExit, KeyboardInterrupt) as error:
        tracked.fail(name, error)  # from a task they would go past everybody, and end the event loop
    except _OF_THE_JOB:
        raise
    except Exception:
        pass
    if not usable:  # the function is at fault, not the item that it was tried with
        raise UsageError("each() takes an async function; a blocking handler marks its items with ctx.items()")


def _name_of(item: Any, index: int, name: Callable[[Any], ItemName] | None) -> ItemName:
    if name is not None:
        return name(item)
    return item if isinstance(item, str | int) else index


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def failures(ledgers: Sequence[Ledger]) -> list[dict[str, Any]]:
    """What is to be kept of items that failed; ItemsFailed if there were items and every one has."""
    failed = sum(len(ledger.failed) for ledger in ledgers)
    if failed and failed == sum(ledger.total for ledger in ledgers):
        raise ItemsFailed(f"every item has failed, {failed:,} in all" if failed > 1 else "its only item has failed")
    return item_failures(ledgers)


def item_failures(ledgers: Sequence[Ledger]) -> list[dict[str, Any]]:
    return item_errors(ledgers, KEPT_ERRORS)
