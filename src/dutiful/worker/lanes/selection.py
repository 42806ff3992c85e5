"""Which jobs of its queues a lane takes: those of some kinds or tenants, or all that its worker runs."""

from dataclasses import dataclass

from dutiful.core.errors import UsageError
from dutiful.declare.lane import LaneSettings
from dutiful.worker.config import WorkerConfig


@dataclass(frozen=True, slots=True)
class Selection:
    """What lanes ask for. Those that ask for the same share their cursors."""

    kinds: tuple[str, ...]
    tenants: tuple[str, ...]  # none: any


def select(config: WorkerConfig, lane: LaneSettings) -> Selection:
    """Raises UsageError if the lane names what its worker does not run."""
    if config.inbox is not None and (lane.narrows_kinds or lane.tenants):
        raise UsageError(
            f"lane {lane.name!r} takes some kinds or tenants only, but a broker delivers messages by queue: give these "
            "jobs a queue of their own, and the lane this queue"
        )
    return Selection(_kinds(config, lane), _tenants(config, lane))


def _kinds(config: WorkerConfig, lane: LaneSettings) -> tuple[str, ...]:
    if not lane.narrows_kinds:
        return tuple(config.kinds)
    if unknown := [name for name in lane.kinds if name not in config.kinds]:
        known = ", ".join(sorted(config.kinds)) or "none"
        raise UsageError(f"lane {lane.name!r} names the kind {unknown[0]!r}; this worker runs: {known}")
    tags = {tag for kind in config.kinds.values() for tag in kind.tags} if lane.tags else set[str]()
    if unknown := [tag for tag in lane.tags if tag not in tags]:
        known = ", ".join(sorted(tags)) or "none"
        raise UsageError(f"lane {lane.name!r} names the tag {unknown[0]!r}; the kinds of this worker have: {known}")
    needs = (
        {name: set(kind.signature.resources.values()) for name, kind in config.kinds.items()} if lane.resources else {}
    )
    if unknown := [one for one in lane.resources if not any(one in needed for needed in needs.values())]:
        known = ", ".join(sorted(set().union(*needs.values()))) or "none"
        raise UsageError(
            f"lane {lane.name!r} names the resource {unknown[0]!r}; the kinds of this worker ask for: {known}"
        )
    return tuple(
        name
        for name, kind in config.kinds.items()
        if name in lane.kinds
        or not set(lane.tags).isdisjoint(kind.tags)
        or not needs.get(name, set()).isdisjoint(lane.resources)
    )


def _tenants(config: WorkerConfig, lane: LaneSettings) -> tuple[str, ...]:
    served = config.settings.claim_tenants
    if served and (other := [tenant for tenant in lane.tenants if tenant not in served]):
        raise UsageError(
            f"lane {lane.name!r} names the tenant {other[0]!r}, but this worker takes only jobs of: {', '.join(served)}"
        )
    return lane.tenants or served
