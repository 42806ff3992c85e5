"""What a worker is told to be, before any part of it is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dutiful.core.breaker import BreakerPolicy
from dutiful.core.errors import UnknownKind
from dutiful.core.settle import Uniform
from dutiful.delivery import Delivery
from dutiful.kind import Kind
from dutiful.service import Duty
from dutiful.settings import Settings
from dutiful.store import Store
from dutiful.worker.tallies import Tallies

if TYPE_CHECKING:
    from dutiful.observe.tracing import Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The same for all parts of a worker, which change nothing of it."""

    worker_id: UUID
    store: Store
    delivery: Delivery
    settings: Settings
    kinds: Mapping[str, Kind[Any, Any]]  # those that this worker runs
    resources: Mapping[str, Callable[[], Any]]
    breakers: Mapping[str, BreakerPolicy]
    breaker_kinds: Mapping[str, str | None]  # of every kind, be it run here or not
    uniform: Uniform
    duties: Duty | None = None
    tallies: Tallies | None = None
    tracer: "Tracer | None" = None
    # A store for as long as handlers outlive the worker; None: its process ends with it, and so do they.
    make_store: Callable[[], Store] | None = None


def chosen(kinds: Mapping[str, Kind[Any, Any]], names: tuple[str, ...]) -> dict[str, Kind[Any, Any]]:
    """Those of these names, or all where none is named."""
    unknown = sorted(set(names) - set(kinds))
    if unknown:
        raise UnknownKind(f"there is no kind {unknown[0]!r}; this app has: {', '.join(sorted(kinds)) or 'none yet'}")
    return {name: kind for name, kind in kinds.items() if not names or name in names}
