"""What a page of jobs costs beside a long history: at most three times the first page of a store of 1,000 jobs."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import uuid_utils.compat

from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import Peer
from benchmarks.peers.dutiful_peer import make_app
from benchmarks.scenario import Metric, Scenario
from dutiful.core.ids import time_of
from dutiful.core.job import Claim, NewJob
from dutiful.core.settle import Change
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import ClaimRequest, Completion, QueueLevel
from dutiful.store.queries import JobFilter

_SMALL = 1_000
_BATCH = 1_000
_RUNS = 15
_KINDS = tuple(f"kind_{number}" for number in range(10))
_QUEUES = ("default", "mail", "reports")
_RARE_EVERY = 10_000
_FAILED_EVERY = 100
_ERROR = {"type": "TimeoutError", "message": "the gateway did not answer", "class": "transient", "fingerprint": "00"}
_FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "completed": {"state": State.COMPLETED},
    "failed": {"state": State.FAILED},
    "kind": {"kind": _KINDS[3]},
    "rare_kind": {"kind": "rare"},
    "queue": {"queue": "mail"},
    "tenant": {"tenant": "tenant_7"},
    "correlation": {"correlation_id": "order_7"},
    "failed_of_kind": {"state": State.FAILED, "kind": _KINDS[3]},
    "failed_of_tenant": {"state": State.FAILED, "tenant": "tenant_7"},
    "error_class": {"error_class": "transient"},
    "subject_window": {"subject": {"order": -1}},
    "text_window": {"text": "no such text"},
}


_SHOWN = ("failed_of_kind", "error_class", "subject_window", "text_window")
_INDEXED = {"time", "none", "completed", "failed", "kind", "rare_kind", "queue", "tenant", "correlation"}


async def listing(bench: Bench, peer: Peer) -> Metrics:
    async with (
        bench.database(peer) as small_url,
        make_app(small_url).opened() as small,
        bench.database(peer) as large_url,
        make_app(large_url).opened() as large,
    ):
        await fill(small.store, _SMALL)
        ids = await fill(large.store, bench.sizes.listed_jobs)
        bench.analyze(peer, large_url)
        middle = ids[len(ids) // 2]
        pages = [(name, JobFilter(**fields)) for name, fields in _FILTERS.items()]
        pages += [(name, msgspec.structs.replace(page, before=middle)) for name, page in pages]
        pages.append(("time", JobFilter(until=time_of(middle))))
        base: list[float] = []
        ratios: dict[str, float] = {}
        for name, page in pages:
            ratio = await _compare(small.store, large.store, page, base)
            ratios[name] = max(ratio, ratios.get(name, 0))
    worst = max(ratio for name, ratio in ratios.items() if name in _INDEXED)
    return {"small_ms": statistics.median(base) * 1000, "worst": worst, **ratios}


async def _compare(small: Store, large: Store, page: JobFilter, base: list[float]) -> float:
    """How many times as long `page` takes as the first page of all jobs in `small`; measured in turns."""
    await _seconds(large, page)
    pairs = [(await _seconds(small, JobFilter()), await _seconds(large, page)) for _ in range(_RUNS)]
    base += [first for first, _ in pairs]
    return statistics.median(second for _, second in pairs) / statistics.median(first for first, _ in pairs)


async def _seconds(store: Store, wanted: JobFilter) -> float:
    start = time.perf_counter()
    await store.queries.jobs(wanted)
    return time.perf_counter() - start


async def fill(store: Store, count: int) -> list[UUID]:
    """Finish that many jobs, one of a hundred badly; returns their ids in the order of their making."""
    worker, ids = uuid_utils.compat.uuid7(), list[UUID]()
    source = jobs()
    lines = [QueueLevel(queue, 100) for queue in _QUEUES]
    for start in range(0, count, _BATCH):
        batch = list(itertools.islice(source, min(_BATCH, count - start)))
        await store.jobs.insert(batch)
        ids += [job.id for job in batch]
        while claims := await store.claims.claim(
            ClaimRequest(worker, "bench", lines, (*_KINDS, "rare"), _BATCH, timedelta(minutes=5), suspects=0)
        ):
            await store.claims.complete([Completion(c.job_id, c.claim_id) for c in claims if not _fails(c)])
            await store.claims.settle([_failure(c) for c in claims if _fails(c)])
    return ids


def jobs() -> Iterator[NewJob]:
    for number in itertools.count():
        yield NewJob(
            id=uuid_utils.compat.uuid7(),
            kind="rare" if number % _RARE_EVERY == _RARE_EVERY // 2 else _KINDS[number % len(_KINDS)],
            queue=_QUEUES[number % len(_QUEUES)],
            payload=f'{{"number": {number}, "to": "ada@example.org"}}',
            tenant=f"tenant_{number // 10 % 100}" if number % 10 == 0 else None,
            correlation_id=f"order_{number // 50}" if number % 10 == 1 else None,
            subject=f'{{"order": {number}}}' if number % 10 == 2 else None,
        )


def _fails(claimed: Claim) -> bool:
    return claimed.job_id.int % _FAILED_EVERY == 0


def _failure(claimed: Claim) -> Change:
    return Change(claimed.job_id, claimed.claim_id, State.FAILED, "failed", claimed.attempt, 0, errors=(_ERROR,))


def _seconds_in_all(sizes: Sizes) -> float:
    return 5 + sizes.listed_jobs / 10_000


LISTING_SCENARIOS = (
    Scenario(
        "listing",
        "A page of 50 jobs, times the first page of a store of 1,000",
        listing,
        (
            Metric("small_ms", "ms of that page", higher_is_better=False),
            Metric("worst", "worst by one index", higher_is_better=False),
            *(Metric(name, name.replace("_", " "), higher_is_better=False) for name in _SHOWN),
        ),
        _seconds_in_all,
        repeats=1,
    ),
)
