"""The contract of steps, and of events that jobs wait for. Only the holder of a claim writes steps.

An event is stored when it is sent, and delivered afterwards: by who sent it, or by a worker that leads. A wait that
begins looks for stored events, so it does not matter which came first. No delivery overlaps a wait that begins: one of
them sees what the other has stored.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.steps import SentEvent, StepKind, StepRecord

SHOWN_BYTES = 1024 * 1024  # of results that people are shown; a job may have thousands of large ones


class StepMark(msgspec.Struct, frozen=True, kw_only=True):
    """A call that has returned. `result` holds JSON text."""

    job_id: UUID
    claim_id: int
    name: str
    position: int
    code: str
    fingerprint: str
    took: timedelta
    result: str | None = None


class StepWait(msgspec.Struct, frozen=True, kw_only=True):
    """A sleep, or a wait for an event, that begins or goes on."""

    job_id: UUID
    claim_id: int
    name: str
    position: int
    kind: StepKind
    code: str
    fingerprint: str
    timeout: timedelta | None  # None: it waits for good
    event: str | None = None
    key: str | None = None


class Unstored(msgspec.Struct, frozen=True):
    """Claims whose steps were not stored."""

    lost: frozenset[int] = frozenset()  # not held, or their cancellation was requested
    busy: frozenset[int] = frozenset()  # an open transaction holds the lease: try again


class Wakened(msgspec.Struct, frozen=True):
    """What a delivery did."""

    seen: int = 0  # events and ended waits; as many as asked for: there may be more
    levels: frozenset[tuple[str, int]] = frozenset()  # the (queue, priority) that got jobs


class StepStore(Protocol):
    async def all(self, job_id: UUID) -> list[StepRecord]:
        """The steps of a job in the order in which they began, for people: results beyond SHOWN_BYTES are left out."""

    async def load(self, job_ids: Sequence[UUID]) -> Mapping[UUID, list[StepRecord]]:
        """The steps of several jobs; a job without any is left out."""

    async def put(self, marks: Sequence[StepMark], *, now: datetime | None = None) -> Unstored:
        """Stores calls that have returned, in one transaction; a step that is stored already stays as it is."""

    async def wait(self, wait: StepWait, *, now: datetime | None = None) -> tuple[StepRecord, datetime] | None:
        """Begins to wait, or goes on; returns the step as it is now, with the store's time; None: the claim is lost.

        The time of a wait that has begun stays as it is. The step gets the first event that this job has not got yet;
        each waiting job gets it.
        """

    async def send(self, event: SentEvent, keep: timedelta, *, now: datetime | None = None) -> bool:
        """Stores an event for waits that begin within `keep`; False: it was stored before."""

    async def deliver(self, limit: int, *, now: datetime | None = None) -> Wakened:
        """Gives stored events to the steps that wait for them, `limit` at most, and wakes jobs whose wait is over.

        An event for which more jobs wait is not delivered yet: the next call goes on with it.
        """
