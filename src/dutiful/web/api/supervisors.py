"""Supervised processes over HTTP, to read."""

from datetime import datetime
from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from dutiful.operator.supervisors import Fact, ProcessDetails, ProcessLine, ProcessState, supervisor_json
from dutiful.store.supervisors import ProcessAttempt, ProcessCheck
from dutiful.web.admission import OperatorDep
from dutiful.web.operations import Operations
from dutiful.web.problems import Problem
from dutiful.web.shapes import Ask, PublicId, Shape, Text

supervisors = Operations("Supervisors", "/admin/supervisors", fleetwide=True)

LARGEST = 2**63 - 1
TaskId = Annotated[int, Path(ge=1, le=LARGEST)]


class SupervisorItem(Shape):
    name: str = Field(examples=["comms.send_email"])
    channel: str = Field(examples=["email"])
    max_attempts: int
    base_seconds: float = Field(description="Until the first check; each failure doubles it.")
    keys: list[str] = Field(description="What a process is about.", examples=[["email_message_id"]])
    running: int | None = Field(description="null: the server's role may not read the tables.")
    succeeded: int | None
    failed: int | None
    counted_all: bool = Field(description="false: only the newest processes were counted.")


class SupervisorList(Shape):
    supervisors: list[SupervisorItem]


class ProcessItem(Shape):
    id: int = Field(examples=[7])
    keys: dict[str, str] = Field(examples=[{"email_message_id": "42"}])
    created_at: datetime
    state: ProcessState
    stuck: bool
    attempts: int
    failures: int
    error: str | None = Field(description="Why it has failed for good.")


class ProcessList(Shape):
    processes: list[ProcessItem]
    searched_all: bool = Field(description="false: older ones could be stuck, but there were too many to search.")


class ProcessQuery(Ask):
    stuck: bool = Field(default=False, description="Only those that failed, or that no check is queued for.")
    limit: int = Field(default=50, ge=1, le=200)


class FactItem(Shape):
    at: datetime
    what: str = Field(examples=["attempt 7 made"])
    job_id: PublicId | None


class AttemptItem(Shape):
    id: int = Field(examples=[7])
    job_id: PublicId
    created_at: datetime
    succeeded_at: datetime | None
    failed_at: datetime | None
    error: str | None
    job_state: str | None = Field(description="null: the job is gone.", examples=["completed"])


class CheckItem(Shape):
    job_id: PublicId
    state: str = Field(examples=["scheduled"])
    run_at: datetime | None


class ProcessAnswer(Shape):
    supervisor: str = Field(examples=["comms.send_email"])
    id: int = Field(examples=[7])
    keys: dict[str, str] = Field(examples=[{"email_message_id": "42"}])
    state: ProcessState
    stuck: bool
    why: str = Field(examples=["attempt 7 is outstanding: its job is running"])
    remedy: str | None = Field(description="A statement of SQL that lets a stalled process go on.", examples=[None])
    facts: list[FactItem] = Field(description="In the order of time.")
    attempts: list[AttemptItem]
    outstanding: int | None = Field(description="The attempt without an outcome.", examples=[7])
    next_check: CheckItem | None


@supervisors.read("/")
async def list_supervisors(operator: OperatorDep) -> SupervisorList:
    """List the supervisors, and how many of their processes run, succeeded and failed."""
    found = await operator.supervisors.all()
    return SupervisorList(supervisors=[SupervisorItem.model_validate(supervisor_json(one)) for one in found])


@supervisors.read("/{supervisor}/")
async def list_processes(
    operator: OperatorDep, supervisor: Text, query: Annotated[ProcessQuery, Query()]
) -> ProcessList:
    """List the newest processes of a supervisor."""
    found = await operator.supervisors.processes(supervisor, stuck=query.stuck, limit=query.limit)
    if found is None:
        raise Problem(404, f"there is no supervisor {supervisor!r:.100}")
    return ProcessList(processes=[_item(one) for one in found.lines], searched_all=found.searched_all)


@supervisors.read("/{supervisor}/{task_id}/")
async def show_process(operator: OperatorDep, supervisor: Text, task_id: TaskId) -> ProcessAnswer:
    """Show a process: its facts in the order of time, its attempts with their jobs, and whether and why it is stuck."""
    found = await operator.supervisors.find(supervisor, task_id)
    if found is None:
        raise Problem(404, f"there is no process {task_id} of a supervisor {supervisor!r:.100}")
    return _answer(found)


def _item(line: ProcessLine) -> ProcessItem:
    one = line.process
    return ProcessItem(
        id=one.task_id,
        keys=dict(one.keys),
        created_at=one.created_at,
        state=line.state,
        stuck=line.stuck,
        attempts=one.attempts,
        failures=one.failures,
        error=one.final_error,
    )


def _answer(found: ProcessDetails) -> ProcessAnswer:
    process = found.process
    return ProcessAnswer(
        supervisor=process.supervisor.name,
        id=process.task_id,
        keys=dict(process.keys),
        state=found.state,
        stuck=found.stuck,
        why=found.why,
        remedy=found.remedy,
        facts=[_fact(one) for one in found.facts],
        attempts=[_attempt(one) for one in process.attempts],
        outstanding=None if found.outstanding is None else found.outstanding.attempt_id,
        next_check=None if found.next_check is None else _check(found.next_check),
    )


def _fact(fact: Fact) -> FactItem:
    return FactItem(at=fact.at, what=fact.what, job_id=fact.job_id)


def _attempt(one: ProcessAttempt) -> AttemptItem:
    return AttemptItem(
        id=one.attempt_id,
        job_id=one.job_id,
        created_at=one.created_at,
        succeeded_at=one.succeeded_at,
        failed_at=one.failed_at,
        error=one.error_message or one.job_error,
        job_state=one.job_state,
    )


def _check(one: ProcessCheck) -> CheckItem:
    return CheckItem(job_id=one.job_id, state=one.state, run_at=one.run_at)
