"""Puts the parts of a worker together, and opens those that have to be closed."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dutiful.breaker import breaker_policy
from dutiful.core.breaker import BreakerPolicy
from dutiful.kind import Kind
from dutiful.settings import Settings
from dutiful.store import Store
from dutiful.worker.attempt import Attempts
from dutiful.worker.breakers import Breakers
from dutiful.worker.consequences import Consequences
from dutiful.worker.declaration import Declaration
from dutiful.worker.lane import Lane
from dutiful.worker.lease import LeaseKeeper, Leases
from dutiful.worker.lines import Lines
from dutiful.worker.lock_accord import Accord
from dutiful.worker.locks import Locks
from dutiful.worker.lookout import Lookout
from dutiful.worker.plan import Plan
from dutiful.worker.presence import Presence
from dutiful.worker.processes import ProcessPool
from dutiful.worker.resources import open_resources
from dutiful.worker.settler import Settler
from dutiful.worker.slots import Slots
from dutiful.worker.suspects import Suspects
from dutiful.worker.threads import Threads
from dutiful.worker.timer import Timer
from dutiful.worker.traced import TracedAttempts

if TYPE_CHECKING:
    from dutiful.observe.tracing import Tracer


@dataclass(frozen=True, slots=True)
class Parts:
    lanes: list[Lane]
    settler: Settler
    keeper: LeaseKeeper
    lookout: Lookout
    presence: Presence
    timer: Timer
    accord: Accord
    declaration: Declaration


async def open_parts(stack: AsyncExitStack, plan: Plan, slots: Slots) -> Parts:
    """All of a worker; `slots` are filled, and what has to be closed is closed with `stack`."""
    store, settings, delivery = plan.store, plan.settings, plan.delivery
    started_at = datetime.now(UTC)  # before resources, which may take their time
    accord = Accord(store, plan.worker_id)
    attempts = await open_attempts(
        stack,
        store,
        settings,
        plan.kinds.values(),
        plan.resources,
        plan.breakers,
        delivery.news,
        threads=sum(lane.slots for lane in settings.lanes),
        processes=settings.cpu_processes,
        accord=accord,
        tracer=plan.tracer,
    )
    leases, lines, suspects = Leases(), Lines(), Suspects()
    then = Consequences(delivery, plan.duties)
    span_of = None if plan.tracer is None else plan.tracer.span_of
    settler = Settler(store, plan.kinds, leases, plan.uniform, then.settled, then.ended, plan.tallies, span_of)
    lanes = [Lane(plan, lane, lines, leases, suspects, attempts, settler, slots) for lane in settings.lanes]
    keeper = LeaseKeeper(
        leases,
        store.keeper,
        settings.lease,
        attempts.stepping,
        settings.watchdog,
        on_lost=slots.lose,
        on_cancel=slots.cancel,
    )
    declaration = Declaration(plan)
    presence = Presence(plan, lanes, accord, declaration, started_at)
    timer = Timer(lanes, slots, settler, presence, delivery.news)
    return Parts(lanes, settler, keeper, Lookout(plan, lines, lanes), presence, timer, accord, declaration)


async def open_attempts(
    stack: AsyncExitStack,
    store: Store,
    settings: Settings,
    kinds: Iterable[Kind[Any, Any]],
    resources: Mapping[str, Callable[[], Any]],
    breakers: Mapping[str, BreakerPolicy],
    news: Callable[[], None],
    *,
    threads: int,
    processes: int,
    accord: Accord | None = None,
    tracer: "Tracer | None" = None,
) -> Attempts:
    """How handlers are run, and all that they use meanwhile; closed with `stack`."""
    limits = settings.result_limit, settings.error_message_limit
    in_threads = Threads(threads)
    stack.callback(in_threads.close)
    in_processes = ProcessPool(processes, *limits, None if tracer is None else tracer.carrier)
    stack.callback(in_processes.close)
    opened = await open_resources(stack, resources, kinds)
    locks = Locks(store, settings.lock_connections, accord)
    stack.push_async_callback(locks.close)
    own_breakers = Breakers(store, breakers, breaker_policy(settings))
    stack.push_async_callback(own_breakers.close)
    parts = store, in_threads, in_processes, opened, *limits, locks, own_breakers, news
    attempts = Attempts(*parts) if tracer is None else TracedAttempts(tracer, *parts)
    stack.callback(attempts.close)
    return attempts
