"""The configuration of a JobQueue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from dutiful import JobRecord, UsageError


@dataclass(frozen=True, kw_only=True)
class Config:
    phases: Sequence[Callable[..., Any]]
    resources: Sequence[Callable[[], Any]] = ()
    name: str = "media"
    database_url: str | None = None  # None: DUTIFUL_DATABASE_URL, or a SQLite file in the current folder
    schema: str | None = None  # of Postgres
    concurrency: int = 4
    max_attempts: int = 3  # including the first one
    backoff: Literal["fixed", "linear", "exponential"] = "exponential"
    retry_delay: timedelta = timedelta(seconds=1)
    webhook_url: str | None = None
    webhook_secrets: Sequence[str] = field(default=(), repr=False)
    webhook_networks: Sequence[str] = ()  # private ones that may be posted to
    stale_after: timedelta | None = None
    delete_after: timedelta | None = None
    on_stale: Callable[[JobRecord], Any] | None = None
    on_delete: Callable[[JobRecord], Any] | None = None
    cancel_grace: timedelta = timedelta(0)  # a cancelled job does not wait for its phase
    ping: timedelta = timedelta(seconds=15)

    def __post_init__(self) -> None:
        if not self.phases:
            raise UsageError("phases is empty: give the functions that a job runs, in order")
        if self.backoff not in ("fixed", "linear", "exponential"):
            raise UsageError(f"backoff {self.backoff!r} must be fixed, linear or exponential")
        if self.concurrency < 1:
            raise UsageError(f"concurrency is {self.concurrency}: at least 1 job must be able to run")

    def settings(self) -> dict[str, Any]:
        """The corresponding settings of Dutiful."""
        return {
            "schema": self.schema,
            "lanes": f"{self.name}={self.concurrency}:*",
            "cancel_grace": self.cancel_grace,
            "retention": self.delete_after or "never",
            "stale_after": self.stale_after or self.delete_after or "never",  # only stale jobs are deleted
            "webhook_secrets": tuple(self.webhook_secrets),
            "webhook_networks": tuple(self.webhook_networks),
        }
