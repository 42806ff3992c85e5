"""Steps, and events that jobs wait for, in Postgres."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.steps import SentEvent, StepRecord
from dutiful.store.steps import SHOWN_BYTES, StepMark, StepWait, Unstored, Wakened
from dutiful.stores.postgres.engine.subject import Subject, arrays, as_struct

_STEP = ", ".join(StepRecord.__struct_fields__)
_SHOWN = ", ".join(name for name in StepRecord.__struct_fields__ if name != "result") + (
    ", case when sum(octet_length(result::text)) over (order by position, name rows unbounded preceding)"
    f" <= {SHOWN_BYTES} then result end as result"
)


class PostgresSteps(Subject):
    async def all(self, job_id: UUID) -> list[StepRecord]:
        return [_record(row) for row in await self._rows("steps", _SHOWN, [job_id])]

    async def load(self, job_ids: Sequence[UUID]) -> Mapping[UUID, list[StepRecord]]:
        found: dict[UUID, list[StepRecord]] = {}
        for row in await self._rows("steps", f"job_id, {_STEP}", list(job_ids)):
            found.setdefault(row["job_id"], []).append(_record(row))
        return found

    async def put(self, marks: Sequence[StepMark], *, now: datetime | None = None) -> Unstored:
        rows = await self._rows("put_steps", "claim_id, lost", *arrays(marks, *StepMark.__struct_fields__), now)
        return Unstored(
            frozenset(row["claim_id"] for row in rows if row["lost"]),
            frozenset(row["claim_id"] for row in rows if not row["lost"]),
        )

    async def wait(self, wait: StepWait, *, now: datetime | None = None) -> tuple[StepRecord, datetime] | None:
        asked = [*msgspec.structs.astuple(wait), now]
        rows = await self._rows(
            "wait_in_step", f"coalesce(${len(asked)}::timestamptz, clock_timestamp()) as now, {_STEP}", *asked
        )
        return (_record(rows[0]), rows[0]["now"]) if rows else None

    async def send(self, event: SentEvent, keep: timedelta, *, now: datetime | None = None) -> bool:
        sent: bool = await self._call("put_event", *msgspec.structs.astuple(event), keep, now)
        return sent

    async def deliver(self, limit: int, *, now: datetime | None = None) -> Wakened:
        rows = await self._rows("deliver_events", "queue, priority, moved", limit, now)
        levels = frozenset((row["queue"], row["priority"]) for row in rows if row["queue"] is not None)
        return Wakened(rows[-1]["moved"] if rows else 0, levels)


def _record(row: Any) -> StepRecord:
    return as_struct(StepRecord, {name: row[name] for name in StepRecord.__struct_fields__})
