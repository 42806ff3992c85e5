"""All metrics by name, with their help text and labels."""

from collections.abc import Iterable, Mapping

import msgspec

from dutiful.core.metrics.estimate import Bounds


class Metric(msgspec.Struct, frozen=True):
    help: str
    labels: tuple[str, ...] = ()
    zero: bool = False  # a missing series means 0
    counted: bool = False  # by workers, so it is missing if the setting metrics is off
    share: bool = False  # a share or quantile of attempts: unreliable for few, missing for none


class Sample(msgspec.Struct, frozen=True):
    """One value of one series."""

    metric: str
    value: float
    labels: dict[str, str] = {}
    count: int | None = None  # the number of attempts of a share or quantile
    bounds: Bounds | None = None  # set for an estimate

    @property
    def estimated(self) -> bool:
        return self.bounds is not None


def most_unseen(samples: Iterable[Sample], labels: Mapping[str, str]) -> float:
    """The upper bound of a series that has no sample, from the estimates of the same metric; 0 if all was counted.

    What is known of its own queue counts, or else what may be in any.
    """
    queue = labels.get("queue")
    own, everywhere = list[float](), [0.0]
    for sample in samples:
        bounds = sample.bounds or Bounds(0.0, 0.0)
        if bounds.everywhere:
            everywhere.append(bounds.unseen)
        elif queue is not None and sample.labels.get("queue") == queue:
            own.append(bounds.unseen)
    return max(own or everywhere)


WINDOW_MINUTES = 5  # of rates and quantiles


def _share(help: str) -> Metric:
    return Metric(help, ("kind",), counted=True, share=True)


# What alerts may watch; /metrics shows them as dutiful_<name>, beside counters and histograms.
METRICS = {
    "pending": Metric("Jobs that are due and wait", ("queue", "kind"), zero=True),
    "pending_total": Metric("Jobs that are due and wait, all together"),
    "scheduled": Metric("Jobs that wait for their time", ("queue", "kind"), zero=True),
    "blocked": Metric("Jobs that are blocked by a gate", ("queue", "kind"), zero=True),
    "running": Metric("Jobs that run", ("queue", "kind"), zero=True),
    "undelivered": Metric("Jobs that are due and that no broker has; measured where a broker delivers them"),
    "oldest_pending_seconds": Metric("How long the oldest job that is due has waited", ("queue",), zero=True),
    "recent_attempts": Metric("Attempts that ended, lately", ("kind",), zero=True, counted=True),
    "error_rate": _share("Attempts that failed, as a share of those that ended, lately"),
    "last_error_rate": _share("Attempts that failed, as a share of the last 10, or of those that ended lately if more"),
    "run_p50_seconds": _share("Half of the attempts ran at most this long, lately"),
    "run_p95_seconds": _share("95 of 100 attempts ran at most this long, lately"),
    "run_p99_seconds": _share("99 of 100 attempts ran at most this long, lately"),
    "wait_p50_seconds": _share("Half of the jobs waited at most this long, lately"),
    "wait_p95_seconds": _share("95 of 100 jobs waited at most this long, lately"),
    "wait_p99_seconds": _share("99 of 100 jobs waited at most this long, lately"),
    "lane_utilisation": Metric("Busy slots of a lane, as a share of all that live workers have", ("lane",)),
    "lingering_handlers": Metric("Handlers that run on although their jobs were settled without them", ("lane",)),
    "breaker_open": Metric("1 while a breaker keeps calls or jobs from passing, else 0", ("breaker",)),
    "dead_letters": Metric("Dead letters that wait for review"),
    "lost_attempts": Metric(
        "Attempts lost with their worker or their lease, lately", ("kind",), zero=True, counted=True
    ),
    "stuck": Metric("Jobs that have been running for over an hour"),
    "payload_most_bytes": Metric("The largest payload that was run, lately", ("kind",), counted=True),
    "workers": Metric("Workers that are alive"),
    "paused_seconds": Metric("How long a pause has lasted", ("scope", "name")),
}
