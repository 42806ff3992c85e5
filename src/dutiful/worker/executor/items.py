"""The items of a handler, and processing several of them at a time."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from dutiful.context import ItemName
from dutiful.core.errors import ItemsFailed, UsageError
from dutiful.core.items import ItemCounts, item_errors
from dutiful.core.outcome import Skip
from dutiful.core.retry.classify import leaves
from dutiful.worker.executor.outcomes import job_signal
from dutiful.worker.executor.progress import ProgressTracker
from dutiful.worker.slots import uncancel

T = TypeVar("T")
KEPT_ERRORS = 100


class TrackedItems:
    """Implements dutiful.Items on the progress of one attempt."""

    __slots__ = ("_counts", "_stop_requested", "_tracker")

    def __init__(self, tracker: ProgressTracker, names: Iterable[ItemName], stop_requested: Callable[[], bool]) -> None:
        self._tracker = tracker
        self._stop_requested = stop_requested
        self._counts = tracker.add_items(names)

    def start(self, name: ItemName) -> None:
        self._tracker.mark(self._counts.start, name)

    def complete(self, name: ItemName) -> None:
        self._tracker.mark(self._counts.complete, name)

    def fail(self, name: ItemName, error: BaseException | str) -> None:
        self._tracker.mark(self._counts.fail, name, error)

    def skip(self, name: ItemName, reason: str) -> None:
        self._tracker.mark(self._counts.skip, name, reason)

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
        """Whether an error concerns the whole job, so that it ends the work on all items."""
        return job_signal(error, stop_requested=self._stop_requested()) is not None

    @property
    def completed(self) -> tuple[ItemName, ...]:
        return tuple(self._counts.completed)

    @property
    def failed(self) -> Mapping[ItemName, str]:
        return self._counts.errors()

    @property
    def skipped(self) -> Mapping[ItemName, str]:
        return dict(self._counts.skipped)

    @property
    def in_progress(self) -> tuple[ItemName, ...]:
        return tuple(self._counts.in_progress)


async def each(
    tracker: ProgressTracker,
    items: Iterable[T],
    work: Callable[[T], Awaitable[Any]],
    concurrency: int,
    name: Callable[[T], ItemName] | None,
    stop_requested: Callable[[], bool],
) -> TrackedItems:
    """Runs `concurrency` tasks, each of which takes the next item until none is left."""
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise UsageError(f"concurrency {concurrency!r} must be a whole number from 1")
    listed = list(items)
    names = [_name_of(item, index, name) for index, item in enumerate(listed)]
    tracked = TrackedItems(tracker, names, stop_requested)
    queue = iter(list(zip(names, listed, strict=True)))
    ending = _EarlyEnd()

    async def take() -> None:
        with ending.noticed():
            for named, item in queue:
                await _one(tracked, named, item, work, ending)
                if ending:
                    return  # the item ignored its cancellation
                await _clear_cancellation(ending)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(listed))):
                group.create_task(take())
    except BaseExceptionGroup as raised:
        raise job_signal(raised) or next(leaves(raised)) from None
    if undone := tracked.in_progress:
        raise RuntimeError(f"{len(undone):,} items were left undone, the first of them is {undone[0]!r}")
    return tracked


class _EarlyEnd:
    """Whether the group that works on items ends early.

    Its tasks are cancelled then. A task that is cancelled for another reason fails only its own item.
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
    tracked: TrackedItems, name: ItemName, item: T, work: Callable[[T], Awaitable[Any]], ending: _EarlyEnd
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
        tracked.fail(name, error)  # raised from a task they would end the event loop
    except Exception as error:
        if tracked.ended_by(error):
            raise
    if not usable:  # the function is at fault, not the item that it was tried with
        raise UsageError("each() takes an async function; a blocking handler marks its items with ctx.items()")


async def _clear_cancellation(ending: _EarlyEnd) -> None:
    """Ends a cancellation that an item caused, so that it does not hit the next one."""
    task = asyncio.current_task()
    assert task is not None
    if task.cancelling():
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if ending:
                raise
        uncancel(task)


def _name_of(item: Any, index: int, name: Callable[[Any], ItemName] | None) -> ItemName:
    if name is not None:
        return name(item)
    return item if isinstance(item, str | int) else index


def failed_items(all_counts: Sequence[ItemCounts]) -> list[dict[str, Any]]:
    """The errors to keep of failed items; ItemsFailed if every item has failed."""
    failed = sum(len(counts.failed) for counts in all_counts)
    if failed and failed == sum(counts.total for counts in all_counts):
        raise ItemsFailed(f"every item has failed, {failed:,} in all" if failed > 1 else "its only item has failed")
    return item_errors(all_counts, KEPT_ERRORS)
