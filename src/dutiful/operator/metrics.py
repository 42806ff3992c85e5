"""What the fleet measures of itself. Closed to a tenant's principal, for it is about all of them."""

import asyncio
from datetime import timedelta

import msgspec

from dutiful.core.metric import Sample
from dutiful.measuring import Tally
from dutiful.observe.measure import WINDOW, Look, look, measure
from dutiful.operator.door import Door


class Metrics(Door):
    async def metrics(self, since: timedelta = WINDOW) -> list[Sample]:
        """Every metric; rates and quantiles are over the time `since`."""
        self._check_fleetwide("metrics")
        return await measure(self._store, since=since)

    async def counted(self) -> tuple[Look, list[Tally]]:
        """What there is now, and all that was ever counted: for those who make metrics of their own from it."""
        self._check_fleetwide("metrics")
        # Both at once: while the database looks at the jobs, we add up what workers have counted.
        (lately, ever), seen = await asyncio.gather(self._store.counted(WINDOW), look(self._store, tallies=()))
        return msgspec.structs.replace(seen, tallies=lately), ever
