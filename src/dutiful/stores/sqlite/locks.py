"""Named locks in SQLite, as rows: claims hold them, or wait for them, as long as their leases last."""

from collections.abc import Callable
from datetime import datetime
from enum import Enum, auto

from dutiful.core.job import ClaimToken
from dutiful.store.locks import LockHolder, LockMode, LockName, lock_refused
from dutiful.stores.sqlite.engine import SQL, Connection, Subject, writes
from dutiful.stores.sqlite.engine.codec import clock, to_json
from dutiful.stores.sqlite.leadership import may_rescue

Key = tuple[str, str]
Claimed = tuple[bytes, int]


class Standing(Enum):
    """The relation of a claim to a lock."""

    HOLDER = auto()
    WAITING = auto()
    NEXT = auto()  # the lock is free, and it is this claim's turn
    NONE = auto()  # not the holder, and does not wait yet


class SqliteLocks(Subject):
    async def mode(self) -> LockMode:
        return LockMode.ROWS

    async def scheme(self) -> str:
        return LockMode.ROWS

    async def session(self, lost: Callable[[], None]) -> None:
        """None: locks are rows, because SQLite frees no locks when a connection ends."""

    async def holder(self, name: LockName) -> LockHolder | None:
        return None

    async def try_acquire(self, token: ClaimToken, name: LockName, *, now: datetime | None = None) -> bool:
        # A waiting claim calls this often, and then it only reads.
        standing = await self._engine.read(lambda db: _standing(db, token, name, clock(now)))
        if standing in (Standing.HOLDER, Standing.WAITING):
            return standing is Standing.HOLDER
        return await self._engine.write(lambda db: _try_acquire(db, token, name, clock(now)))

    @writes
    def free(self, db: Connection, token: ClaimToken, name: LockName) -> None:
        for statement in ("leave_lock", "leave_lock_wait"):
            db.run(SQL[statement], (*_key(name), *_claim(token)))


def _standing(db: Connection, token: ClaimToken, name: LockName, now: int) -> Standing:
    """Uses point lookups, so that many waiting claims may poll while one holds it."""
    key, us = _key(name), _claim(token)
    if (end := db.value(SQL["lease_end"], us)) is None:
        raise lock_refused(token, name)
    holder = db.row(SQL["lock_holder"], key)
    if holder is not None and (holder[0], holder[1]) == us:
        return Standing.HOLDER
    if end <= now:
        return Standing.WAITING  # it could lose the lock at once, and may try again after its lease is renewed
    if holder is not None and _keeps(db, holder[2], now):
        return Standing.NONE if db.row(SQL["lock_wait"], (*key, *us)) is None else Standing.WAITING
    waiting = [(job_id, claim_id) for _, job_id, claim_id, end in db.rows(SQL["lock_waits"], key) if _good(end, now)]
    if not waiting or waiting[0] == us:
        return Standing.NEXT
    return Standing.WAITING if us in waiting else Standing.NONE


def _try_acquire(db: Connection, token: ClaimToken, name: LockName, now: int) -> bool:
    """Takes the lock if it is this claim's turn, or begins to wait for it."""
    key, us = _key(name), _claim(token)
    match _standing(db, token, name, now):
        case Standing.HOLDER:
            return True
        case Standing.WAITING:
            return False
        case Standing.NEXT:
            _fence_expired_claim(db, key)
            db.run(SQL["take_lock"], (*key, *us))
            db.run(SQL["leave_lock_wait"], (*key, *us))
            taken = True
        case Standing.NONE:
            db.run(SQL["wait_for_lock"], (*key, db.value(SQL["next_lock_wait"], (1,)), *us))
            taken = False
    for seq, _, _, end in db.rows(SQL["lock_waits"], key):
        if not _good(end, now):
            db.run(SQL["delete_lock_wait"], (*key, seq))
    return taken


def _fence_expired_claim(db: Connection, key: Key) -> None:
    """Keeps a holder whose lease has ended from renewing it, because another claim is about to take the lock.

    The lease gets a new claim number, which its worker does not know; the rescuer finds it as before.
    """
    holder = db.row(SQL["lock_holder"], key)
    if holder is not None and holder[2] is not None:
        db.run(SQL["fence_expired_claim"], (holder[0], holder[1], db.value(SQL["next_claim"], (1,))))


def delete_dead(db: Connection) -> None:
    """Deletes locks and waits of killed workers that no claim has requested since."""
    db.run(SQL["delete_dead_lock"])
    db.run(SQL["delete_dead_lock_wait"])


def _key(name: LockName) -> Key:
    return name.namespace, to_json(name.key)


def _claim(token: ClaimToken) -> Claimed:
    return token.job_id.bytes, token.claim_id


def _keeps(db: Connection, lease_end: int | None, now: int) -> bool:
    """Whether a holder keeps its lock: its lease is not over, or it may not have been able to renew it."""
    return _good(lease_end, now) or (lease_end is not None and not may_rescue(db, now))


def _good(lease_end: int | None, now: int) -> bool:
    return lease_end is not None and lease_end > now
