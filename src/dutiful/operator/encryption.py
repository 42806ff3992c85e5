"""Sealed values: which keys they have, sealing them anew with the current key, and opening those of one job."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.errors import CannotOpen
from dutiful.core.job import AttemptRecord, JobRecord, PhaseRecord, job_not_found
from dutiful.core.principal import Role
from dutiful.core.sealed import Envelope, key_ids, map_sealed
from dutiful.core.steps import StepRecord
from dutiful.operator.actor import OperatorPart
from dutiful.payload.key_ring import KeyRing, no_keys
from dutiful.payload.sealing import open_job, open_part, seal_of_record
from dutiful.store.encryption import Key, SealedPlace, SealedRow

PAGE = 200  # rows of a table that one statement reads, or writes
PASSES = 3  # over rows that were written while they were sealed anew


class KeyUse(msgspec.Struct, frozen=True):
    """How many values are sealed with a key, by the column that has them."""

    key: str
    values: int
    known: bool  # whether this process has the key
    current: bool
    places: dict[str, int]


class OpenedJob(msgspec.Struct, frozen=True):
    job: JobRecord
    attempts: list[AttemptRecord]
    phases: list[PhaseRecord]
    steps: list[StepRecord]


@dataclass(slots=True)
class Rotation:
    """What a rotation has done so far."""

    key: str  # the current one
    place: str = ""  # where it is
    rows: int = 0  # that were sealed anew
    written_meanwhile: int = 0  # rows of the last pass that others wrote at the same time
    unreadable: Counter[str] = field(default_factory=Counter)  # values that could not be opened, by their key


class Encryption(OperatorPart):
    async def status(self) -> list[KeyUse]:
        """How many values each key has sealed; reads all tables, page by page."""
        self._actor.check_fleetwide("the use of keys")
        ring = self._ring_or_none()
        found: dict[str, Counter[str]] = {}
        for place in self._store.encryption.places:
            after: Key | None = None
            while True:
                page = await self._store.encryption.page(place, after, PAGE)
                for row in page.rows:
                    for key in key_ids(_value(place, row)):
                        found.setdefault(key, Counter())[place.name] += 1
                if (after := page.next) is None:
                    break
        known = () if ring is None else ring.ids
        uses = [
            KeyUse(key, counts.total(), key in known, ring is not None and key == ring.current, dict(counts))
            for key, counts in found.items()
        ]
        return sorted(uses, key=lambda use: (not use.current, use.key))

    async def rotate(
        self, reason: str | None = None, progress: Callable[[Rotation], None] = lambda _: None
    ) -> Rotation:
        """Seals all values anew that have another key than the current one, in steps of PAGE rows.

        Each step is a transaction of its own, and workers may run meanwhile. If it is interrupted, a repeated call
        finds only what is left. Values that cannot be opened stay as they are, and are counted.
        """
        ring = self._ring("values are sealed anew with their keys")
        async with self._actor.audited(
            "encryption.rotate", ring.current, reason, role=Role.ADMIN, fleetwide=True
        ) as action:
            done = Rotation(ring.current)
            for _ in range(PASSES):
                done.written_meanwhile, done.unreadable = 0, Counter()
                for place in self._store.encryption.places:
                    await self._rotate(place, ring, done, progress)
                if not done.written_meanwhile:
                    break
            action.after = {"rows": done.rows, "unreadable": dict(done.unreadable)}
        return done

    async def _rotate(
        self, place: SealedPlace, ring: KeyRing, done: Rotation, progress: Callable[[Rotation], None]
    ) -> None:
        after: Key | None = None
        done.place = place.name
        while True:
            page = await self._store.encryption.page(place, after, PAGE)
            changes = [(row, new) for row in page.rows if (new := _anew(place, row, ring, done.unreadable)) is not None]
            if changes:
                written = await self._store.encryption.replace(place, changes)
                done.rows += written
                done.written_meanwhile += len(changes) - written
            progress(done)
            if (after := page.next) is None:
                return

    async def open(self, job_id: UUID, reason: str | None = None) -> OpenedJob:
        """A job with all that is sealed of it opened; who did it is recorded."""
        ring = self._ring("sealed values are opened with their key")
        found = await self._store.queries.job(job_id)
        record = found if found is not None and self._actor.owns(found.tenant) else None
        tenant = None if record is None else record.tenant

        async def possible() -> None:
            if record is None:
                raise job_not_found(job_id)

        async with self._actor.audited("job.open", ids.public(job_id), reason, tenant=tenant, check=possible):
            assert record is not None
            seal, store = seal_of_record(ring, record), self._store
            return OpenedJob(
                open_job(ring, record),
                [open_part(seal, one) for one in await store.queries.attempts(job_id)],
                [open_part(seal, one) for one in await store.progress.phases(job_id)],
                [open_part(seal, one) for one in await store.steps.all(job_id)],
            )

    def _ring(self, why: str) -> KeyRing:
        if (ring := self._ring_or_none()) is None:
            raise no_keys(why)
        return ring

    def _ring_or_none(self) -> KeyRing | None:
        keys = self._client.keys
        return None if keys is None else keys.key_ring


def _value(place: SealedPlace, row: SealedRow) -> object:
    if place.is_text:
        return row.value
    try:
        return msgspec.json.decode(row.value)
    except (msgspec.DecodeError, RecursionError):  # written by SQL, so it is not sealed by us
        return None


def _anew(place: SealedPlace, row: SealedRow, ring: KeyRing, unreadable: Counter[str]) -> str | None:
    """The row's value, sealed anew; None if there is nothing to change."""
    changed = False

    def reseal(envelope: Envelope) -> object:
        nonlocal changed
        if envelope.key != ring.current:
            try:
                envelope, changed = ring.reseal(envelope), True
            except CannotOpen:
                unreadable[envelope.key] += 1
        return msgspec.to_builtins(envelope)

    new = map_sealed(_value(place, row), reseal)
    if not changed:
        return None
    return new if isinstance(new, str) else msgspec.json.encode(new).decode()
