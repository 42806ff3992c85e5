"""Maintenance windows: times in which no job should become due."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dutiful.core.cron import Cron
from dutiful.core.duration import duration
from dutiful.core.errors import UsageError

_TEXT = re.compile(r"(?P<cron>.+?) for (?P<length>.+?)(?: in (?P<zone>\S+))?")
_STEPS = 1_000  # windows that follow one another without a gap for so long leave no time at all


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """Begins at each firing of `start` and lasts for `length`; its end is outside."""

    start: Cron
    length: timedelta

    @classmethod
    def parse(cls, text: str) -> "MaintenanceWindow":
        """Reads "0 1 * * SUN for 4h in Europe/Helsinki"; without a time zone it is UTC."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"maintenance window {text!r:.80} must be a cron expression and a length of time, as in "
                '"0 1 * * SUN for 4h" or "0 1 * * SUN for 4h in Europe/Helsinki"'
            )
        length = duration(match["length"], "maintenance window's length")
        if not length:
            raise UsageError(f"maintenance window {text!r:.80} has no length: give one, as in 4h")
        return cls(Cron(match["cron"], match["zone"] or "UTC"), length)

    def end_at(self, moment: datetime) -> datetime | None:
        """When the window ends that `moment` is in; None if it is in none."""
        begun = self.start.next_after(moment - self.length)
        return begun + self.length if begun <= moment else None


def first_outside(windows: Sequence[MaintenanceWindow], moment: datetime) -> datetime:
    """The first time from `moment` on that is in none of the windows."""
    for _ in range(_STEPS):
        ends = [end for window in windows if (end := window.end_at(moment)) is not None]
        if not ends:
            return moment
        moment = max(ends)
    raise UsageError(f"the maintenance windows leave no time before {moment}: make them shorter, or fewer")
