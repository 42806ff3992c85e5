"""The contract of whoever follows jobs on their way to the store; without OpenTelemetry, which not everybody has."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from dutiful.core.job import Inserted, NewJob


class Production:
    """`jobs` as they are to be stored: with the trace that they belong to, if there is one."""

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.jobs = jobs
        self.void = False  # nothing was stored, for somebody else was faster: there is nothing to tell of

    def stored(self, inserted: Sequence[Inserted]) -> None:
        """Which job stands for the request: another one, if that held the unique key."""


class Producer(Protocol):
    def producing(self, jobs: Sequence[NewJob], *, apart: bool = False) -> AbstractContextManager[Production]:
        """One span for one enqueue, be it of many jobs; `apart`: whatever is current here has no part in it."""
        ...


@contextmanager
def producing(producer: Producer | None, jobs: Sequence[NewJob], *, apart: bool = False) -> Iterator[Production]:
    """As the producer does it, if there is one and something to produce."""
    if producer is None or not jobs:
        yield Production(jobs)
        return
    with producer.producing(jobs, apart=apart) as production:
        yield production
