"""Jobs that a running job adds: what waits for it waits for them too."""

from collections import Counter
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.errors import UsageError
from dutiful.core.job import NewJob, OnFailure
from dutiful.core.json import check_name
from dutiful.workflow.call import Call
from dutiful.workflow.graph import Workflow
from dutiful.workflow.shapes import Shape, expand


def spawned(job_id: UUID, calls: tuple[Any, ...], key: str | None) -> Workflow:
    """A workflow of these calls, added by the job `job_id`; with a key, its next attempt adds no second ones."""
    if not calls or not all(isinstance(one, Call | Shape) for one in calls):
        raise UsageError("ctx.spawn() takes calls, as in ctx.spawn(resize.call(image)), chains and groups")
    first = calls[0] if isinstance(calls[0], Call) else calls[0].first_call()
    id_of = None if key is None else SpawnIds(job_id, check_name(key, "key"))
    flow = Workflow(first.kind._enqueuer, joins=job_id, id_of=id_of)
    for call in calls:
        expand(flow, call, None, OnFailure.CANCEL)
    if key is not None and (sealed := flow.encrypted_kind()) is not None:
        raise UsageError(
            f"kind {sealed} is encrypted, so that its jobs cannot be spawned with a key: their ids would be hashes of "
            "their payloads; spawn them in a step, or give each an id of its own, as in .options(id=…)"
        )
    return flow


class SpawnIds:
    """Makes the same id each time for a call that a job spawns with a key, so that its next attempt adds no second one.

    The id is made of the call and of the jobs before it in its chain or group. It does not depend on its place among
    the others, because the next attempt may find more to spawn, or the same in another order; equal calls are counted.
    """

    def __init__(self, parent: UUID, key: str) -> None:
        self._parent = parent
        self._key = key
        self._equal: Counter[str] = Counter()

    def __call__(self, job: NewJob, before: Iterable[UUID]) -> UUID:
        call = [self._key, job.kind, msgspec.json.decode(job.payload), sorted(map(str, before))]
        name = msgspec.json.encode(call, order="sorted").decode()
        self._equal[name] += 1
        return ids.derived(self._parent, f"{self._equal[name]} {name}")
