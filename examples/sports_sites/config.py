"""The register's configuration: its data, external services, and how many jobs run at a time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dutiful import UsageError
from examples.sports_sites.views import METRICS_DAYS

FAST_THREADS, GENERAL_THREADS = 3, 5


@dataclass(frozen=True, kw_only=True)
class Config:
    folder: Path  # of the sites' own database
    services: str = "http://127.0.0.1:8090"  # population grid, elevation and partners
    smtp_port: int = 2525  # on this machine
    reminders_every: str = "1h"
    metrics_days: int = METRICS_DAYS  # that metrics of deleted jobs are kept; `--views` sets it
    pager_secret: str | None = field(default=None, repr=False)  # with one, alerts are sent to the pager
    profile: str | None = None  # without one: the register's own
    fast_threads: int | None = None  # without both: those of the profile; with one: the other as in production
    general_threads: int | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Config":
        return cls(
            folder=Path(environ.get("SPORTS_FOLDER", "sports-data")),
            services=environ.get("SPORTS_SERVICES", cls.services),
            smtp_port=_whole(environ, "SPORTS_SMTP_PORT") or cls.smtp_port,
            reminders_every=environ.get("SPORTS_REMINDERS_EVERY", cls.reminders_every),
            metrics_days=_whole(environ, "SPORTS_METRICS_DAYS") or cls.metrics_days,
            pager_secret=environ.get("SPORTS_PAGER_SECRET"),
            profile=environ.get("DUTIFUL_PROFILE") or None,
            fast_threads=_whole(environ, "WORKER_FAST_THREADS"),
            general_threads=_whole(environ, "WORKER_GENERAL_THREADS"),
        )

    def environment(self) -> dict[str, str]:
        """The environment variables for another process."""
        values = {
            "SPORTS_FOLDER": self.folder,
            "SPORTS_SERVICES": self.services,
            "SPORTS_SMTP_PORT": self.smtp_port,
            "SPORTS_REMINDERS_EVERY": self.reminders_every,
            "SPORTS_METRICS_DAYS": self.metrics_days,
            "SPORTS_PAGER_SECRET": self.pager_secret,
            "DUTIFUL_PROFILE": self.profile,
            "WORKER_FAST_THREADS": self.fast_threads,
            "WORKER_GENERAL_THREADS": self.general_threads,
        }
        return {name: str(value) for name, value in values.items() if value is not None}

    def lanes(self) -> str | None:
        """A lane for quick jobs only, and one for any; None: those of the profile.

        The setting replaces both lanes, so with one number given the other gets its default.
        """
        if self.fast_threads is None and self.general_threads is None:
            return None
        return f"fast={self.fast_threads or FAST_THREADS}:fast; general={self.general_threads or GENERAL_THREADS}:*"


def _whole(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{name} is {text!r}: it must be a whole number from 1")
    return int(text)
