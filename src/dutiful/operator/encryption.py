"""Sealed values: which keys they have, sealing them anew with the current key, and opening those of one job."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.errors import CannotOpen, UsageError
from dutiful.core.job import AttemptRecord, JobRecord, PhaseRecord, job_not_found
from dutiful.core.principal import Role
from dutiful.core.sealed import Envelope, key_ids, map_sealed
from dutiful.core.steps import StepRecord
from dutiful.operator.actor import OperatorPart
from dutiful.payload.key_ring import KeyRing, no_keys
from dutiful.payload.sealing import open_job, open_part, seal_of_record
from dutiful.store.encryption import EncryptionStore, Key, SealedPage, SealedPlace, SealedRow

PAGE = 200  # rows of a table that one statement reads, or writes
PASSES = 3  # over rows that were written while they were sealed anew


class Position(msgspec.Struct, frozen=True):
    """Where a walk through all sealed values goes on: in this place, after this key or at its beginning."""

    place: str
    after: Key | None = None


class KeyUse(msgspec.Struct, frozen=True):
    """How many values are sealed with a key, by the column that has them."""

    key: str
    values: int
    known: bool  # whether this process has the key
    current: bool
    places: dict[str, int]


class KeyUses(msgspec.Struct, frozen=True):
    """What a walk has counted; `next` is where it goes on, None at its end."""

    uses: list[KeyUse]
    next: Position | None = None


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
    next: Position | None = None  # where one that has ended early goes on


class Encryption(OperatorPart):
    async def status(self) -> list[KeyUse]:
        """How many values each key has sealed; reads all tables, page by page."""
        return (await self.count()).uses

    async def count(self, start: Position | None = None, within: timedelta | None = None) -> KeyUses:
        """The same in parts: from `start` on, and for no longer than `within`."""
        self._actor.check_fleetwide("the use of keys")
        ring = self._ring()
        found: dict[str, Counter[str]] = {}
        walk = _Walk(self._store.encryption, start, within)
        async for place, page in walk.pages():
            for row in page.rows:
                for key in key_ids(_value(place, row)):
                    found.setdefault(key, Counter())[place.name] += 1
        known = () if ring is None else ring.ids
        uses = [
            KeyUse(key, counts.total(), key in known, ring is not None and key == ring.current, dict(counts))
            for key, counts in found.items()
        ]
        return KeyUses(sorted(uses, key=lambda use: (not use.current, use.key)), walk.next)

    async def rotate(
        self,
        reason: str | None = None,
        progress: Callable[[Rotation], None] = lambda _: None,
        *,
        start: Position | None = None,
        within: timedelta | None = None,
    ) -> Rotation:
        """Seals all values anew that have another key than the current one, in steps of PAGE rows.

        Each step is a transaction of its own, and workers may run meanwhile. If it is interrupted, a repeated call
        finds only what is left. Values that cannot be opened stay as they are, and are counted. With `within`, it walks
        once, ends after that time, and says where the next call is to `start`.
        """
        ring = self._ring()
        async with self._actor.audited(
            "encryption.rotate",
            None if ring is None else ring.current,
            reason,
            role=Role.ADMIN,
            fleetwide=True,
            check=lambda: _check_keys(ring, "values are sealed anew with their keys"),
        ) as action:
            assert ring is not None
            done = Rotation(ring.current)
            for _ in range(PASSES if within is None else 1):
                done.written_meanwhile, done.unreadable = 0, Counter()
                walk = _Walk(self._store.encryption, start, within)
                async for place, page in walk.pages():
                    await self._reseal(place, page, ring, done)
                    progress(done)
                start, done.next = None, walk.next
                if not done.written_meanwhile:
                    break
            action.after = {"rows": done.rows, "unreadable": dict(done.unreadable)}
        return done

    async def _reseal(self, place: SealedPlace, page: SealedPage, ring: KeyRing, done: Rotation) -> None:
        done.place = place.name
        changes = [(row, new) for row in page.rows if (new := _anew(place, row, ring, done.unreadable)) is not None]
        if changes:
            written = await self._store.encryption.replace(place, changes)
            done.rows += written
            done.written_meanwhile += len(changes) - written

    async def open(self, job_id: UUID, reason: str | None = None) -> OpenedJob:
        """A job with all that is sealed of it opened; who did it is recorded."""
        ring = self._ring()
        found = await self._store.queries.job(job_id)
        record = found if found is not None and self._actor.owns(found.tenant) else None
        tenant = None if record is None else record.tenant

        def check() -> None:
            if record is None:
                raise job_not_found(job_id)
            _check_keys(ring, "sealed values are opened with their key")

        async with self._actor.audited("job.open", ids.public(job_id), reason, tenant=tenant, check=check):
            assert record is not None and ring is not None
            seal, store = seal_of_record(ring, record), self._store
            return OpenedJob(
                open_job(ring, record),
                [open_part(seal, one) for one in await store.queries.attempts(job_id)],
                [open_part(seal, one) for one in await store.progress.phases(job_id)],
                [open_part(seal, one) for one in await store.steps.all(job_id)],
            )

    def _ring(self) -> KeyRing | None:
        keys = self._client.keys
        return None if keys is None else keys.key_ring


class _Walk:
    """Reads all places page by page; `next` is where one that has ended early goes on."""

    def __init__(self, store: EncryptionStore, start: Position | None, within: timedelta | None) -> None:
        self.next = start
        self._store = store
        self._until = None if within is None else time.monotonic() + within.total_seconds()

    async def pages(self) -> AsyncIterator[tuple[SealedPlace, SealedPage]]:
        """At least one page, so that a walk in parts comes to its end."""
        places = list(self._store.places)
        names = [place.name for place in places]
        start = self.next or Position(names[0])
        if start.place not in names:
            raise UsageError(f"there is no place {start.place!r}; there are: {', '.join(names)}")
        at, after = names.index(start.place), start.after
        while at < len(places):
            page = await self._store.page(places[at], after, PAGE)
            yield places[at], page
            at, after = (at + 1, None) if page.next is None else (at, page.next)
            self.next = Position(names[at], after) if at < len(places) else None
            if self._until is not None and time.monotonic() >= self._until:
                return


def _check_keys(ring: KeyRing | None, why: str) -> None:
    if ring is None:
        raise no_keys(why)


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
