"""Draining: pause something, and see that nothing of it runs any more."""

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from dutiful.acting import PauseScope
from dutiful.core.errors import UnknownKind, UsageError
from dutiful.core.job import JobRecord
from dutiful.core.payload import check_name
from dutiful.core.transitions import State
from dutiful.operator.drain import EVERYTHING, Drain, Holdup, Look, Part, is_held, only_unheard, runs_on
from dutiful.operator.fleet import Fleetwide
from dutiful.operator.releasing import PAGE, all_of
from dutiful.reading import JobFilter
from dutiful.settings import ANY, DEFAULT_LANES

BY_HAND = (PauseScope.KIND, PauseScope.QUEUE, PauseScope.LANE)
LOOK = 0.5
# A claim that was under way when the pause came, of a worker that is not known to be alive, has been answered by then.
SETTLED = timedelta(seconds=1)


class Draining(Fleetwide):
    async def drain(
        self,
        *,
        kinds: Sequence[str] = (),
        queues: Sequence[str] = (),
        lanes: Sequence[str] = (),
        everything: bool = False,
        reason: str | None = None,
    ) -> Drain:
        """Pause them, and tell what still runs; what waits, and what comes, runs after a resume.

        With `everything`, each lane that there is or will be.
        """
        named = self._parts(kinds, queues, lanes)
        parts = [EVERYTHING] if everything else named
        target = "everything" if everything else ", ".join(map(str, parts))
        async with self._act(
            "fleet.drain", target, reason, fleetwide=True, check=lambda: self._check_parts(named, everything)
        ) as act:
            begun = [part for part in parts if await self.pause(part.scope, part.name, reason)]
            state = await self.draining(parts)
            act.after = {"paused": [str(part) for part in parts], "running": state.running}
        return msgspec.structs.replace(state, begun=begun)

    async def draining(self, parts: Sequence[Part] | None = None, *, everything: bool = False) -> Drain:
        """How far they are, of all that is paused unless told; with `everything`, whatever runs counts."""
        self._check_fleetwide("the state of a drain")
        return await self._look([EVERYTHING, *(parts or ())] if everything else parts, {})

    async def drained(self, drain: Drain, timeout: timedelta, tell: Callable[[Drain], None]) -> Drain:
        """Wait until it is safe, or somebody resumes it, or the time is over; `tell` hears of each look."""
        until = time.monotonic() + timeout.total_seconds()
        ended: dict[UUID, JobRecord] = {}
        while not drain.safe and not drain.hopeless and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(LOOK, left))
            drain = msgspec.structs.replace(await self._look(drain.parts, ended), begun=drain.begun)
            tell(drain)
        return drain

    async def _look(self, parts: Sequence[Part] | None, ended: dict[UUID, JobRecord]) -> Drain:
        """`ended` are jobs that were looked up before, and need not be again."""
        pauses = [pause for pause in await self._store.pauses() if pause.scope in BY_HAND]
        wanted = [Part(pause.scope, pause.name) for pause in pauses] if parts is None else list(dict.fromkeys(parts))
        # What runs comes last: what workers had claimed when they said that they had heard is among it.
        workers = await self._store.workers()
        running = await all_of(self._store, JobFilter(state=State.RUNNING, limit=PAGE))
        look = Look(wanted, pauses, running, workers, await self._store.clock())
        adrift, silent = await self._adrift(look, ended)
        unheard = look.unheard() | silent
        running_now = len(look.held) + len(adrift) + look.ahead()
        paused = not look.not_paused and bool(wanted)
        return Drain(
            parts=wanted,
            pauses=list(dict.fromkeys(look.paused.values())),
            running=running_now,
            holdups=[*map(look.holdup, look.held), *adrift],
            unheard=sorted(unheard),
            not_paused=look.not_paused,
            safe=paused and not running_now and not unheard and look.settled(SETTLED),
        )

    async def _adrift(self, look: Look, ended: dict[UUID, JobRecord]) -> tuple[list[Holdup], set[str]]:
        """What runs on without a claim, as far as its worker has said, and the workers that may only not have said yet
        that it is over."""
        found, silent = [], set()
        for one in look.adrift():
            job = ended.get(one.job_id) or await self._store.find(one.job_id)
            if job is not None and job.state.final:
                ended[job.id] = job
            if job is not None and not look.concerns(one, job):
                continue
            if is_held(one, job) or only_unheard(one, job):
                silent.add(one.worker.name)
            elif job is not None:
                found.append(runs_on(one, job))
        return found, silent

    def _parts(self, kinds: Sequence[str], queues: Sequence[str], lanes: Sequence[str]) -> list[Part]:
        named = ((PauseScope.KIND, kinds), (PauseScope.QUEUE, queues), (PauseScope.LANE, lanes))
        return list(dict.fromkeys(Part(scope, name) for scope, names in named for name in names))

    async def _check_parts(self, parts: Sequence[Part], everything: bool) -> None:
        if bool(parts) is everything:
            raise UsageError("say what to drain: some kinds, queues or lanes, or everything, and not both")
        for part in parts:
            check_name(part.name, part.scope.value)
            known = await self._names_of(part.scope)
            if part.name not in known and not await self._was_seen(part):
                error = UnknownKind if part.scope is PauseScope.KIND else UsageError
                raise error(
                    f"there is no {part.scope} {part.name!r}: no live worker knows it, and no job is of it; there are: "
                    f"{', '.join(sorted(known)) or 'none'}"
                )

    async def _names_of(self, scope: PauseScope) -> set[str]:
        workers = [worker for worker in await self._store.workers() if worker.alive]
        match scope:
            case PauseScope.KIND:
                return set(self._kinds) | {kind for worker in workers for kind in worker.kinds}
            case PauseScope.LANE:
                return {lane.name for lane in DEFAULT_LANES} | {lane for worker in workers for lane in worker.lanes}
            case PauseScope.QUEUE:
                lanes = {queue for worker in workers for lane in worker.lanes.values() for queue in lane["queues"]}
                return (lanes | {kind.queue for kind in self._kinds.values()}) - {ANY}

    async def _was_seen(self, part: Part) -> bool:
        match part.scope:
            case PauseScope.KIND:
                return bool(await self._store.jobs(JobFilter(kind=part.name, limit=1)))
            case PauseScope.QUEUE:
                return bool(await self._store.jobs(JobFilter(queue=part.name, limit=1)))
            case PauseScope.LANE:
                return part == EVERYTHING
