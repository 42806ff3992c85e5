"""Large results: left out of what waits to be read, and read when the reader is ready for one."""

from collections import OrderedDict
from uuid import UUID

import msgspec

from dutiful.core.events import Event, LeftOut
from dutiful.core.json import read
from dutiful.core.sealed import shown
from dutiful.events.history import HistoryTurns
from dutiful.events.items import Item, Snapshot
from dutiful.store.events import EventStore

# Characters of results that are kept, because many streams may read one; a larger one is read for each stream.
KEPT, LARGEST_KEPT = 4 * 1024 * 1024, 256 * 1024


class LargeResults:
    """Reads results, few at a time, for the items of all streams."""

    def __init__(self, store: EventStore, turns: HistoryTurns) -> None:
        self._store = store
        self._turns = turns
        self._size = 0
        self._kept: OrderedDict[tuple[UUID, LeftOut], str] = OrderedDict()

    async def put_into(self, item: Item) -> Item | None:
        """Returns the item with its results, or a newer snapshot; None if they, or the job, have been deleted."""
        try:
            match item:
                case Event():
                    result = await self._result(item.tenant, item.job_id, item.data["result"])
                    return msgspec.structs.replace(item, data={**item.data, "result": result})
                case Snapshot():
                    return await self._whole(item)
        except LookupError:
            if isinstance(item, Snapshot):
                return next(map(Snapshot.of, await self._store.views([item.job.id])), None)
            return None
        return item

    async def _whole(self, snapshot: Snapshot) -> Snapshot:
        job, phases = snapshot.job, [*snapshot.phases]
        if isinstance(job.result, LeftOut):
            result = await self._result(job.tenant, job.id, job.result)
            job = msgspec.structs.replace(job, result=result)
        for at, phase in enumerate(phases):
            if isinstance(phase.result, LeftOut):
                result = await self._result(job.tenant, job.id, phase.result)
                phases[at] = msgspec.structs.replace(phase, result=result)
        return msgspec.structs.replace(snapshot, job=job, phases=phases)

    async def _result(self, tenant: str | None, job_id: UUID, left_out: LeftOut) -> object:
        key = (job_id, left_out)
        if (text := self._kept.get(key)) is None:
            async with self._turns.turn(tenant, "results"):  # another stream may have read it meanwhile
                text = self._kept.get(key) or await self._store.result(job_id, left_out)
            if text is None:
                raise LookupError(job_id)
            self._keep(key, text)
        return shown(read(text))

    def _keep(self, key: tuple[UUID, LeftOut], text: str) -> None:
        if len(text) > LARGEST_KEPT or key in self._kept:
            return
        self._kept[key] = text
        self._size += len(text)
        while self._size > KEPT:
            self._size -= len(self._kept.popitem(last=False)[1])


def lacks_result(item: Item) -> bool:
    match item:
        case Event():
            return isinstance(item.data.get("result"), LeftOut)
        case Snapshot():
            results = [item.job.result, *(phase.result for phase in item.phases)]
            return any(isinstance(result, LeftOut) for result in results)
    return False
