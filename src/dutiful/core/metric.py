"""What is measured: each metric by its name, what it says, and the labels of its series."""

import msgspec


class Metric(msgspec.Struct, frozen=True):
    help: str
    labels: tuple[str, ...] = ()


class Sample(msgspec.Struct, frozen=True):
    """One value of one series."""

    metric: str
    value: float
    labels: dict[str, str] = {}
    estimated: bool = False
    count: int | None = None  # of how many attempts, if it is a share or a quantile of some


WINDOW_MINUTES = 5  # rates and quantiles are over the last minutes

# What alerts may watch; /metrics shows them as dutiful_<name>, beside counters and histograms.
METRICS = {
    "pending": Metric("Jobs that are due and wait", ("queue", "kind")),
    "pending_total": Metric("Jobs that are due and wait, all together"),
    "scheduled": Metric("Jobs that wait for their time", ("queue", "kind")),
    "blocked": Metric("Jobs that wait before a gate", ("queue", "kind")),
    "running": Metric("Jobs that run", ("queue", "kind")),
    "oldest_pending_seconds": Metric("How long the oldest job that is due has waited", ("queue",)),
    "error_rate": Metric("Attempts that failed, as a share of those that ended, lately", ("kind",)),
    "run_p50_seconds": Metric("Half of the attempts ran at most this long, lately", ("kind",)),
    "run_p95_seconds": Metric("95 of 100 attempts ran at most this long, lately", ("kind",)),
    "run_p99_seconds": Metric("99 of 100 attempts ran at most this long, lately", ("kind",)),
    "wait_p50_seconds": Metric("Half of the jobs waited at most this long, lately", ("kind",)),
    "wait_p95_seconds": Metric("95 of 100 jobs waited at most this long, lately", ("kind",)),
    "wait_p99_seconds": Metric("99 of 100 jobs waited at most this long, lately", ("kind",)),
    "lane_utilisation": Metric("Busy slots of a lane, as a share of all that live workers have", ("lane",)),
    "breaker_open": Metric("1 while a breaker is open or half-open, else 0", ("breaker",)),
    "dead_letters": Metric("Dead letters that nobody has reviewed"),
    "lost_attempts": Metric("Attempts lost with their worker or their lease, lately", ("kind",)),
    "stuck": Metric("Jobs that have been running for over an hour"),
    "payload_most_bytes": Metric("The largest payload that was run, lately", ("kind",)),
    "workers": Metric("Workers that are alive"),
}
