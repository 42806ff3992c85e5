"""Who leads the services of this file, and what there is for them to do."""

from dutiful.duties import Survey
from dutiful.stores.sqlite import fork, gates, probing
from dutiful.stores.sqlite.codec import maybe_moment, moment
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.lock import FileLock
from dutiful.stores.sqlite.sql import SQL

_STALLED = 5_000_000
"""How long a duty may be overdue, in microseconds, before others than the leader see to it."""
_STANDS_IN = 30_000_000
"""For how long whoever has found that sees to everything: a leader that was stopped would be late each time anew."""


class Leadership:
    """A process leads while it holds a file lock, which the kernel frees with it: an idle leader writes nothing."""

    def __init__(self, path: str) -> None:
        self._lock = FileLock(f"{path}-leader")
        self._gate: fork.Gate | None = None
        self.held = False
        self._stands_in_until = 0

    def open(self) -> None:
        self._lock.open()
        self._gate = fork.Gate(self.close)

    def take(self) -> bool:
        self.held = self.held or self._lock.try_acquire()
        return self.held

    def stand_in(self, now: int) -> None:
        self._stands_in_until = now + _STANDS_IN

    def leads(self, now: int) -> bool:
        return self.held or now < self._stands_in_until

    def resign(self) -> None:
        self._stands_in_until = 0
        if self.held:
            self.held = False
            self._lock.release()

    def close(self) -> None:
        self.held = False
        self._lock.close()


def survey(db: Connection, leadership: Leadership, led_at: int, swept: gates.Kinds, now: int) -> Survey:
    """What there is to do; whoever does not lead is told that it does when the leader is stopped or stuck.

    `led_at` is when this process was last told so.
    """
    next_run_at, next_fire_at, next_expiry, next_post_at, any_blocked, reviewing, unsealed = db.rows(SQL["survey"])[0]
    stopped = gates.stopped_kinds(db)
    blocked = bool(any_blocked) or not stopped <= swept or (bool(stopped) and probing.any_due(db, now))
    due = (next_run_at, next_fire_at, next_expiry, next_post_at)
    if any(at is not None and at < now - _STALLED for at in due):
        leadership.stand_in(now)
    # Whether a gate should have been opened cannot be seen from here, so everyone looks now and then.
    unseen = blocked and led_at < now - _STALLED
    return Survey(
        leading=leadership.leads(now) or unseen,
        now=moment(now),
        next_run_at=maybe_moment(next_run_at),
        next_fire_at=maybe_moment(next_fire_at),
        lapsed=next_expiry is not None and next_expiry <= now,
        blocked=blocked,
        next_post_at=maybe_moment(next_post_at),
        reviewing=bool(reviewing),
        unsealed=bool(unsealed),
    )
