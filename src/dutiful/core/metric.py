"""What is measured: each metric by its name, what it says, and the labels of its series."""

from collections.abc import Iterable, Mapping

import msgspec

from dutiful.core.estimate import Doubt


class Metric(msgspec.Struct, frozen=True):
    help: str
    labels: tuple[str, ...] = ()
    zero: bool = False  # a series that is not there stands for 0
    tallied: bool = False  # from what workers count, so there is none of it with the setting metrics off
    share: bool = False  # a share or a quantile of attempts: of few it says little, of none there is no series


class Sample(msgspec.Struct, frozen=True):
    """One value of one series."""

    metric: str
    value: float
    labels: dict[str, str] = {}
    count: int | None = None  # of how many attempts, if it is a share or a quantile of some
    doubt: Doubt | None = None  # it is an estimate

    @property
    def estimated(self) -> bool:
        return self.doubt is not None


def overlooked(samples: Iterable[Sample], labels: Mapping[str, str]) -> float:
    """How many there may be of a series of which there is no sample, by those of the same metric."""
    return max(
        (
            sample.doubt.unseen
            for sample in samples
            if sample.doubt and (sample.doubt.everywhere or sample.labels.get("queue") == labels.get("queue"))
        ),
        default=0.0,
    )


WINDOW_MINUTES = 5  # rates and quantiles are over the last minutes


def _share(help: str) -> Metric:
    return Metric(help, ("kind",), tallied=True, share=True)


# What alerts may watch; /metrics shows them as dutiful_<name>, beside counters and histograms.
METRICS = {
    "pending": Metric("Jobs that are due and wait", ("queue", "kind"), zero=True),
    "pending_total": Metric("Jobs that are due and wait, all together"),
    "scheduled": Metric("Jobs that wait for their time", ("queue", "kind"), zero=True),
    "blocked": Metric("Jobs that wait before a gate", ("queue", "kind"), zero=True),
    "running": Metric("Jobs that run", ("queue", "kind"), zero=True),
    "oldest_pending_seconds": Metric("How long the oldest job that is due has waited", ("queue",), zero=True),
    "recent_attempts": Metric("Attempts that ended, lately", ("kind",), zero=True, tallied=True),
    "error_rate": _share("Attempts that failed, as a share of those that ended, lately"),
    "run_p50_seconds": _share("Half of the attempts ran at most this long, lately"),
    "run_p95_seconds": _share("95 of 100 attempts ran at most this long, lately"),
    "run_p99_seconds": _share("99 of 100 attempts ran at most this long, lately"),
    "wait_p50_seconds": _share("Half of the jobs waited at most this long, lately"),
    "wait_p95_seconds": _share("95 of 100 jobs waited at most this long, lately"),
    "wait_p99_seconds": _share("99 of 100 jobs waited at most this long, lately"),
    "lane_utilisation": Metric("Busy slots of a lane, as a share of all that live workers have", ("lane",)),
    "breaker_open": Metric("1 while a breaker keeps calls or jobs from passing, else 0", ("breaker",)),
    "dead_letters": Metric("Dead letters that nobody has reviewed"),
    "lost_attempts": Metric(
        "Attempts lost with their worker or their lease, lately", ("kind",), zero=True, tallied=True
    ),
    "stuck": Metric("Jobs that have been running for over an hour"),
    "payload_most_bytes": Metric("The largest payload that was run, lately", ("kind",), tallied=True),
    "workers": Metric("Workers that are alive"),
    "paused_seconds": Metric("How long people have had something paused", ("scope", "name")),
}
