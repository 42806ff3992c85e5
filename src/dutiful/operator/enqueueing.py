"""New jobs, as a person asks for them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.errors import JobNotFound, NotAllowed, UnknownKind
from dutiful.core.job import Insertion, NewJob
from dutiful.core.tenant import check_tenant
from dutiful.kind import Kind
from dutiful.operator.jobs import Jobs
from dutiful.options import Options, read_options


class Enqueued(msgspec.Struct, frozen=True):
    """The job that stands for what was asked for; not `made`: another one that held the key."""

    job_id: UUID
    made: bool


class Enqueueing(Jobs):
    async def enqueue(
        self, kind: str, payload: Mapping[str, Any], reason: str | None = None, **options: Any
    ) -> Enqueued:
        """Store a job of a kind that this process knows, for the principal's own tenant if they have one."""
        prepared: list[NewJob] = []

        async def prepare() -> None:
            prepared.append(await self._prepared(kind, payload, options))

        asked = options.get("tenant")
        async with self._act("job.enqueue", kind, reason, tenant=asked, check=prepare) as act:
            inserted = await self._client.submit(prepared[0])
            made = inserted.insertion in (Insertion.MADE, Insertion.REPLACED)
            act.after = {"job": ids.public(inserted.job_id), "made": made}
        return Enqueued(inserted.job_id, made)

    async def _prepared(self, name: str, payload: Mapping[str, Any], given: dict[str, Any]) -> NewJob:
        kind = self._known(name)
        options: Options = read_options(kind._defaults, {**given, "created_by": self.principal.name})
        for needed in options.depends_on:
            if await self._found(needed) is None:
                raise JobNotFound(f"depends_on: there is no job {ids.public(needed)}")
        tenant = self.scope(options.tenant)
        job = kind.prepare(replace(options, tenant=None if tenant is None else check_tenant(tenant)), payload)
        if not self._ours(job.tenant):
            raise NotAllowed(f"{self.principal.name} acts for the tenant {self.tenant}: the payload names another one")
        return job

    def _known(self, name: str) -> Kind[Any, Any]:
        if name not in self._kinds:
            there = ", ".join(sorted(self._kinds)) or "none"
            raise UnknownKind(f"there is no kind {name!r:.80} here; there are: {there:.1000}")
        return self._kinds[name]
