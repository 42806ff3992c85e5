"""Makes the new jobs of a tree that is run again: with the edges and results of the old ones."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful.core import ids
from dutiful.core.errors import IllegalTransition
from dutiful.core.job import JobRecord, NewJob
from dutiful.maintenance.requeue import new_job, run_again
from dutiful.operator.actor import Actor
from dutiful.store.dead_letters import DeadLetter
from dutiful.store.dependents import Edge


class Rewiring:
    def __init__(self, actor: Actor, again: Mapping[UUID, UUID]) -> None:
        """`again`: the jobs that run others again already."""
        self._actor = actor
        self._new: dict[UUID, UUID] = dict(again)
        self._taken: list[str] = []
        self.gone: set[UUID] = set()  # jobs that retention has deleted

    def job(self, ended: JobRecord | DeadLetter, edges: Sequence[Edge]) -> NewJob:
        """The job that runs this one again, after those that run its parents again."""
        fresh, by, kinds = uuid_utils.compat.uuid7(), self._actor.principal.name, self._actor.kinds
        if isinstance(ended, JobRecord):
            job = run_again(ended, id=fresh, by=by, kinds=kinds)
        else:
            job = new_job(ended, id=fresh, by=by, at=datetime.now(UTC), kinds=kinds, taken=self._taken)
            if job.unique is not None:
                self._taken.append(job.unique.key)
        kept = [edge for edge in edges if self.latest(edge.needs_id) not in self.gone]
        self._new[ended.id] = fresh
        return msgspec.structs.replace(
            job,
            depends_on=tuple(self.latest(edge.needs_id) for edge in kept),
            policies=tuple(edge.policy for edge in kept),
            options=self._options(ended.id, job.options),
        )

    def latest(self, job_id: UUID) -> UUID:
        """The job itself, or the last one that runs it again."""
        while job_id in self._new:
            job_id = self._new[job_id]
        return job_id

    def _options(self, job_id: UUID, text: str | None) -> str | None:
        options = {} if text is None else msgspec.json.decode(text)
        if not isinstance(results := options.get("results"), dict):
            return text
        options["results"] = {name: self._renamed(job_id, name, one) for name, one in results.items()}
        return msgspec.json.encode(options).decode()

    def _renamed(self, job_id: UUID, name: str, found: Any) -> Any:
        if isinstance(found, list):
            return [self._renamed(job_id, name, one) for one in found]
        latest = self.latest(UUID(found))
        if latest in self.gone:
            raise IllegalTransition(
                f"job {ids.public(job_id)} cannot be run again: its {name} was the result of "
                f"{ids.public(latest)}, which retention has deleted; enqueue the workflow anew"
            )
        return str(latest)
