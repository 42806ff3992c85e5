"""The configuration of one worker, made by the factory."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dutiful.core.breaker.state import BreakerPolicy
from dutiful.core.errors import UnknownKind
from dutiful.core.limits import KindLimit
from dutiful.core.settle import Uniform
from dutiful.delivery.base import Delivery
from dutiful.kind import Kind
from dutiful.maintenance.runner import MaintenanceRunner
from dutiful.observe.outage import OutageLog
from dutiful.payload.key_ring import KeyRing
from dutiful.settings import Settings
from dutiful.store import Store
from dutiful.worker.counters import AttemptCounters

if TYPE_CHECKING:
    from dutiful.observe.tracing import Tracer
    from dutiful.worker.lanes.inbox import Inbox


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Shared by all parts of a worker; none of them changes it."""

    worker_id: UUID
    store: Store
    delivery: Delivery
    settings: Settings
    kinds: Mapping[str, Kind[Any, Any]]  # those that this worker runs
    resources: Mapping[str, Callable[[], Any]]
    breakers: Mapping[str, BreakerPolicy]
    breaker_kinds: Mapping[str, str | None]  # of every kind, also of those not run here
    limits: Mapping[str, Sequence[KindLimit]] = field(default_factory=dict)  # likewise
    uniform: Uniform = random.uniform
    maintenance: MaintenanceRunner | None = None
    outages: OutageLog = field(default_factory=OutageLog)  # shared with maintenance
    counters: AttemptCounters | None = None
    tracer: "Tracer | None" = None
    key_ring: KeyRing | None = None  # of encrypted kinds
    inbox: "Inbox | None" = None  # jobs that a broker delivers; None: lanes find them in the store
    supervised: bool = False  # its process is started again when it ends
    # Opens a store for handlers that outlive the worker; None: the process ends with the worker, and so do they.
    make_store: Callable[[], Store] | None = None


def select_kinds(kinds: Mapping[str, Kind[Any, Any]], names: tuple[str, ...]) -> dict[str, Kind[Any, Any]]:
    """The kinds of these names, or all where none is named."""
    unknown = sorted(set(names) - set(kinds))
    if unknown:
        raise UnknownKind(f"there is no kind {unknown[0]!r}; this app has: {', '.join(sorted(kinds)) or 'none yet'}")
    return {name: kind for name, kind in kinds.items() if not names or name in names}
