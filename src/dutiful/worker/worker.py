"""One worker process: lanes, settler, leases and services under one roof."""

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import uuid_utils.compat

from dutiful.breaker import breaker_policy
from dutiful.core.breaker import BreakerPolicy
from dutiful.core.duration import brief
from dutiful.core.errors import DutifulError, ShutdownTimeout, StoreUnavailable, UnknownKind
from dutiful.core.job import Claim
from dutiful.core.outcome import Released
from dutiful.core.settle import Change
from dutiful.core.transitions import State
from dutiful.delivery import EVERYWHERE, Delivery
from dutiful.duties import WorkerRecord
from dutiful.kind import Kind
from dutiful.locking import LockMode
from dutiful.observe.logs import WORKER
from dutiful.service import Duty
from dutiful.settings import Settings
from dutiful.store import Store
from dutiful.worker.attempt import Attempts
from dutiful.worker.breakers import Breakers, boundless
from dutiful.worker.lane import Lane, Suspects
from dutiful.worker.lease import LeaseKeeper, Leases
from dutiful.worker.lines import Lines
from dutiful.worker.lock_accord import Accord
from dutiful.worker.locks import Locks
from dutiful.worker.processes import ProcessPool
from dutiful.worker.resources import open_resources
from dutiful.worker.settler import Settler
from dutiful.worker.slot import Slot, Stop
from dutiful.worker.tallies import Tallies
from dutiful.worker.threads import Threads
from dutiful.worker.traced import TracedAttempts

if TYPE_CHECKING:
    from dutiful.observe.tracing import Tracer

log = logging.getLogger("dutiful.worker")
opening = logging.getLogger("dutiful.opening")  # each step of a start, in its order
TICK = 0.1
LAST_WORDS = 5.0  # how long interrupted handlers may take to clean up


