"""Batches as the code declares them: how many jobs one call of a handler gets, and how long it waits for them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dutiful.core.duration import Duration, duration
from dutiful.core.errors import UsageError
from dutiful.core.settle import Policy
from dutiful.options import whole_number

MOST = 10_000  # jobs; each holds its payload in memory, and a lease that is renewed
LONGEST = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """How many jobs of one kind are handled together."""

    size: int
    linger: timedelta  # how long a batch that is not full waits for more jobs, from its first one on
    across_tenants: bool = False  # else the jobs of a batch have the same tenant, or all have none


def read_batch(size: Any, linger: Duration | None, across_tenants: Any) -> BatchSpec | None:
    """None if a kind has no batches."""
    if size is None:
        if linger is not None or across_tenants:
            given = "linger" if linger is not None else "across_tenants"
            raise UsageError(f"{given} is for batches: give the most jobs of one, too, as in batch=100")
        return None
    whole_number(size, "batch", 1, MOST, f" to {MOST:,}: the most jobs that one call gets")
    if not isinstance(across_tenants, bool):
        raise UsageError(f"across_tenants {across_tenants!r:.80} must be True or False")
    length = timedelta(0) if linger is None else duration(linger, "linger")
    if length > LONGEST:
        raise UsageError(f"linger {linger!r} is longer than an hour: a schedule is better for work that can wait")
    return BatchSpec(size, length, across_tenants)


def check_batch(name: str, policy: Policy, *, process: bool) -> None:
    """Refuses what a kind with batches cannot be."""
    if process:
        raise UsageError(
            f"kind {name}: batch and process=True exclude each other, because a process runs one job: leave one out"
        )
    if not policy.retry_crashes:
        raise UsageError(
            f'kind {name}: batch and on_crash="fail" exclude each other, because the jobs of a batch are claimed '
            "before it begins, and after a crash it is not known which had begun: leave one out"
        )
