"""What a test says of the jobs that were enqueued."""

from typing import Any

import msgspec

from dutiful.core.job import JobRecord
from dutiful.kind import Kind
from dutiful.reading import JobFilter, Reader

PAGE = 500
SHOWN = 5


class Assertions:
    """Looks at every job that was enqueued, whatever has become of it since."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def enqueued(self, kind: Kind[Any, Any] | str, /, **payload: Any) -> list[JobRecord]:
        """Each job of `kind` whose payload has at least these fields, in the order in which they were made."""
        wanted = msgspec.to_builtins(payload)
        return [job for job in await self._all(_name(kind)) if job.payload | wanted == job.payload]

    async def assert_enqueued(self, kind: Kind[Any, Any] | str, /, **payload: Any) -> JobRecord:
        """Fail unless such a job was enqueued; returns the last of them."""
        found = await self.enqueued(kind, **payload)
        if found:
            return found[-1]
        others = "".join(f"\n  {job.payload}" for job in (await self._all(_name(kind)))[-SHOWN:])
        rest = f"the last that were have:{others}" if others else "nor with anything else"
        raise AssertionError(f"no job of {_name(kind)} was enqueued with {payload}, {rest}")

    async def refute_enqueued(self, kind: Kind[Any, Any] | str, /, **payload: Any) -> None:
        """Fail if such a job was enqueued."""
        if found := await self.enqueued(kind, **payload):
            raise AssertionError(f"{len(found)} jobs of {_name(kind)} were enqueued, the last with {found[-1].payload}")

    async def _all(self, kind: str) -> list[JobRecord]:
        jobs: list[JobRecord] = []
        while page := await self._reader.jobs(JobFilter(kind=kind, before=jobs[-1].id if jobs else None, limit=PAGE)):
            jobs += page
        return jobs[::-1]


def _name(kind: Kind[Any, Any] | str) -> str:
    return kind if isinstance(kind, str) else kind.name
