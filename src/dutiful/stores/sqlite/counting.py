"""How many jobs wait, run and have ended, at a cost that does not grow with them."""

from datetime import datetime, timedelta
from random import Random
from typing import Any

from dutiful.acting import PauseScope
from dutiful.core.estimate import Share, View
from dutiful.core.transitions import State
from dutiful.measuring import LETTERS, Depth, Signs
from dutiful.reading import QueueRecord, Stats
from dutiful.stores.counting import EXACT, LOOKED_UP, RUNNING, by_queue, by_state, counted, depths_of, of_many
from dutiful.stores.sqlite import looking, measuring
from dutiful.stores.sqlite.codec import moment, span
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sampling import FIRST, Sampled
from dutiful.stores.sqlite.sql import SQL

_MOST_WINDOWS, _WINDOWS, _FEWEST_WINDOWS = 512, 1024, 6
"""Through how many windows a line is sampled at most, all lines together, and each at least."""
_SHORT = 512
"""A line of so many is always exact where there are not many lines."""
_CHANCES = 2**31

_Line = dict[str, Any]


def depths(db: Connection, tenant: str | None) -> list[Depth]:
    return [
        *_standing(db, State.SCHEDULED, tenant),
        *_standing(db, State.READY, tenant),
        *_standing(db, State.BLOCKED, tenant),
        *_running(db, tenant),
    ]


def queues(db: Connection, tenant: str | None) -> list[QueueRecord]:
    return _queues(db, depths(db, tenant), _oldest(db, tenant), tenant)


def stats(db: Connection, since: timedelta, tenant: str | None, now: int) -> Stats:
    found, oldest = depths(db, tenant), _oldest(db, tenant)
    finished, exact = _finished(db, since, tenant, now)
    letters = SQL["count_unreviewed" if tenant is None else "count_unreviewed_of_tenant"]
    dead_letters: int = db.value(letters, {"tenant": tenant, "limit": LETTERS})
    return Stats(
        live=by_state(found),
        finished=finished,
        since=moment(now - span(since)),
        oldest_ready_at=min(oldest.values(), default=None),
        dead_letters=dead_letters,
        workers=sum(worker.alive for worker in looking.workers(db, now)),
        estimated=not exact or dead_letters == LETTERS or any(depth.estimated for depth in found),
        queues=_queues(db, found, oldest, tenant),
    )


def _queues(db: Connection, found: list[Depth], oldest: dict[str, datetime], tenant: str | None) -> list[QueueRecord]:
    paused = {pause.name for pause in looking.pauses(db) if pause.scope is PauseScope.QUEUE}
    return by_queue(found, oldest, paused, empty=tenant is None)


def signs(db: Connection, stuck_after: timedelta, now: int) -> Signs:
    return Signs(
        due_since=_oldest(db, None),
        dead_letters=db.value(SQL["count_unreviewed"], {"limit": LETTERS}),
        stuck=db.value(SQL["count_stuck"], (now - span(stuck_after),)),
    )


def _standing(db: Connection, state: State, tenant: str | None) -> list[Depth]:
    place, whose, chance = f"dutiful_{state}", "" if tenant is None else "_of_tenant", Random()
    asked = {"tenant": tenant, "limit": EXACT + 1}
    if db.value(SQL[f"fills{whose}"].replace("{place}", place), asked) <= EXACT:
        return depths_of(state, [counted(db.rows(SQL[f"count_place{whose}"].replace("{place}", place), asked))])
    if state is not State.READY:
        sampled = Sampled(db, SQL[f"place{whose}"].replace("{place}", place), f"{place}.rowid", tenant=tenant)
        return depths_of(state, [sampled.view(_MOST_WINDOWS, _SHORT, chance)], everywhere=True)
    found = _lines(db, tenant)
    # All lines share what a look may cost.
    few = min(max(EXACT // len(found), _FEWEST_WINDOWS), _SHORT)
    windows = min(max(_WINDOWS // len(found), _FEWEST_WINDOWS), _MOST_WINDOWS)
    # Each line by itself, so that a short one is exact beside a long one.
    rows = _rows_of_line(tenant)
    return depths_of(state, [Sampled(db, rows, "seq", **line).view(windows, few, chance) for line in found])


def _running(db: Connection, tenant: str | None) -> list[Depth]:
    """All, or each with the same chance to be looked up."""
    leases = db.value(SQL["count_leases"])
    weight = max(leases / RUNNING, 1.0)
    rows = db.rows(SQL["count_running"], {"tenant": tenant, "share": int(_CHANCES / weight)})
    if weight == 1:
        return depths_of(State.RUNNING, [counted(rows)])
    shares = {(queue, kind): Share(count * weight, count * weight**2, count) for queue, kind, count in rows}
    return depths_of(State.RUNNING, [View(shares, leases)], everywhere=True)


def _finished(db: Connection, since: timedelta, tenant: str | None, now: int) -> tuple[dict[str, int], bool]:
    """By state, those that ended lately, and whether that is exact.

    Of many, it is what workers have counted; of a tenant, those among its newest jobs.
    """
    limit = EXACT + 1 if tenant is None else LOOKED_UP
    counting = SQL["count_finished" if tenant is None else "count_finished_of_tenant"]
    rows = db.rows(counting, {"tenant": tenant, "since": now - span(since), "limit": limit})
    seen = {state: count for state, count in rows if state is not None}
    exact = sum(count for _, count in rows) < limit
    if exact or tenant is not None:
        return seen, exact
    return of_many(seen, measuring.ended(db, since, now)), False


def _oldest(db: Connection, tenant: str | None) -> dict[str, datetime]:
    """Since when the first jobs of each queue have been due."""
    oldest: dict[str, datetime] = {}
    due_since = SQL["due_since"].replace("{rows}", _rows_of_line(tenant))
    for line in _lines(db, tenant):
        since = moment(db.value(due_since, {**line, "at": FIRST}))
        oldest[line["queue"]] = min(since, oldest.get(line["queue"], since))
    return oldest


def _lines(db: Connection, tenant: str | None) -> list[_Line]:
    if tenant is None:
        return [{"queue": queue, "priority": priority} for queue, priority in looking.lines(db)]
    found: list[_Line] = []
    line = db.row(SQL["first_line_of_tenant"], (tenant,))
    while line is not None:
        found.append({"tenant": tenant, "queue": line[0], "priority": line[1]})
        line = db.row(SQL["next_line_of_tenant"], (tenant, *line))
    return found


def _rows_of_line(tenant: str | None) -> str:
    return SQL["line" if tenant is None else "line_of_tenant"]
