"""Supervised processes: their facts, what they wait for, and why one is stuck."""

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.errors import UsageError
from dutiful.core.redaction.redact import redact
from dutiful.core.states import State
from dutiful.operator.actor import OperatorPart
from dutiful.store import Store
from dutiful.store.supervisors import (
    Process,
    ProcessAttempt,
    ProcessCheck,
    ProcessSummary,
    Supervisor,
    SupervisorStore,
)


class ProcessState(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # with a terminal fact, or about to get it
    STALLED = "stalled"  # it has not ended, and nothing will look at it again


class Fact(msgspec.Struct, frozen=True):
    """What happened, and when."""

    at: datetime
    what: str
    job_id: UUID | None = None


class ProcessDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A process, and what it means."""

    process: Process
    state: ProcessState
    stuck: bool  # nothing more happens by itself, and it has not succeeded
    why: str
    outstanding: ProcessAttempt | None
    next_check: ProcessCheck | None
    remedy: str | None  # a statement of SQL that lets a stalled process go on
    facts: list[Fact]


class ProcessLine(msgspec.Struct, frozen=True, kw_only=True):
    """A process in a list."""

    process: ProcessSummary
    state: ProcessState
    stuck: bool


class ProcessLines(msgspec.Struct, frozen=True):
    """The newest processes; `searched_all` is False if older ones could be stuck, but there were too many to search."""

    lines: list[ProcessLine]
    searched_all: bool


class Supervisors(OperatorPart):
    async def all(self) -> list[Supervisor]:
        self._actor.check_fleetwide("the list of supervisors")
        return await supervisor_store(self._store).all()

    async def processes(self, name: str, *, stuck: bool = False, limit: int = 50) -> ProcessLines | None:
        """The newest processes of a supervisor; None if there is no such supervisor."""
        self._actor.check_fleetwide("the list of processes")
        store = supervisor_store(self._store)
        page = await store.processes(name, stuck=stuck, limit=limit)
        if page is None:
            return None
        return ProcessLines([_line(one, page.supervisor.max_attempts) for one in page.processes], page.searched_all)

    async def find(self, name: str, task_id: int) -> ProcessDetails | None:
        """One process, explained; None if there is none."""
        self._actor.check_fleetwide("a process")
        found = await supervisor_store(self._store).find(name, task_id)
        return None if found is None else explain(found)


def explain(process: Process) -> ProcessDetails:
    """Says from a process' facts and jobs what state it is in, and why; without secrets that errors contain."""
    process = _redacted(process)
    outstanding = next((one for one in process.attempts if one.succeeded_at is None and one.failed_at is None), None)
    live = [check for check in process.checks if not State(check.state).final]
    state, why = _judge(process, outstanding, live)
    return ProcessDetails(
        process=process,
        state=state,
        stuck=state in (ProcessState.FAILED, ProcessState.STALLED),
        why=why,
        outstanding=outstanding if state in (ProcessState.RUNNING, ProcessState.STALLED) else None,
        next_check=live[0] if live else None,
        remedy=process.check_sql if state is ProcessState.STALLED else None,
        facts=sorted(_facts(process), key=lambda fact: fact.at),
    )


def _redacted(process: Process) -> Process:
    replace = msgspec.structs.replace
    attempts = [
        replace(one, error_message=_clean(one.error_message), job_error=_clean(one.job_error))
        for one in process.attempts
    ]
    checks = [replace(one, error=_clean(one.error)) for one in process.checks]
    return replace(process, attempts=attempts, checks=checks, final_error=_clean(process.final_error))


def _clean(text: str | None) -> str | None:
    return None if text is None else redact(text)


def _judge(process: Process, outstanding: ProcessAttempt | None, live: list[ProcessCheck]) -> tuple[ProcessState, str]:
    failures = sum(one.failed_at is not None for one in process.attempts)
    succeeded = next((one for one in process.attempts if one.succeeded_at is not None), None)
    most = process.supervisor.max_attempts
    if succeeded is not None:
        return ProcessState.SUCCEEDED, f"attempt {succeeded.attempt_id} succeeded"
    if process.final_error is not None:
        return ProcessState.FAILED, process.final_error
    if failures >= most:
        return ProcessState.FAILED, f"{failures} of {most} attempts failed; the next check records that it is over"
    if not live:
        return ProcessState.STALLED, _stalled(process)
    if outstanding is None:
        made = "the first" if not process.attempts else "another"
        return ProcessState.RUNNING, f"the next check makes {made} attempt, {failures} of {most} have failed"
    if outstanding.job_state is None or State(outstanding.job_state).final:
        ended = f"ended as {outstanding.job_state}" if outstanding.job_state else "is gone"
        what = f"its job {ended} without a record; the next check decides"
    elif outstanding.job_state == State.READY:
        channel = process.supervisor.channel
        what = f"its job is ready, and no worker has taken it yet: run a `dutiful sql-worker` that serves {channel}"
    else:
        what = f"its job is {outstanding.job_state}"
    return ProcessState.RUNNING, f"attempt {outstanding.attempt_id} is outstanding: {what}"


def _stalled(process: Process) -> str:
    """Why nothing looks at a process any more."""
    last = process.checks[-1] if process.checks else None
    if last is None:
        return "no check is queued, and the last one is gone"
    error = f": {last.error}" if last.error else ""
    return f"no check is queued; the last one, {ids.public(last.job_id)}, ended as {last.state}{error}"


def _facts(process: Process) -> Iterator[Fact]:
    yield Fact(process.created_at, "started")
    for one in process.attempts:
        yield Fact(one.created_at, f"attempt {one.attempt_id} made", one.job_id)
        if one.succeeded_at is not None:
            yield Fact(one.succeeded_at, f"attempt {one.attempt_id} succeeded")
        if one.failed_at is not None:
            yield Fact(one.failed_at, f"attempt {one.attempt_id} failed: {one.error_message}")
    if process.final_at is not None:
        yield Fact(process.final_at, f"failed for good: {process.final_error}")


def _line(one: ProcessSummary, most: int) -> ProcessLine:
    if one.succeeded:
        state = ProcessState.SUCCEEDED
    elif one.final_error is not None or one.failures >= most:
        state = ProcessState.FAILED
    else:
        state = ProcessState.RUNNING if one.checked else ProcessState.STALLED
    one = msgspec.structs.replace(one, final_error=_clean(one.final_error))
    return ProcessLine(process=one, state=state, stuck=state in (ProcessState.FAILED, ProcessState.STALLED))


def supervisor_json(one: Supervisor) -> dict[str, Any]:
    fields = msgspec.structs.asdict(one)
    fields["base_seconds"] = fields.pop("base").total_seconds()
    return fields


def supervisor_store(store: Store) -> SupervisorStore:
    """The store's supervisors, if its database can have them."""
    if store.supervisors is None:
        raise UsageError(
            f"{store.url} has no supervisors, because SQLite has no functions: they are for Postgres; here, let a kind "
            "retry by its own policy"
        )
    return store.supervisors
