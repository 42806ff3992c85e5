"""The life of a worker: open, start, work, drain, leave."""

import asyncio
import logging
from contextlib import AsyncExitStack, closing
from datetime import timedelta
from uuid import UUID

from dutiful.observe.logs import WORKER
from dutiful.worker.breakers import boundless
from dutiful.worker.lane import Lane
from dutiful.worker.loops import cancel, forever
from dutiful.worker.opening import Parts, open_parts
from dutiful.worker.plan import Plan
from dutiful.worker.shutdown import LAST_WORDS, Shutdown
from dutiful.worker.slots import Slots

log = logging.getLogger("dutiful.worker")
opening = logging.getLogger("dutiful.opening")  # each step of a start, in its order


class Worker:
    def __init__(self, plan: Plan) -> None:
        self.id = plan.worker_id
        self._plan = plan
        self._duties = plan.duties
        self._slots = Slots()
        self._shutdown = Shutdown(plan.settings.grace)
        self.lanes: list[Lane] = []
        self.started = asyncio.Event()

    def stop(self, grace: timedelta | None = None) -> None:
        """Claim no more, finish what runs within the grace period (of the settings, unless given), then end."""
        self._shutdown.stop(grace)

    def abort(self, patience: float = LAST_WORDS) -> None:
        """Interrupt what runs, let it clean up for `patience` seconds, give it back, and end."""
        self._shutdown.abort(patience)

    def cancel(self, job_id: UUID) -> None:
        """The store has been asked to cancel this job: if it runs here, it is told at once."""
        self._slots.cancel(job_id)

    async def run(self) -> None:
        """Work until stop() or abort(); ShutdownTimeout if handlers were interrupted or outcomes not stored."""
        async with AsyncExitStack() as stack:
            # For the logs: of all that we do from here on, in whatever task or thread.
            stack.callback(WORKER.reset, WORKER.set(str(self.id)))
            parts = self._parts = await open_parts(stack, self._plan, self._slots)
            self.lanes = parts.lanes
            try:
                await self._start(parts)
                with closing(parts.keeper):
                    await self._work(parts)
            finally:
                await parts.presence.leave()

    async def _start(self, parts: Parts) -> None:
        plan = self._plan
        await parts.presence.beat()
        await parts.accord.greet()
        # By every worker, be it one that never leads: what a breaker bars it gives back, and while nobody knows
        # that the kind has to wait, it would claim that again at once.
        await parts.declaration.make()
        for name in boundless(plan.kinds.values()):
            log.warning(
                "kind %s declares a breaker and no timeout: if one of its jobs hangs as a probe, the breaker "
                "stays half-open, and others wait for it without end; give it one, as in timeout='5m'",
                name,
            )
        if self._duties is not None:
            await self._duties.recover()
            opening.debug("recovered")
        await parts.lookout.peek()  # before the first claim, for it is to go by priority
        parts.keeper.start()

    async def _work(self, parts: Parts) -> None:
        lanes, settler, lookout = parts.lanes, parts.settler, parts.lookout
        settling = asyncio.create_task(settler.run(), name="dutiful settler")
        serving = [asyncio.create_task(forever(self._serve))] if self._duties is not None else []
        opening.debug("services: %s", ", ".join(self._duties.names) if self._duties is not None else "none")
        slots = [asyncio.create_task(lane.run_slot(slot)) for lane in lanes for slot in lane.slots]
        opening.debug("first claim")
        feeding = [asyncio.create_task(lane.feed(), name=f"dutiful lane {lane.name}") for lane in lanes]
        beside = (lookout.hear, lookout.poll, parts.presence.heartbeat)
        loops = [asyncio.create_task(forever(loop)) for loop in beside]
        loops.append(asyncio.create_task(parts.timer.run()))
        self.started.set()
        stopping = asyncio.create_task(self._shutdown.asked())
        try:
            # A slot or lane that ends by itself is a bug: better to end loudly than to idle quietly.
            done, _ = await asyncio.wait([stopping, settling, *slots, *feeding], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
            for lane in lanes:
                lane.close()
            parts.declaration.withdraw()
            # Others lead from here on; and nothing is retained or fired by somebody who is about to go.
            await cancel(serving)
            await self._shutdown.drain(self._slots, slots, feeding, settler)
        except BaseException:
            # Nobody else is to blame for what went wrong here: back in line, no attempt spent. What was handed over,
            # such as the job whose slot has ended, spends its attempt.
            settler.give_back_rest()
            raise
        finally:
            self._slots.close()
            await cancel([stopping, *slots, *feeding, *loops, *serving])
            try:
                await self._shutdown.settle_rest(settler, settling)
            finally:
                self._plan.delivery.news()
                await self._close_duties()
        self._shutdown.check()

    async def _serve(self) -> None:
        assert self._duties is not None
        await self._duties.run(self.id, self._parts.lookout.moved)

    async def _close_duties(self) -> None:
        if self._duties is not None:
            # A post under way may take as long as a post may; unless somebody is in a hurry.
            await self._duties.close(self._shutdown.patience(self._plan.settings.webhook_timeout.total_seconds()))


__all__ = ["Worker"]
