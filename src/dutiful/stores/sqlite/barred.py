"""Finds jobs that a breaker has refused inside their handlers, and that may go on."""

from dutiful.core import barred as rules
from dutiful.core.breaker import BreakerState
from dutiful.core.serving import Serving
from dutiful.stores.sqlite import breaking, probing
from dutiful.stores.sqlite.codec import moment
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL


def look(db: Connection, limit: int, now: int) -> list[bytes]:
    """Up to `limit` of them; of a breaker that is not closed, as many as may find out."""
    found: list[bytes] = []
    served: Serving | None = None
    for (name,) in db.rows(SQL["awaited_breakers"]):
        breaker = breaking.find(db, name)
        under_way = 0
        if breaker is not None and breaker.state is BreakerState.HALF_OPEN:
            under_way = db.value(SQL["count_probes"], (name, breaker.round, now))
        room = rules.room(breaker, under_way, moment(now))
        if room == 0:
            continue
        seen = limit if room is None else min(rules.LOOKED_AT, limit)
        waiting = [rules.Waiter[bytes](*row) for row in db.rows(SQL["barred_jobs"], (name, seen))]
        if room is None:
            found += [one.job_id for one in waiting]
        else:
            served = served or probing.who_serves(db, now)
            found += rules.chosen(waiting, room, served)
        if len(found) >= limit:
            break
    return found[:limit]
