"""Workers, pauses and drains. Closed to a tenant's principal, because they concern all tenants."""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core.errors import UnknownKind, UsageError
from dutiful.core.job import JobRecord
from dutiful.core.json import check_name
from dutiful.core.states import State
from dutiful.declare.lane import ANY, DEFAULT_LANES
from dutiful.operator.actor import OperatorPart, recordable
from dutiful.operator.drain import (
    EVERYTHING,
    Blocker,
    Drain,
    DrainSnapshot,
    DrainTarget,
    check_gone,
    has_ended,
    is_claimed,
    is_silent,
    unclaimed_blocker,
)
from dutiful.operator.jobs.stuck import PAGE, all_of
from dutiful.settings import DEFAULT_QUEUE
from dutiful.store.control import EVERY_LANE, Pause, PauseScope
from dutiful.store.metrics import OTHERS
from dutiful.store.queries import JobFilter
from dutiful.store.workers import WorkerRecord

POLL = 0.5
SHOWN = 20  # names in an error
# By then, a claim that was in flight when the pause came has been answered, even of a worker that is not alive.
IN_FLIGHT = timedelta(seconds=1)


class Fleet(OperatorPart):
    async def workers(self) -> list[WorkerRecord]:
        self._actor.check_fleetwide("the list of workers")
        return await self._store.workers.all()

    async def pauses(self) -> list[Pause]:
        self._actor.check_fleetwide("the list of pauses")
        return await self._store.control.pauses()

    async def pause(self, scope: PauseScope | str, name: str, reason: str | None = None) -> bool:
        """Starts no more jobs of it; False if it was paused already. The lane `*` is every lane."""
        scope = _scope(scope)
        async with self._actor.audited(
            f"{scope}.pause", name, reason, fleetwide=True, check=lambda: _check_pausable(scope, name)
        ) as action:
            recorded = None if reason is None else recordable(reason)
            pause = Pause(scope, name, datetime.now(UTC), self._actor.principal.name, recorded)
            changed = await self._store.control.pause(pause)
            action.after = {"paused": True, "changed": changed}
        return changed

    async def resume(self, scope: PauseScope | str, name: str, reason: str | None = None) -> bool:
        """Ends a pause; False if there was none."""
        scope = _scope(scope)
        async with self._actor.audited(f"{scope}.resume", name, reason, fleetwide=True) as action:
            changed = await self._store.control.resume(scope, name)
            action.after = {"paused": False, "changed": changed}
        return changed

    async def drain(
        self,
        *,
        kinds: Sequence[str] = (),
        queues: Sequence[str] = (),
        lanes: Sequence[str] = (),
        everything: bool = False,
        reason: str | None = None,
        gone: Sequence[str] = (),
    ) -> Drain:
        """Pauses them and returns what still runs; waiting and new jobs run after a resume.

        `everything` is each present and future lane. `gone` names silent workers whose processes are known to have
        ended: the drain does not wait for them.
        """
        named = _targets(kinds, queues, lanes)
        targets = [EVERYTHING] if everything else named
        title = "everything" if everything else ", ".join(map(str, targets))
        async with self._actor.audited(
            "fleet.drain", title, reason, fleetwide=True, check=lambda: self._check(named, everything, gone)
        ) as action:
            unknown = [target for target in named if not await self._is_known(target)]
            paused = [target for target in targets if await self.pause(target.scope, target.name, reason)]
            state = await self.drain_status(targets, gone=gone)
            action.after = {"paused": [str(target) for target in targets], "running": state.running}
            if gone:
                action.after["gone"] = list(gone)
        return msgspec.structs.replace(state, newly_paused=paused, unknown=unknown)

    async def drain_status(
        self, targets: Sequence[DrainTarget] | None = None, *, everything: bool = False, gone: Sequence[str] = ()
    ) -> Drain:
        """The progress of draining these, by default all that is paused; with `everything`, all running jobs count."""
        self._actor.check_fleetwide("the state of a drain")
        return await self._state([EVERYTHING, *(targets or ())] if everything else targets, gone, {})

    async def wait_drained(self, drain: Drain, timeout: timedelta, report: Callable[[Drain], None]) -> Drain:
        """Waits until it is safe, resumed or the time is over; calls `report` after each check."""
        until = time.monotonic() + timeout.total_seconds()
        ended: dict[UUID, JobRecord] = {}
        while not drain.safe and not drain.stalled and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(POLL, left))
            seen = await self._state(drain.targets, drain.gone, ended)
            drain = msgspec.structs.replace(seen, newly_paused=drain.newly_paused, unknown=drain.unknown)
            report(drain)
        return drain

    async def _state(
        self, targets: Sequence[DrainTarget] | None, gone: Sequence[str], ended: dict[UUID, JobRecord]
    ) -> Drain:
        """`ended` caches finished jobs between checks."""
        pauses = await self._store.control.pauses()
        if targets is None:
            targets = [DrainTarget(pause.scope, pause.name) for pause in pauses]
        targets = list(dict.fromkeys(targets))
        # Running jobs come last: they include what workers had claimed when their heartbeats confirmed the pause.
        workers = await self._store.workers.all()
        running = await all_of(self._store, JobFilter(state=State.RUNNING, limit=PAGE, details=False))
        snapshot = DrainSnapshot(targets, pauses, running, workers, await self._store.queries.clock(), gone)
        unclaimed, unsure = await self._unclaimed(snapshot, ended)
        unconfirmed, silent = snapshot.by_silence(snapshot.unconfirmed_ids() | unsure)
        count = len(snapshot.claimed) + len(unclaimed) + snapshot.prefetched()
        idle = not count and not unconfirmed and not silent
        return Drain(
            targets=targets,
            pauses=list(dict.fromkeys(snapshot.paused.values())),
            running=count,
            blockers=[*map(snapshot.blocker, snapshot.claimed), *unclaimed],
            unconfirmed=unconfirmed,
            silent=silent,
            gone=list(gone),
            not_paused=snapshot.not_paused,
            safe=bool(targets) and not snapshot.not_paused and idle and snapshot.paused_for(IN_FLIGHT),
        )

    async def _unclaimed(
        self, snapshot: DrainSnapshot, ended: dict[UUID, JobRecord]
    ) -> tuple[list[Blocker], set[UUID]]:
        """Jobs that run without a claim, and the workers whose next heartbeat may show that they have ended."""
        found, unsure = [], set()
        for run in snapshot.unclaimed():
            job = ended.get(run.job_id) or await self._store.queries.job(run.job_id)
            if job is not None and job.state.final:
                ended[job.id] = job
            if job is not None and not snapshot.concerns(run, job):
                continue
            if is_claimed(run, job) or has_ended(run, job):
                unsure.add(run.worker.id)
            elif job is not None:
                found.append(unclaimed_blocker(run, job))
                if is_silent(run.worker):
                    unsure.add(run.worker.id)
        return found, unsure

    async def knows(self, scope: PauseScope, name: str) -> bool:
        """Whether this code, a live worker or a job has one of that name; if not, it may be misspelt."""
        self._actor.check_fleetwide("what all workers know")
        return await self._is_known(DrainTarget(scope, name))

    async def _check(self, targets: Sequence[DrainTarget], everything: bool, gone: Sequence[str]) -> None:
        if bool(targets) is everything:
            raise UsageError("say what to drain: some kinds, queues or lanes, or everything, and not both")
        for target in targets:
            check_name(target.name, target.scope.value)
            known = await self._names_of(target.scope)
            # A lane that serves any queue also serves one that no code names.
            if ANY not in known and not await self._is_known(target):
                error = UnknownKind if target.scope is PauseScope.KIND else UsageError
                raise error(
                    f"there is no {target.scope} {target.name!r}: no live worker knows it, and no job is of it; there "
                    f"are: {_listed(known)}"
                )
        if gone:
            check_gone(gone, await self._store.workers.all())

    async def _is_known(self, target: DrainTarget) -> bool:
        return target.name in await self._names_of(target.scope) or await self._was_seen(target)

    async def _names_of(self, scope: PauseScope) -> set[str]:
        """The names that live workers and this code know; with ANY if a lane serves all queues."""
        workers = [worker for worker in await self._store.workers.all() if worker.alive]
        match scope:
            case PauseScope.KIND:
                return set(self._actor.kinds) | {kind for worker in workers for kind in worker.kinds}
            case PauseScope.LANE:
                return {lane.name for lane in DEFAULT_LANES} | {lane for worker in workers for lane in worker.lanes}
            case PauseScope.QUEUE:
                lanes = {queue for worker in workers for lane in worker.lanes.values() for queue in lane.queues}
                waiting = {queue.queue for queue in await self._store.queries.queues()} - {OTHERS}
                return lanes | waiting | {kind.queue for kind in self._actor.kinds.values()} | {DEFAULT_QUEUE}

    async def _was_seen(self, target: DrainTarget) -> bool:
        match target.scope:
            case PauseScope.KIND:
                return bool(await self._store.queries.jobs(JobFilter(kind=target.name, limit=1)))
            case PauseScope.QUEUE:
                return bool(await self._store.queries.jobs(JobFilter(queue=target.name, limit=1)))
            case PauseScope.LANE:
                return target == EVERYTHING


def _listed(names: Collection[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return f"{', '.join(sorted(names)[:SHOWN]) or 'none'}{more}"


def _targets(kinds: Sequence[str], queues: Sequence[str], lanes: Sequence[str]) -> list[DrainTarget]:
    named = ((PauseScope.KIND, kinds), (PauseScope.QUEUE, queues), (PauseScope.LANE, lanes))
    return list(dict.fromkeys(DrainTarget(scope, name) for scope, names in named for name in names))


def _check_pausable(scope: PauseScope, name: str) -> None:
    check_name(name, scope.value)
    if name == EVERY_LANE and scope is not PauseScope.LANE:
        raise UsageError(f"a pause of the {scope} {name!r} would stop nothing; for everything, pause the lane {name!r}")


def _scope(text: str) -> PauseScope:
    try:
        return PauseScope(text)
    except ValueError:
        raise UsageError(f"{text!r:.80} cannot be paused: it is a {', a '.join(PauseScope)} that can") from None
