"""The register's first sites, and a reminder that is due."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from examples.sports_sites.sites import Site, Sites

CARETAKER = "caretaker@club.example"
SITES = [
    Site(12345, "Harbour pool", "swimming", 385_000, 6_672_000),
    Site(12346, "Hill tracks", "skiing", 385_300, 6_672_200),
    Site(12347, "School field", "football", 384_900, 6_671_700),
    Site(12348, "Beach courts", "volleyball", 386_500, 6_672_000),
]


def fill(folder: Path) -> None:
    """Adds them to a register that has none."""
    folder.mkdir(parents=True, exist_ok=True)
    sites = Sites(folder)
    if not sites.all():
        for site in SITES:
            sites.add(site)
        sites.remind(12346, CARETAKER, datetime.now(UTC) - timedelta(days=1))
    sites.close()