class Worker:
    def __init__(
        self,
        store: Store,
        delivery: Delivery,
        kinds: Mapping[str, Kind[Any, Any]],
        settings: Settings,
        *,
        resources: Mapping[str, Callable[[], Any]] | None = None,
        breakers: Mapping[str, BreakerPolicy] | None = None,
        duties: Duty | None = None,
        worker_id: UUID | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
        tallies: Tallies | None = None,
        tracer: "Tracer | None" = None,
    ) -> None:
        unknown = sorted(set(settings.kinds) - set(kinds))
        if unknown:
            raise UnknownKind(
                f"there is no kind {unknown[0]!r}; this app has: {', '.join(sorted(kinds)) or 'none yet'}"
            )
        self.id = worker_id or uuid_utils.compat.uuid7()
        self._store = store
        self._delivery = delivery
        self._settings = settings
        self._kinds = {n: k for n, k in kinds.items() if not settings.kinds or n in settings.kinds}
        self._makers = resources or {}
        self._breakers = breakers or {}
        self._breaker_kinds = {name: kind.breaker for name, kind in kinds.items()}
        self._duties = duties
        self._uniform = uniform
        self._tallies = tallies
        self._tracer = tracer
        self._lines = Lines()
        self._leases = Leases()
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._grace = settings.grace
        self._patience = LAST_WORDS
        self._started_at = datetime.now(UTC)
        self._beaten = time.monotonic()
        self.lanes: list[Lane] = []
        self.started = asyncio.Event()

    # --- life

    def stop(self, grace: timedelta | None = None) -> None:
        """Claim no more, finish what runs within the grace period (of the settings, unless given), then end."""
        self._grace = self._grace if grace is None else grace
        self._stopping.set()

    def abort(self, patience: float = LAST_WORDS) -> None:
        """Interrupt what runs, let it clean up for `patience` seconds, give it back, and end."""
        self._patience = patience
        self._stopping.set()
        self._aborting.set()

    def cancel(self, job_id: UUID) -> None:
        """The store has been asked to cancel this job: if it runs here, it is told at once."""
        self._tell(job_id, Stop.CANCEL)

    async def run(self) -> None:
        """Work until stop() or abort(); ShutdownTimeout if handlers were interrupted or outcomes not stored."""
        async with AsyncExitStack() as stack:
            # For the logs: of all that we do from here on, in whatever task or thread.
            stack.callback(WORKER.reset, WORKER.set(str(self.id)))
            threads = Threads(sum(lane.slots for lane in self._settings.lanes))
            stack.callback(threads.close)
            limits = self._settings.result_limit, self._settings.error_message_limit
            carrier = None if self._tracer is None else self._tracer.carrier
            processes = ProcessPool(self._settings.cpu_processes, *limits, carrier)
            stack.callback(processes.close)
            resources = await open_resources(stack, self._makers, self._kinds.values())
            self._accord = Accord(self._store, self.id)
            locks = Locks(self._store, self._settings.lock_connections, self._accord)
            stack.push_async_callback(locks.close)
            breakers = Breakers(self._store, self._breakers, breaker_policy(self._settings))
            stack.push_async_callback(breakers.close)
            parts = self._store, threads, processes, resources, *limits, locks, breakers, self._delivery.news
            attempts = Attempts(*parts) if self._tracer is None else TracedAttempts(self._tracer, *parts)
            stack.callback(attempts.close)
            self._settler = Settler(
                self._store, self._kinds, self._leases, self._uniform, self._on_settled, self._on_ended, self._tallies
            )
            self.lanes = self._make_lanes(attempts)
            self._slots: list[Slot] = [slot for lane in self.lanes for slot in lane.slots]
            keeper = LeaseKeeper(
                self._leases,
                self._store.keeper,
                self._settings.lease,
                self._slots,
                attempts.stepping,
                self._settings.watchdog,
                on_lost=self._lose,
                on_cancel=self.cancel,
            )
            try:
                await self._beat()
                await self._accord.greet()
                # By every worker, be it one that never leads: what a breaker bars it gives back, and while nobody knows
                # that the kind has to wait, it would claim that again at once.
                await self._store.put_breaker_kinds(self._breaker_kinds, self._breakers)
                for name in boundless(self._kinds.values()):
                    log.warning(
                        "kind %s declares a breaker and no timeout: if one of its jobs hangs as a probe, the breaker "
                        "stays half-open, and others wait for it without end; give it one, as in timeout='5m'",
                        name,
                    )
                if self._duties is not None:
                    await self._duties.recover()
                    opening.debug("recovered")
                await self._peek()  # before the first claim, for it is to go by priority
                keeper.start()
                with closing(keeper):
                    await self._work()
            finally:
                await self._leave()

    def _make_lanes(self, attempts: Attempts) -> list[Lane]:
        suspects = Suspects()
        return [
            Lane(
                lane,
                self.id,
                self._store,
                self._kinds,
                self._lines,
                attempts,
                self._settler,
                self._leases,
                suspects,
                lambda job_id: self._tell(job_id, Stop.LOST),
                lease=self._settings.lease,
                batch=self._settings.batch,
                tenants=self._settings.claim_tenants,
                tallies=self._tallies,
            )
            for lane in self._settings.lanes
        ]

    async def _work(self) -> None:
        settling = asyncio.create_task(self._settler.run(), name="dutiful settler")
        serving = [asyncio.create_task(self._forever(self._serve))] if self._duties is not None else []
        opening.debug("services: %s", ", ".join(self._duties.names) if self._duties is not None else "none")
        slots = [asyncio.create_task(lane.run_slot(slot)) for lane in self.lanes for slot in lane.slots]
        opening.debug("first claim")
        feeding = [asyncio.create_task(lane.feed(), name=f"dutiful lane {lane.name}") for lane in self.lanes]
        loops = [asyncio.create_task(self._forever(loop)) for loop in (self._hear, self._poll, self._heartbeat)]
        loops.append(asyncio.create_task(self._tick()))
        self.started.set()
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            # A slot or lane that ends by itself is a bug: better to end loudly than to idle quietly.
            done, _ = await asyncio.wait([stopping, settling, *slots, *feeding], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
            self._close_lanes()
            # Others lead from here on; and nothing is retained or fired by somebody who is about to go.
            await _cancel(serving)
            interrupted = await self._drain(slots, feeding)
        except BaseException:
            handed_over = self._settler.unsettled  # such as the job whose slot has ended: it spends its attempt
            for claim, _ in self._leases.snapshot():
                if claim.claim_id not in handed_over:
                    # Nobody else is to blame for what went wrong here: back in line, no attempt spent.
                    self._settler.settle(claim, Released())
            raise
        finally:
            for slot in self._slots:
                slot.closing = True
            # Bounded, for a handler may catch its cancellation and go on for ever.
            await _cancel([stopping, *slots, *feeding, *loops, *serving])
            self._settler.close()
            try:
                unsettled = await self._settle_rest(settling)
            finally:
                self._delivery.news()
                await self._close_duties()
        if interrupted or unsettled:
            raise ShutdownTimeout(self._what_was_late(interrupted, unsettled))

    async def _close_duties(self) -> None:
        if self._duties is not None:
            # A post under way may take as long as a post may; unless somebody is in a hurry.
            hurry = self._aborting.is_set()
            await self._duties.close(self._patience if hurry else self._settings.webhook_timeout.total_seconds())

    def _what_was_late(self, interrupted: int, unsettled: int) -> str:
        told = []
        if interrupted:
            when = "at once, as asked" if self._aborting.is_set() else f"after the grace of {brief(self._grace)}"
            # What could not be stored was not given back either: that, too, is an outcome.
            fate = "" if unsettled else ", and given back"
            told.append(f"{_count(interrupted, 'job was', 'jobs were')} interrupted {when}{fate}")
        if unsettled:
            outcomes = _count(unsettled, "outcome", "outcomes")
            told.append(f"{outcomes} could not be stored: what they belong to is run again when its lease ends")
        return "; ".join(told)

    def _close_lanes(self) -> None:
        """Claim no more, and give back what is not started."""
        for lane in self.lanes:
            for claim in lane.close():
                self._settler.settle(claim, Released())
            lane.release_slots()

    async def _drain(self, slots: list["asyncio.Task[None]"], feeding: list["asyncio.Task[None]"]) -> int:
        """Let what runs finish; returns how many had to be interrupted."""
        everybody = asyncio.create_task(_ended(slots))
        aborting = asyncio.create_task(self._aborting.wait())
        grace = self._grace.total_seconds()
        both: list[asyncio.Task[Any]] = [everybody, aborting]
        await asyncio.wait(both, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        aborting.cancel()
        running = [slot for slot in self._slots if slot.claim is not None]
        for slot in running:
            slot.tell(Stop.SHUTDOWN)
        if running:
            await asyncio.wait([everybody], timeout=self._patience)
        everybody.cancel()
        for slot in running:
            if slot.claim is not None:  # it did not heed us; its job goes to somebody else all the same
                slot.abandoned = True
                self._settler.settle(slot.claim, Released())
        # A claim under way is waited for: cancelled, it would hold jobs that nobody knows of.
        await asyncio.wait(feeding, timeout=LAST_WORDS)
        return len(running)

    async def _settle_rest(self, settling: "asyncio.Task[None]") -> int:
        """Returns how many outcomes could not be stored."""
        try:
            await asyncio.wait_for(settling, LAST_WORDS)
        except TimeoutError:
            left = len(self._settler.unsettled)
            log.warning("%d outcomes could not be stored in time, and are left to their leases", left)
            return left
        return 0

    # --- loops

    async def _forever(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A background loop logs once and goes on."""
        pause = 0.1
        while True:
            began = time.monotonic()
            try:
                await loop()
            except DutifulError as error:
                log.warning("%s: %s", loop.__name__.strip("_"), error)
            except Exception:
                log.exception("%s met an error and goes on", loop.__name__.strip("_"))
            pause = 0.1 if time.monotonic() - began > 5 else min(pause * 2, 2.0)
            await asyncio.sleep(pause)

    async def _hear(self) -> None:
        async for lines in self._delivery.listen():
            if lines:
                self._lines.note(lines)
                queues = {queue for queue, _ in lines}
                for lane in self.lanes:
                    if any(lane.serves(queue) for queue in queues):
                        lane.wake()
            else:
                await self._peek()

    async def _poll(self) -> None:
        """The net under the hints; costs at most a twentieth of a connection's time."""
        while True:
            began = time.monotonic()
            await self._peek()
            self._lines.forget_idle()
            longest = self._settings.poll.total_seconds()
            if not self._delivery.healthy:
                longest = min(longest, 1.0)
            await asyncio.sleep(max(longest, 20 * (time.monotonic() - began)))

    async def _peek(self) -> None:
        found = await self._store.peek(list(self._kinds))
        self._lines.found(found)
        queues = {line.queue for line in found}
        for lane in self.lanes:
            if any(lane.serves(queue) for queue in queues):
                lane.wake()

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat.total_seconds())
            await self._beat()
            if self._tallies is not None:
                await self._tallies.hand_over(self._store, self.id)

    async def _serve(self) -> None:
        assert self._duties is not None
        await self._duties.run(self.id, self._look_soon)

    async def _tick(self) -> None:
        """One timer for all slots and buffers, instead of one each; and one word to watchers for all that happened."""
        told = 0
        while True:
            await asyncio.sleep(TICK)
            moved = self._settler.count + sum(lane.taken for lane in self.lanes)
            if moved != told:
                told = moved
                self._delivery.news()
            for lane in self.lanes:
                lane.give_back_stale()
                lane.look()
            now = time.monotonic()
            for slot in self._slots:
                if slot.deadline is not None and now >= slot.deadline and now - slot.told_at >= 1.0:
                    slot.tell(Stop.TIMEOUT)

    # --- small things

    def _look_soon(self, lines: frozenset[tuple[str, int]]) -> None:
        """A service moved jobs into these lines."""
        self._lines.note(lines)
        for lane in self.lanes:
            lane.wake()

    def _on_settled(self, claim: Claim, change: Change) -> None:
        if change.to is State.READY:
            # Others may have a free slot for it. What goes back to its old place in line is below their floors, where
            # only a look from the start finds it.
            told = claim.queue and not change.keep_seq
            self._delivery.hint(frozenset({(claim.queue, claim.priority)}) if told else EVERYWHERE)
        if self._duties is not None and change.to is State.SCHEDULED and change.delay is not None:
            self._duties.expect(change.delay)

    def _on_ended(self, webhook: bool) -> None:
        if self._duties is not None:
            self._duties.ended(webhook)

    def _tell(self, job_id: UUID, stop: Stop) -> None:
        for slot in self._slots:
            # Every one: a job that was lost and claimed again may still run here under its dead claim, too.
            if slot.claim is not None and slot.claim.job_id == job_id:
                slot.tell(stop)

    def _lose(self, claim: Claim) -> None:
        """Somebody else has this job now; what was claimed ahead and is not started never will be, here."""
        for slot in self._slots:
            if slot.claim is not None and slot.claim.claim_id == claim.claim_id:
                slot.tell(Stop.LOST)
                return
        self._leases.drop([claim.claim_id])

    async def _beat(self) -> None:
        # Seen before the lanes are: of what is paused, nothing is claimed from here on.
        pauses = await self._store.pauses()
        tenants = {"tenants": list(self._settings.claim_tenants)} if self._settings.claim_tenants else {}
        lanes = {
            lane.name: {
                "slots": lane.settings.slots,
                "queues": list(lane.settings.queues),
                "busy": lane.busy,
                "jobs": lane.running,
                "ahead": lane.ahead,
                "utilisation": lane.utilisation(),
                "heard": lane.hear(pauses),
                **tenants,
            }
            for lane in self.lanes
        }
        host = socket.gethostname()
        record = WorkerRecord(
            id=self.id,
            name=f"{host}:{os.getpid()}",
            host=host,
            pid=os.getpid(),
            started_at=self._started_at,
            seen_at=datetime.now(UTC),
            lanes=lanes,
            kinds=sorted(self._kinds),
            locks=await self._lock_mode(),
        )
        ttl = 3 * self._settings.heartbeat
        await self._store.beat(record, ttl)
        if time.monotonic() - self._beaten > ttl.total_seconds():
            self._accord.doubt()
        self._beaten = time.monotonic()
        self._delivery.watched(await self._store.listened())

    async def _lock_mode(self) -> LockMode | None:
        try:
            return await self._store.lock_mode()
        except StoreUnavailable as error:
            log.warning("locks have to wait: %s", error)  # nothing else has
            return None

    async def _leave(self) -> None:
        if self._tallies is not None:
            try:
                await asyncio.wait_for(self._tallies.hand_over_all(self._store, self.id), 2)
            except (DutifulError, TimeoutError) as error:
                log.warning("what was counted last could not be handed over: %s", error)
        try:
            await asyncio.wait_for(self._store.leave(self.id), 5)
        except (DutifulError, TimeoutError) as error:
            log.warning("could not sign off: %s", error)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


async def _ended(tasks: list["asyncio.Task[None]"]) -> None:
    await asyncio.wait(tasks)


async def _cancel(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=2)


__all__ = ["Worker"]
