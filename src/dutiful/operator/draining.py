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
from dutiful.operator.silence import check_gone, is_silent
from dutiful.reading import JobFilter
from dutiful.settings import ANY, DEFAULT_LANES, DEFAULT_QUEUE

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
        gone: Sequence[str] = (),
    ) -> Drain:
        """Pause them, and tell what still runs; what waits, and what comes, runs after a resume.

        With `everything`, each lane that there is or will be. `gone` are workers that fell silent, by their names, of
        which you know that their processes have ended: they are not waited for.
        """
        named = self._parts(kinds, queues, lanes)
        parts = [EVERYTHING] if everything else named
        target = "everything" if everything else ", ".join(map(str, parts))
        async with self._act(
            "fleet.drain", target, reason, fleetwide=True, check=lambda: self._check(named, everything, gone)
        ) as act:
            unknown = [part for part in named if not await self._is_known(part)]
            begun = [part for part in parts if await self.pause(part.scope, part.name, reason)]
            state = await self.draining(parts, gone=gone)
            act.after = {"paused": [str(part) for part in parts], "running": state.running}
            if gone:
                act.after["gone"] = list(gone)
        return msgspec.structs.replace(state, begun=begun, unknown=unknown)

    async def draining(
        self, parts: Sequence[Part] | None = None, *, everything: bool = False, gone: Sequence[str] = ()
    ) -> Drain:
        """How far they are, of all that is paused unless told; with `everything`, whatever runs counts."""
        self._check_fleetwide("the state of a drain")
        return await self._look([EVERYTHING, *(parts or ())] if everything else parts, gone, {})

    async def drained(self, drain: Drain, timeout: timedelta, tell: Callable[[Drain], None]) -> Drain:
        """Wait until it is safe, or somebody resumes it, or the time is over; `tell` hears of each look."""
        until = time.monotonic() + timeout.total_seconds()
        ended: dict[UUID, JobRecord] = {}
        while not drain.safe and not drain.hopeless and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(LOOK, left))
            seen = await self._look(drain.parts, drain.gone, ended)
            drain = msgspec.structs.replace(seen, begun=drain.begun, unknown=drain.unknown)
            tell(drain)
        return drain

    async def _look(self, parts: Sequence[Part] | None, gone: Sequence[str], ended: dict[UUID, JobRecord]) -> Drain:
        """`ended` are jobs that were looked up before, and need not be again."""
        pauses = [pause for pause in await self._store.pauses() if pause.scope in BY_HAND]
        wanted = [Part(pause.scope, pause.name) for pause in pauses] if parts is None else list(dict.fromkeys(parts))
        # What runs comes last: what workers had claimed when they said that they had heard is among it.
        workers = await self._store.workers()
        running = await all_of(self._store, JobFilter(state=State.RUNNING, limit=PAGE))
        look = Look(wanted, pauses, running, workers, await self._store.clock(), gone)
        adrift, untold = await self._adrift(look, ended)
        unheard, silent = look.heedless(look.unheard() | untold)
        running_now = len(look.held) + len(adrift) + look.ahead()
        paused = not look.not_paused and bool(wanted)
        return Drain(
            parts=wanted,
            pauses=list(dict.fromkeys(look.paused.values())),
            running=running_now,
            holdups=[*map(look.holdup, look.held), *adrift],
            unheard=unheard,
            silent=silent,
            gone=list(gone),
            not_paused=look.not_paused,
            safe=paused and not running_now and not unheard and not silent and look.settled(SETTLED),
        )

    async def _adrift(self, look: Look, ended: dict[UUID, JobRecord]) -> tuple[list[Holdup], set[UUID]]:
        """What runs on without a claim, as far as its worker has said, and the workers that may only not have said yet
        that it is over, or cannot say it."""
        found, untold = [], set()
        for one in look.adrift():
            job = ended.get(one.job_id) or await self._store.find(one.job_id)
            if job is not None and job.state.final:
                ended[job.id] = job
            if job is not None and not look.concerns(one, job):
                continue
            if is_held(one, job) or only_unheard(one, job):
                untold.add(one.worker.id)
            elif job is not None:
                found.append(runs_on(one, job))
                if is_silent(one.worker):
                    untold.add(one.worker.id)
        return found, untold

    async def knows(self, scope: PauseScope, name: str) -> bool:
        """Whether this code, a live worker or a job has one of that name; if not, it may be misspelt."""
        self._check_fleetwide("what all workers know")
        return await self._is_known(Part(scope, name))

    def _parts(self, kinds: Sequence[str], queues: Sequence[str], lanes: Sequence[str]) -> list[Part]:
        named = ((PauseScope.KIND, kinds), (PauseScope.QUEUE, queues), (PauseScope.LANE, lanes))
        return list(dict.fromkeys(Part(scope, name) for scope, names in named for name in names))

    async def _check(self, parts: Sequence[Part], everything: bool, gone: Sequence[str]) -> None:
        await self._check_parts(parts, everything)
        if gone:
            check_gone(gone, await self._store.workers())

    async def _check_parts(self, parts: Sequence[Part], everything: bool) -> None:
        if bool(parts) is everything:
            raise UsageError("say what to drain: some kinds, queues or lanes, or everything, and not both")
        for part in parts:
            check_name(part.name, part.scope.value)
            known = await self._names_of(part.scope)
            # What a lane takes from any queue, nobody has to have named.
            if ANY not in known and not await self._is_known(part):
                error = UnknownKind if part.scope is PauseScope.KIND else UsageError
                raise error(
                    f"there is no {part.scope} {part.name!r}: no live worker knows it, and no job is of it; there are: "
                    f"{', '.join(sorted(known)) or 'none'}"
                )

    async def _is_known(self, part: Part) -> bool:
        return part.name in await self._names_of(part.scope) or await self._was_seen(part)

    async def _names_of(self, scope: PauseScope) -> set[str]:
        """Those that live workers and this code know; of queues, ANY if a lane takes them all."""
        workers = [worker for worker in await self._store.workers() if worker.alive]
        match scope:
            case PauseScope.KIND:
                return set(self._kinds) | {kind for worker in workers for kind in worker.kinds}
            case PauseScope.LANE:
                return {lane.name for lane in DEFAULT_LANES} | {lane for worker in workers for lane in worker.lanes}
            case PauseScope.QUEUE:
                lanes = {queue for worker in workers for lane in worker.lanes.values() for queue in lane["queues"]}
                waiting = {queue.queue for queue in await self._store.queues()}
                return lanes | waiting | {kind.queue for kind in self._kinds.values()} | {DEFAULT_QUEUE}

    async def _was_seen(self, part: Part) -> bool:
        match part.scope:
            case PauseScope.KIND:
                return bool(await self._store.jobs(JobFilter(kind=part.name, limit=1)))
            case PauseScope.QUEUE:
                return bool(await self._store.jobs(JobFilter(queue=part.name, limit=1)))
            case PauseScope.LANE:
                return part == EVERYTHING
