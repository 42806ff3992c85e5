"""The sports sites, in the register's own database."""

import sqlite3
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dutiful import Fail
from examples.statements import load

HERE = Path(__file__).parent
STATEMENTS = load(HERE / "statements" / "sites.sql")


class NoSuchSite(Fail):
    """The site is not in the register."""


@dataclass(frozen=True)
class Site:
    lipas_id: int
    name: str
    type: str
    east: int
    north: int
    elevation: float | None = None
    diversity: float | None = None  # of sports around it
    population: int | None = None  # around it


@dataclass(frozen=True)
class Overdue:
    """A reminder about a site that is due."""

    id: int
    address: str
    name: str


class Sites:
    """Shared by several processes; in each, handlers on the event loop and in threads run one statement at a time."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(folder / "sites.db", timeout=30, isolation_level=None, check_same_thread=False)
        self._database.executescript((HERE / "schema.sql").read_text())

    def add(self, site: Site) -> None:
        self._run("add_site", lipas_id=site.lipas_id, name=site.name, type=site.type, east=site.east, north=site.north)

    def change(self, lipas_id: int, name: str, type: str, east: int, north: int) -> Site:
        """What was computed of the old place stays until the jobs have computed it anew."""
        self.get(lipas_id)
        self._run("change_site", lipas_id=lipas_id, name=name, type=type, east=east, north=north)
        return self.get(lipas_id)

    def get(self, lipas_id: int) -> Site:
        try:
            rows = self._run("site", lipas_id=lipas_id)
        except OverflowError:  # SQLite has no number so large
            rows = []
        if not rows:
            raise NoSuchSite(f"there is no sports site {lipas_id}: it was never added, or was removed")
        return Site(*rows[0])

    def all(self) -> list[Site]:
        return [Site(*row) for row in self._run("sites")]

    def set_diversity(self, lipas_id: int, diversity: float, population: int) -> None:
        self._run("set_diversity", lipas_id=lipas_id, diversity=diversity, population=population)

    def set_elevation(self, lipas_id: int, elevation: float) -> None:
        self._run("set_elevation", lipas_id=lipas_id, elevation=elevation)

    def remind(self, lipas_id: int, address: str, due_at: datetime) -> None:
        self._run("add_reminder", lipas_id=lipas_id, address=address, due_at=due_at.astimezone(UTC).isoformat())

    def overdue(self) -> list[Overdue]:
        return [Overdue(*row) for row in self._run("overdue", now=datetime.now(UTC).isoformat())]

    def produced(self, reminder_id: int) -> None:
        self._run("produced", id=reminder_id, now=datetime.now(UTC).isoformat())

    def close(self) -> None:
        self._database.close()

    def _run(self, statement: str, /, **params: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._database.execute(STATEMENTS[statement], params).fetchall()
