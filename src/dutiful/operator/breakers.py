"""Circuit breakers, as people look at them, close them and open them."""

from datetime import timedelta
from typing import Any

import msgspec

from dutiful.breaking import BreakerRecord
from dutiful.core.breaker import Breaker, BreakerPolicy
from dutiful.core.errors import UsageError
from dutiful.core.payload import check_name
from dutiful.core.principal import Origin
from dutiful.operator.door import Door


class Breakers(Door):
    async def breakers(self) -> list[BreakerRecord]:
        """All that the code declares, or that have counted a failure or were forced, by name."""
        self._check_fleetwide("the list of breakers")
        return await self._store.breakers()

    async def reset_breaker(self, name: str, reason: str | None = None) -> Breaker | None:
        """Close it now and forget its failures; None if there is none of that name.

        Jobs of its kinds go on at once, those that it refused inside their handlers within about a second.
        """
        before = await self._breaker(name)
        async with self._act(
            "breaker.reset",
            name,
            reason,
            before=before,
            fleetwide=True,
            check=lambda: check_name(name, "breaker"),
        ) as act:
            breaker = await self._store.reset_breaker(name)
            act.done, act.after = breaker is not None, None if breaker is None else _state(breaker)
        return breaker

    async def open_breaker(
        self, name: str, open_for: timedelta | None = None, reason: str | None = None, *, new: bool = False
    ) -> Breaker:
        """Open it now, for that long or as long as its policy says, which is that of the app, if the app declares it.

        Only with `new` one that no app declares and nobody has used so far: mostly that is a slip of the pen.
        """

        async def possible() -> None:
            check_name(name, "breaker")
            if open_for is not None:
                BreakerPolicy(open_for=open_for)
            known = {one.breaker.name for one in await self._store.breakers()} | set(self._breaker_policies)
            if not new and name not in known:
                how = "--new" if self.principal.origin is Origin.CLI else "`new`"
                raise UsageError(
                    f"there is no breaker {name!r}: no app declares it, and nobody has used it; there are: "
                    f"{', '.join(sorted(known)) or 'none'}. Check its spelling, or say that it is new: {how}"
                )

        before = await self._breaker(name)
        async with self._act("breaker.open", name, reason, before=before, fleetwide=True, check=possible) as act:
            breaker = await self._store.force_breaker(name, open_for, self._breaker_policies.get(name))
            act.after = _state(breaker)
        return breaker

    async def _breaker(self, name: str) -> dict[str, Any] | None:
        """As it is before an act; nothing for a principal who may not look."""
        if self.tenant is not None:
            return None
        return next((_state(one.breaker) for one in await self._store.breakers() if one.breaker.name == name), None)


def facts(record: BreakerRecord) -> dict[str, Any]:
    """A breaker and its policy side by side, for programs."""
    told = msgspec.structs.asdict(record.breaker)
    policy: BreakerPolicy = told.pop("policy")
    return {
        **told,
        "failures_allowed": policy.failures,
        "open_seconds": policy.open_for.total_seconds(),
        "probes": policy.probes,
        "probing": record.probing,
        "kinds": record.kinds,
        "waiting": record.waiting,
    }


def _state(breaker: Breaker) -> dict[str, Any]:
    return {"state": breaker.state, "failures": breaker.failures, "open_until": breaker.open_until}
