"""The breakers of one worker: stores which kinds declare them, enters them before a call, and reports its result."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dutiful.core.breaker.state import Breaker, BreakerPolicy, BreakerState, CallResult, Entry, Rejected
from dutiful.core.errors import BreakerOpen, DutifulError
from dutiful.core.job import ClaimToken
from dutiful.kind import Kind
from dutiful.observe.outage import level_of
from dutiful.store.breakers import BreakerStore
from dutiful.store.workers import LaneRecord
from dutiful.worker.config import WorkerConfig

log = logging.getLogger("dutiful.worker")
REPORT_TIMEOUT = 5.0  # seconds that a block that has ended waits until its result is stored
PROBE_WAIT = 10.0  # seconds that a call waits at most for a probe of the same job
SEEN_FOR = 0.25  # seconds; buffered jobs are rejected one by one, and need not ask each time whether their kind waits


class BreakerClient:
    def __init__(self, store: BreakerStore, policies: Mapping[str, BreakerPolicy], default: BreakerPolicy) -> None:
        """`default` is for names that the code does not declare."""
        self.loop = asyncio.get_running_loop()
        self._store = store
        self._policies = policies
        self._default = default
        self._reporting: set[asyncio.Task[None]] = set()
        self._logged: dict[str, int] = {}  # by breaker: the round that was logged last
        self._waits_seen: dict[str, float] = {}  # by kind: when its jobs were seen to wait

    async def enter(self, name: str, token: ClaimToken) -> Entry:
        """Raises BreakerOpen if the call is rejected; a caller that is cancelled meanwhile gives its probe back."""
        policy = self._policies.get(name, self._default)
        entering = asyncio.ensure_future(self._store.enter(name, policy, token))
        try:
            answer = await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(lambda entered: self._give_back(name, token, entered))
            raise
        if isinstance(answer, Rejected):
            raise BreakerOpen(name, answer.until, answer.wait)
        return answer

    def probe_wait(self, name: str) -> float:
        return min(self._policies.get(name, self._default).open_for.total_seconds(), PROBE_WAIT)

    async def make_kind_wait(self, kind: str, name: str) -> bool:
        """Makes jobs of the kind wait for its breaker; False if they do not, and would be claimed again at once.

        A worker of a version in which the kind declares no breaker may have started after this one.
        """
        if time.monotonic() - self._waits_seen.get(kind, -SEEN_FOR) < SEEN_FOR:
            return True
        policies = {name: self._policies[name]} if name in self._policies else None
        try:
            waits = (await self._store.kinds()).get(kind) == name
            if not waits:
                await self._store.put_kinds({kind: name}, policies)
                waits = (await self._store.kinds()).get(kind) == name
        except DutifulError as error:
            log.log(level_of(error), "breaker %s: jobs of kind %s cannot be made to wait: %s", name, kind, error)
            return False
        if waits:
            self._waits_seen[kind] = time.monotonic()
        return waits

    def report_soon(self, name: str, token: ClaimToken, entry: Entry, result: CallResult) -> "asyncio.Task[None]":
        """Reports a result in a task that is never interrupted and never fails."""
        reporting = self.loop.create_task(self._store_result(name, token, entry, result))
        self._reporting.add(reporting)
        reporting.add_done_callback(self._reporting.discard)
        return reporting

    async def report(self, name: str, token: ClaimToken, entry: Entry, result: CallResult) -> None:
        """Reports a result, and waits a while until it is stored."""
        if not (result.clear or entry.probe):
            return  # it changes nothing
        reporting = self.report_soon(name, token, entry, result)
        _, late = await asyncio.wait({reporting}, timeout=REPORT_TIMEOUT)
        if late:
            log.warning("breaker %s: it takes long to store that a call was %s", name, result)

    async def close(self) -> None:
        if self._reporting:
            await asyncio.wait(set(self._reporting), timeout=REPORT_TIMEOUT)

    def _give_back(self, name: str, token: ClaimToken, entered: "asyncio.Future[Entry | Rejected]") -> None:
        if entered.cancelled() or entered.exception() is not None:
            return
        answer = entered.result()
        if isinstance(answer, Entry) and answer.probe:
            self.report_soon(name, token, answer, CallResult.UNCLEAR)

    async def _store_result(self, name: str, token: ClaimToken, entry: Entry, result: CallResult) -> None:
        policy = self._policies.get(name, self._default)
        try:
            after = await self._store.exit(name, policy, token, entry, result)
        except DutifulError as error:
            # The call itself is not affected. A probe is given back when its job has ended.
            log.log(level_of(error), "breaker %s: a call was %s, which could not be stored: %s", name, result, error)
        except Exception:
            log.exception("breaker %s: a call was %s, which could not be stored", name, result)
        else:
            self._log_change(after, entry, result)

    def _log_change(self, after: Breaker, entry: Entry, result: CallResult) -> None:
        """Logs once that a call of this worker has changed the state."""
        if after.round != entry.round + 1 or self._logged.get(after.name) == after.round:
            return
        match after.state, result:
            case BreakerState.OPEN, CallResult.BAD:
                log.warning("breaker %s has opened: no calls before %s", after.name, after.open_until)
            case BreakerState.CLOSED, CallResult.GOOD:
                log.info("breaker %s is closed again", after.name)
            case BreakerState.CLOSED, CallResult.NEUTRAL:
                log.info("breaker %s is closed again, because no call failed", after.name)
            case _:
                return
        self._logged[after.name] = after.round


class BreakerDeclaration:
    """Stores which breaker each kind declares, again once no worker is left that declares another one."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._store = config.store
        self._own = {kind: config.breaker_kinds[kind] for kind in config.kinds}
        self.breaker_by_kind = {kind: name for kind, name in self._own.items() if name is not None}

    def withdraw(self) -> None:
        """Declares nothing more, because this worker claims no more jobs."""
        self.breaker_by_kind = {}

    async def declare(self) -> None:
        await self._store.breakers.put_kinds(self._config.breaker_kinds, self._config.breakers)
        for name in sorted(kind.name for kind in self._config.kinds.values() if _may_probe_forever(kind)):
            log.warning(
                "kind %s declares a breaker and no timeout: if one of its jobs hangs as a probe, the breaker "
                "stays half-open, and others wait for it without end; give it one, as in timeout='5m'",
                name,
            )

    async def redeclare(self) -> None:
        """Stores own declarations where others are stored that no live worker makes any more.

        While workers of another release ran, theirs counted. Once these are gone, jobs of the kind must not wait for a
        breaker that no worker enters, because none would close it.
        """
        stored = await self._store.breakers.kinds()
        if all(stored.get(kind) == name for kind, name in self._own.items()):
            return
        living = [(worker.lanes, worker.kinds) for worker in await self._store.workers.all() if worker.alive]
        kinds = orphaned_kinds(self._own, stored, living)
        if not kinds:
            return
        for kind, name in kinds.items():
            log.info("kind %s has breaker %s, because no worker is left that gave it %s", kind, name, stored.get(kind))
        names = set(kinds.values())
        policies = {name: policy for name, policy in self._config.breakers.items() if name in names}
        await self._store.breakers.put_kinds(kinds, policies)


def orphaned_kinds(
    own: Mapping[str, str | None],
    stored: Mapping[str, str],
    living: Iterable[tuple[Mapping[str, LaneRecord], Sequence[str]]],
) -> dict[str, str | None]:
    """Own declarations of kinds whose stored one differs, and is made by no live worker.

    `living`: the lanes and kinds of live workers. One that records no breakers may use any.
    """
    unknown: set[str] = set()
    made: set[tuple[str, str | None]] = set()
    for lanes, kinds in living:
        for lane in lanes.values():
            if lane.breakers is None:
                unknown.update(kinds)
            else:
                made.update((kind, lane.breakers.get(kind)) for kind in kinds)
    return {
        kind: name
        for kind, name in own.items()
        if (other := stored.get(kind)) != name and kind not in unknown and (kind, other) not in made
    }


def _may_probe_forever(kind: Kind[Any, Any]) -> bool:
    timeouts = [phase.timeout for phase in kind.phases]
    return kind.breaker is not None and kind.timeout is None and (not timeouts or None in timeouts)
