"""Metrics of the whole fleet. Closed to a tenant's principal."""

import asyncio
from datetime import timedelta

import msgspec

from dutiful.core.metrics.catalogue import Sample
from dutiful.observe.measure import WINDOW, FleetSnapshot, measure, take_snapshot
from dutiful.operator.actor import OperatorPart
from dutiful.store.metrics import AttemptStats


class Metrics(OperatorPart):
    async def samples(self, since: timedelta = WINDOW) -> list[Sample]:
        """All metrics; rates and quantiles cover the time `since`."""
        self._actor.check_fleetwide("metrics")
        return await measure(self._store, since=since, broker=self._has_broker, queues=self._actor.queues)

    async def counted(self) -> tuple[FleetSnapshot, list[AttemptStats]]:
        """The present state and all totals, from which callers compute their own metrics."""
        self._actor.check_fleetwide("metrics")
        # Concurrently: totals are added up while the database counts jobs.
        (lately, ever), seen = await asyncio.gather(
            self._store.metrics.counted(WINDOW),
            take_snapshot(self._store, attempts=(), broker=self._has_broker, queues=self._actor.queues),
        )
        return msgspec.structs.replace(seen, attempts=lately), ever

    @property
    def _has_broker(self) -> bool:
        return self._client.dispatcher is not None
