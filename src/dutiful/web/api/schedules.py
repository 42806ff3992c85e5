"""Schedules over HTTP."""

from datetime import datetime

from dutiful.operator import Operator
from dutiful.web.admission import OperatorDep
from dutiful.web.operations import Operations
from dutiful.web.problems import Problem
from dutiful.web.shapes import NO_REASON, PublicId, Reason, Removed, Shape, Text

schedules = Operations("Schedules", "/admin/schedules", fleetwide=True)


class Schedule(Shape):
    name: str
    kind: str
    expression: str
    timezone: str
    catch_up: str
    next_at: datetime
    last_at: datetime | None
    last_job_id: PublicId | None
    enabled: bool


class Schedules(Shape):
    schedules: list[Schedule]


class ScheduleAnswer(Shape):
    name: str
    enabled: bool


@schedules.read("/")
async def list_schedules(operator: OperatorDep) -> Schedules:
    """List the schedules, and when each fires next."""
    return Schedules(schedules=[Schedule.model_validate(one) for one in await operator.schedules.all()])


@schedules.act("/{name:path}/enable/", "schedule.enable", target="name")
async def enable_schedule(operator: OperatorDep, name: Text, ask: Reason = NO_REASON) -> ScheduleAnswer:
    """Let a schedule fire again."""
    await _check_known(operator, name)
    await operator.schedules.enable(name, True, ask.reason)
    return ScheduleAnswer(name=name, enabled=True)


@schedules.act("/{name:path}/disable/", "schedule.disable", target="name")
async def disable_schedule(operator: OperatorDep, name: Text, ask: Reason = NO_REASON) -> ScheduleAnswer:
    """Stop a schedule from firing, until it is enabled."""
    await _check_known(operator, name)
    await operator.schedules.enable(name, False, ask.reason)
    return ScheduleAnswer(name=name, enabled=False)


@schedules.act("/{name:path}/remove/", "schedule.remove", target="name")
async def remove_schedule(operator: OperatorDep, name: Text, ask: Reason = NO_REASON) -> Removed:
    """Remove a schedule that the code no longer declares."""
    await _check_known(operator, name)
    await operator.schedules.remove(name, ask.reason)
    return Removed(name=name, removed=True)


async def _check_known(operator: Operator, name: str) -> None:
    if name not in (schedule.name for schedule in await operator.schedules.all()):
        raise Problem(404, f"there is no schedule {name!r}")
