"""Which breakers a worker's kinds declare: told to the fleet, and again when none is left who says otherwise."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dutiful.worker.plan import Plan

log = logging.getLogger("dutiful.worker")


class Declaration:
    def __init__(self, plan: Plan) -> None:
        self._store = plan.store
        self._policies = plan.breakers
        self._all = plan.breaker_kinds
        self._own = {kind: plan.breaker_kinds[kind] for kind in plan.kinds}
        self.heeded = {kind: name for kind, name in self._own.items() if name is not None}
        """By kind, the breaker that its jobs enter here."""

    def withdraw(self) -> None:
        """We claim no more: of us, nobody has to wait for a breaker."""
        self.heeded = {}

    async def make(self) -> None:
        await self._store.put_breaker_kinds(self._all, self._policies)

    async def renew(self) -> None:
        """Declare again what others have declared otherwise, if none of them is left.

        Beside workers of another release we had no say. Once these are gone, jobs of the kind must not wait for a
        breaker that nobody enters any more, for then nobody closes it either.
        """
        stored = await self._store.breaker_kinds()
        if all(stored.get(kind) == name for kind, name in self._own.items()):
            return
        living = [(worker.lanes, worker.kinds) for worker in await self._store.workers() if worker.alive]
        kinds = disowned(self._own, stored, living)
        if not kinds:
            return
        for kind, name in kinds.items():
            log.info("kind %s has breaker %s, for no worker is left that gave it %s", kind, name, stored.get(kind))
        names = set(kinds.values())
        policies = {name: policy for name, policy in self._policies.items() if name in names}
        await self._store.put_breaker_kinds(kinds, policies)


def disowned(
    own: Mapping[str, str | None],
    stored: Mapping[str, str],
    living: Iterable[tuple[Mapping[str, Mapping[str, Any]], Sequence[str]]],
) -> dict[str, str | None]:
    """What we declare of those kinds of which something else is stored, that no worker alive stands by.

    `living`: their lanes and kinds. One that does not say what it heeds may heed anything.
    """
    silent: set[str] = set()
    said: set[tuple[str, str | None]] = set()
    for lanes, kinds in living:
        for lane in lanes.values():
            if (heeded := lane.get("breakers")) is None:
                silent.update(kinds)
            else:
                said.update((kind, heeded.get(kind)) for kind in kinds)
    return {
        kind: name
        for kind, name in own.items()
        if (other := stored.get(kind)) != name and kind not in silent and (kind, other) not in said
    }
