"""Limits: how many jobs with one key may run at once, or start within a time."""

from datetime import datetime, timedelta

import msgspec

KEY_LIMIT = 200  # characters
EPOCH = datetime.fromisoformat("2000-01-01T00:00:00+00:00")  # fixed windows are counted from here


class Limit(msgspec.Struct, frozen=True):
    """`most` jobs with one key run at once or, with `per`, start within that time."""

    name: str
    most: int
    per: timedelta | None = None
    burst: int | None = None  # so many may start together, the rest evenly; None: all of them
    fixed: bool = False  # windows begin at multiples of `per`; if not, they slide
    feedback: bool = False  # a service that asks a handler to wait holds all jobs with its key

    @property
    def burst_window(self) -> timedelta | None:
        """Within which only `burst` jobs start."""
        if self.per is None or self.burst is None or self.burst >= self.most:
            return None
        return self.per * self.burst / self.most

    def counts_since(self, now: datetime) -> datetime:
        """Starts after this time count."""
        assert self.per is not None
        if not self.fixed:
            return now - self.per
        return now - (now - EPOCH) % self.per - timedelta(microseconds=1)

    def kept_since(self, now: datetime) -> datetime:
        """Starts after this time count, or may count towards the burst, which does not end with a fixed window."""
        assert self.per is not None
        return self.counts_since(now) if self.burst_window is None else now - self.per

    def over_at(self, started_at: datetime) -> datetime:
        """When a start ceases to count."""
        assert self.per is not None
        if not self.fixed:
            return started_at + self.per
        return started_at - (started_at - EPOCH) % self.per + self.per


class KindLimit(msgspec.Struct, frozen=True):
    """A limit of one kind's jobs."""

    limit: Limit
    field: str | None = None  # the payload's field that is the key of jobs that do not name one


def gate_of(name: str, key: str) -> str:
    """The gate at which jobs wait for a slot of a limit; as Postgres writes the array."""
    return f"[{msgspec.json.encode(name).decode()}, {msgspec.json.encode(key).decode()}]"


def read_gate(gate: str) -> tuple[str, str]:
    """The limit's name, and the key."""
    name, key = msgspec.json.decode(gate, type=tuple[str, str])
    return name, key
