"""The contract of tracing an enqueue, free of OpenTelemetry, which is an optional extra."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from dutiful.core.job import Inserted, NewJob


class ProducerSpan:
    """`jobs` as they are to be stored: with the trace that they belong to, if there is one."""

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.jobs = jobs
        self.void = False  # nothing was stored because another process was faster: the span is discarded

    def stored(self, inserted: Sequence[Inserted]) -> None:
        """Records which job answers the request: another one, if that holds the unique key."""


class Producer(Protocol):
    def producing(self, jobs: Sequence[NewJob], *, new_trace: bool = False) -> AbstractContextManager[ProducerSpan]:
        """Opens one span for one enqueue of one or many jobs; `new_trace`: the current span is not its parent."""


@contextmanager
def producing(producer: Producer | None, jobs: Sequence[NewJob], *, new_trace: bool = False) -> Iterator[ProducerSpan]:
    """Opens the producer's span, if there are a producer and jobs."""
    if producer is None or not jobs:
        yield ProducerSpan(jobs)
        return
    with producer.producing(jobs, new_trace=new_trace) as span:
        yield span
