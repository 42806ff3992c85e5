"""Named locks as rows: who holds one, and who stands in line for it, for as long as their claims are good."""

from enum import Enum, auto

from dutiful.core.errors import ClaimLost
from dutiful.core.ids import public
from dutiful.core.job import Token
from dutiful.locking import LockName
from dutiful.stores.sqlite.codec import to_json
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL

Key = tuple[str, str]
Claimed = tuple[bytes, int]


class Standing(Enum):
    HELD = auto()
    WAITING = auto()
    FREE = auto()  # and it is our turn
    OUTSIDE = auto()  # not ours, and we do not stand in line yet


def look(db: Connection, token: Token, name: LockName, now: int) -> Standing:
    """Where a claim stands with a lock: point lookups, so that many may ask often while one holds it."""
    key, us = _key(name), _claim(token)
    if not _good(db.value(SQL["lease_end"], us), now):
        raise ClaimLost(f"job {public(token.job_id)} is no longer ours: it can neither take nor wait for lock {name}")
    holder = db.row(SQL["lock_holder"], key)
    if holder is not None and _good(holder[2], now):
        if (holder[0], holder[1]) == us:
            return Standing.HELD
        return Standing.OUTSIDE if db.row(SQL["lock_place"], (*key, *us)) is None else Standing.WAITING
    line = [(job_id, claim_id) for _, job_id, claim_id, end in db.rows(SQL["lock_line"], key) if _good(end, now)]
    if not line or line[0] == us:
        return Standing.FREE
    return Standing.WAITING if us in line else Standing.OUTSIDE


def try_lock(db: Connection, token: Token, name: LockName, now: int) -> bool:
    """Take the lock if it is our turn, or stand in line."""
    key, us = _key(name), _claim(token)
    match look(db, token, name, now):
        case Standing.HELD:
            return True
        case Standing.WAITING:
            return False
        case Standing.FREE:
            _forfeit(db, key)
            db.run(SQL["take_lock"], (*key, *us))
            db.run(SQL["leave_line"], (*key, *us))
            taken = True
        case Standing.OUTSIDE:
            db.run(SQL["stand_in_line"], (*key, db.value(SQL["next_lock_wait"]), *us))
            taken = False
    for seq, _, _, end in db.rows(SQL["lock_line"], key):
        if not _good(end, now):
            db.run(SQL["drop_from_line"], (*key, seq))
    return taken


def _forfeit(db: Connection, key: Key) -> None:
    """Whoever held the lock by a lease that is over must not renew it now: another one is about to hold the lock.

    So his claim gets a number that he does not know; the rescuer finds it as he would have found the old one.
    """
    holder = db.row(SQL["lock_holder"], key)
    if holder is not None and holder[2] is not None:
        db.run(SQL["forfeit"], (holder[0], holder[1], db.value(SQL["next_claim"], (1,))))


def unlock(db: Connection, token: Token, name: LockName) -> None:
    for statement in ("free_lock", "leave_line"):
        db.run(SQL[statement], (*_key(name), *_claim(token)))


def forget(db: Connection) -> None:
    """Delete what killed workers left behind and nobody has asked for since."""
    db.run(SQL["delete_dead_locks"])
    db.run(SQL["delete_dead_waits"])


def _key(name: LockName) -> Key:
    return name.namespace, to_json(name.key)


def _claim(token: Token) -> Claimed:
    return token.job_id.bytes, token.claim_id


def _good(lease_end: int | None, now: int) -> bool:
    return lease_end is not None and lease_end > now
