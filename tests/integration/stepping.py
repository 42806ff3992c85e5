"""What tests of steps look at: the records of a job, and where it is."""

from typing import Any

from running_workers import eventually

from dutiful import Dutiful, State
from dutiful.core.steps import StepRecord
from dutiful.kind import Handle


async def steps_of(app: Dutiful, job: Handle[Any]) -> dict[str, StepRecord]:
    found = await (await app.client()).store.steps.all(job.id)
    return {step.name: step for step in found}


async def is_in(app: Dutiful, job: Handle[Any], state: State) -> bool:
    record = await app.find(job.id)
    return record is not None and record.state is state


async def waits(app: Dutiful, job: Handle[Any]) -> Any:
    return await eventually(lambda: is_in(app, job, State.BLOCKED))
