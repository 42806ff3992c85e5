"""Circuit breakers: their state, and closing and opening them by hand."""

from typing import Any

import msgspec

from dutiful.core.breaker.state import Breaker, BreakerPolicy
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.core.json import check_name
from dutiful.core.principal import Origin
from dutiful.operator.actor import OperatorPart
from dutiful.store.breakers import BreakerRecord


class Breakers(OperatorPart):
    async def all(self) -> list[BreakerRecord]:
        """All breakers that code declares, that have counted a failure or that were opened by hand, by name."""
        self._actor.check_fleetwide("the list of breakers")
        return await self._store.breakers.all()

    async def reset(self, name: str, reason: str | None = None) -> Breaker | None:
        """Closes it now and clears its failures; None if there is none of that name.

        Jobs of its kinds continue at once, those that it rejected inside their handlers within about a second.
        """
        before = await self._breaker(name)
        async with self._actor.audited(
            "breaker.reset",
            name,
            reason,
            before=before,
            fleetwide=True,
            check=lambda: check_name(name, "breaker"),
        ) as action:
            breaker = await self._store.breakers.reset(name)
            action.done, action.after = breaker is not None, None if breaker is None else _state(breaker)
        return breaker

    async def open(
        self, name: str, open_for: Duration | None = None, reason: str | None = None, *, new: bool = False
    ) -> Breaker:
        """Opens it now, for `open_for` or as long as its policy says, which is that of the app if the app declares it.

        An unknown name is mostly a typing error, so it needs `new`.
        """
        length = None if open_for is None else duration(open_for, "open_for")

        async def possible() -> None:
            check_name(name, "breaker")
            if length is not None:
                BreakerPolicy(open_for=length)
            known = {one.breaker.name for one in await self._store.breakers.all()} | set(self._actor.breaker_policies)
            if not new and name not in known:
                how = "--new" if self._actor.principal.origin is Origin.CLI else "`new`"
                raise UsageError(
                    f"there is no breaker {name!r}: no app declares it, and it was never used; there are: "
                    f"{', '.join(sorted(known)) or 'none'}. Check the spelling, or create it with {how}"
                )

        before = await self._breaker(name)
        async with self._actor.audited(
            "breaker.open", name, reason, before=before, fleetwide=True, check=possible
        ) as action:
            breaker = await self._store.breakers.open(name, length, self._actor.breaker_policies.get(name))
            action.after = _state(breaker)
        return breaker

    async def _breaker(self, name: str) -> dict[str, Any] | None:
        """The breaker before an action; None for a principal who may not see it."""
        if self._actor.tenant is not None:
            return None
        return next((_state(one.breaker) for one in await self._store.breakers.all() if one.breaker.name == name), None)


def facts(record: BreakerRecord) -> dict[str, Any]:
    """A breaker and its policy in one flat record."""
    breaker = msgspec.structs.asdict(record.breaker)
    policy: BreakerPolicy = breaker.pop("policy")
    return {
        **breaker,
        "failures_allowed": policy.failures,
        "open_seconds": policy.open_for.total_seconds(),
        "probes": policy.probes,
        "probing": record.probing,
        "kinds": record.kinds,
        "waiting": record.waiting,
    }


def _state(breaker: Breaker) -> dict[str, Any]:
    return {"state": breaker.state, "failures": breaker.failures, "open_until": breaker.open_until}
