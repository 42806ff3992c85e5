"""Handlers that do not stop: their jobs are settled without them, and their slots run the next jobs."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from dutiful.core import ids
from dutiful.core.breaker.state import CallResult
from dutiful.core.duration import brief
from dutiful.core.outcome import Done
from dutiful.kind import Kind, Mode
from dutiful.observe.logs import job_fields
from dutiful.worker.config import WorkerConfig
from dutiful.worker.lanes.lane import Lane
from dutiful.worker.settler import Settler
from dutiful.worker.slots import LingeringHandler, Slot, Slots, StopGrace, StopReason

log = logging.getLogger("dutiful.worker")
_WHY = {
    StopReason.TIMEOUT: "runs past its timeout",
    StopReason.CANCEL: "was cancelled",
    StopReason.LOST: "has lost its claim",
    StopReason.SHUTDOWN: "was interrupted",
}


class SlotTasks:
    """The tasks of a worker's slots; those of slots that were given up are cancelled at the end, but not waited for."""

    def __init__(self) -> None:
        self._slots: dict[asyncio.Task[None], Slot] = {}
        self._changed = asyncio.Event()
        # Done when a slot ends by itself, which is a bug unless its lane is closed; with its error.
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, lane: Lane, slot: Slot) -> None:
        task = asyncio.create_task(lane.run_slot(slot))
        self._slots[task] = slot
        task.add_done_callback(self._on_end)

    def remaining(self) -> list["asyncio.Task[None]"]:
        """The tasks to cancel and wait for; those of slots that were given up are cancelled here, and run on."""
        for task, slot in self._slots.items():
            if slot.abandoned:
                task.cancel()
        return [task for task, slot in self._slots.items() if not slot.abandoned]

    def abandoned(self) -> None:
        """Notes that a slot was given up, because no caller has to wait for it any more."""
        self._changed.set()

    async def wait(self) -> None:
        """Waits until every slot has ended that was not given up."""
        while any(not slot.abandoned for slot in self._slots.values()):
            self._changed.clear()
            await self._changed.wait()

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        slot = self._slots.pop(task)
        self._changed.set()
        error = None if task.cancelled() else task.exception()
        if slot.abandoned:
            if error is not None:
                log.error("a slot that was given up has ended with an error", exc_info=error)
        elif not self.ended.done():
            self.ended.set_result(None) if error is None else self.ended.set_exception(error)
            self.ended.exception()  # marks it as retrieved: during a stop there is no caller that waits for it


class Lingering:
    """Gives up handlers that were asked to stop and did not, and watches them until they end.

    A thread is left alone, and its slot continues with the error of the stop. Anything else keeps its slot, whose place
    another one takes. Outcomes that come later are refused by the store, because the claim is settled.
    """

    def __init__(
        self,
        config: WorkerConfig,
        slots: Slots,
        lanes: Sequence[Lane],
        settler: Settler,
        tasks: SlotTasks,
        on_pile: Callable[[], None],
    ) -> None:
        settings = config.settings
        self._kinds = config.kinds
        self._slots = slots
        self._lanes = {lane.name: lane for lane in lanes}
        self._settler = settler
        self._tasks = tasks
        self._grace = StopGrace(settings.timeout_grace.total_seconds(), settings.cancel_grace.total_seconds())
        self._limit = settings.lingering_limit
        self._on_pile = on_pile
        self._piled = False
        self._reporting: set[asyncio.Task[None]] = set()

    def check(self) -> None:
        """Called several times a second, so it does next to nothing while all handlers stop as they are asked to."""
        for slot in self._slots.overdue(self._grace):
            self._give_up(slot)
        if self._slots.lingering:
            self._forget_ended()
            self._check_limit()

    def _give_up(self, slot: Slot) -> None:
        claim, kind, reason = slot.claim, slot.kind, slot.stop
        assert claim is not None and kind is not None and reason is not None
        ran, leave_blocks = brief(slot.elapsed), slot.on_left
        was_in_thread, lingers = slot.leave_thread()
        if not was_in_thread:
            lingers = self._replace(slot)
        if lingers is None:
            return  # it has ended at this moment
        self._slots.lingering.append(lingers)
        if leave_blocks is not None:
            self._report(leave_blocks(CallResult.BAD if reason is StopReason.TIMEOUT else CallResult.UNCLEAR))
        log.warning(
            "job %s (%s) %s, and its handler does not stop: it is settled without it after %s; "
            "handlers that linger here: %d",
            *(ids.public(claim.job_id), claim.kind, _WHY[reason], ran, len(self._slots.lingering)),
            extra=job_fields(claim),
        )

    def note(self, part: LingeringHandler) -> None:
        """Counts a thread that the handler of a job that was stopped has left behind."""
        self._slots.lingering.append(part)
        log.warning(
            "job %s (%s) was stopped, and a thread that its handler has started runs on; handlers that linger here: %d",
            *(ids.public(part.claim.job_id), part.claim.kind, len(self._slots.lingering)),
            extra=job_fields(part.claim),
        )

    def _replace(self, slot: Slot) -> LingeringHandler:
        claim, task, lane = slot.claim, slot.task, self._lanes[slot.lane]
        assert claim is not None and task is not None
        report = slot.on_given_up
        result, fresh = lane.give_up(slot)
        if report is not None and result is not None:
            self._report(report(result))
        self._tasks.abandoned()
        self._tasks.start(lane, fresh)
        task.add_done_callback(partial(self._slots.forget, slot))
        return LingeringHandler(claim, slot.lane, task)

    def _report(self, report: Coroutine[Any, Any, None]) -> None:
        """Tells a breaker, in a task of its own."""
        reporting = asyncio.get_running_loop().create_task(report)
        self._reporting.add(reporting)
        reporting.add_done_callback(self._reporting.discard)

    def _forget_ended(self) -> None:
        ended = [one for one in self._slots.lingering if one.ended]
        if ended:
            self._slots.lingering[:] = [one for one in self._slots.lingering if not one.ended]
        for one in ended:
            # A slot settles what its handler returned itself, and a phase is not a whole job.
            if isinstance(one.running, Future) and not one.is_part and _is_whole_job(self._kinds.get(one.claim.kind)):
                _, error = one.running.result()
                if error is None:
                    self._settler.settle_late(one.claim, Done())

    def _check_limit(self) -> None:
        piled = len(self._slots.lingering) >= self._limit
        if piled and not self._piled:
            log.error(
                "%d handlers linger in this worker (setting lingering_limit: %d): each holds a thread or a task, and "
                "what it has open, until this process ends; give their kinds process=True, or find what they wait for",
                *(len(self._slots.lingering), self._limit),
            )
            self._on_pile()
        self._piled = piled


def _is_whole_job(kind: Kind[Any, Any] | None) -> bool:
    return kind is not None and kind.mode is not Mode.PHASES and kind.batch is None
